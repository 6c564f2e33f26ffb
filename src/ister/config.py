"""The broker's configuration: one frozen value, validated once, at the edge.

Sources, each over the one before: the defaults here, a TOML file, the environment (`ISTER_` and the
field's name in capitals), the command line. What is in none of our names is an error that says where it
stands and what was probably meant: a typing mistake in a limit must not become a default in silence.

Every field's annotation says what it is for and what it may hold; the reference page is made from them.
Those that are about a broker's part in a cluster are in `ister.cluster_config`. Nothing else in the package
reads the environment.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple, get_args, get_type_hints

from ister.cluster_config import HOUR_MS, MAX_PORT, ClusterConfig
from ister.errors import ConfigError
from ister.io.stores import MODES, check_store_url
from ister.logs import parse_levels
from ister.names import MAX_PART
from ister.protocol.codec import MAX_MESSAGE_BYTES
from ister.protocol.messages import TopicSettings
from ister.settings import (
    FOREVER_MS,
    GIB,
    KIB,
    MIB,
    TIB,
    TOPIC_SETTINGS,
    Kind,
    NotAllowed,
    Spec,
    Value,
    count,
    duration,
    nearest,
    parse,
    size,
    text,
)

PREFIX: Final = "ISTER_"

ALIASES: Final = {
    "max_segment_entries": "segment_records",
    "raft_host": "peer_host",
    "raft_port": "peer_port",
    "raft_advertise_host": "peer_advertise_host",
    "initial_peer": "join",
}
"""Names that people bring along from elsewhere, and the field that they mean here."""

_ENVIRONMENT: Final = "the environment variable"
_WITHOUT_EFFECT: Final = {
    "disable_io_uring": "there is no io_uring in Ister, so there is none to disable",
}
_OF_OTHERS: Final = frozenset({"bootstrap"})
"""Variables under our prefix that are the command line's, not the broker's."""


class BrokerConfig(ClusterConfig, frozen=True, kw_only=True):
    """All that a broker can be told. Invalid values raise `ConfigError`, however it is made."""

    data_dir: Annotated[
        str, text("The directory that holds the log; made if it is not there. One for each broker.")
    ] = "ister-data"
    node_id: Annotated[int, count("This broker's number in its cluster.", 1, (1 << 31) - 1)] = 1

    client_host: Annotated[
        str, text("The address to listen on for clients. The default takes this machine's only.")
    ] = "127.0.0.1"
    client_port: Annotated[
        int, count("The port to listen on for clients; 0 takes any free one.", 0, MAX_PORT)
    ] = 9091
    client_advertise_host: Annotated[
        str,
        text("The host that clients are told to connect to; empty is client_host.", may_be_empty=True),
    ] = ""
    client_advertise_port: Annotated[
        int, count("The port that clients are told to connect to; 0 is the one listened on.", 0, MAX_PORT)
    ] = 0
    test_controls: Annotated[
        bool, Spec(Kind.SWITCH, "Take commands that break things on purpose, from loopback only. For tests.")
    ] = False
    cluster_secret: Annotated[
        str, text("What test controls must know; empty refuses them.", may_be_empty=True)
    ] = ""
    admin_host: Annotated[str, text("The address to listen on for metrics.")] = "127.0.0.1"
    admin_port: Annotated[
        int, count("The port for metrics; 0 takes any free one, -1 turns it off.", -1, MAX_PORT)
    ] = 9190

    max_message_bytes: Annotated[
        int, size("The largest request that the broker takes from anyone.", 64 * KIB, MAX_MESSAGE_BYTES)
    ] = 64 * MIB
    max_connection_in_flight_bytes: Annotated[
        int,
        size(
            "Unanswered request bytes of one connection beyond which the broker stops reading from it.",
            64 * KIB,
            16 * GIB,
        ),
    ] = 16 * MIB
    max_in_flight_bytes: Annotated[
        int,
        size(
            "Unanswered request bytes of all connections beyond which the broker stops reading.",
            64 * KIB,
            TIB,
        ),
    ] = 64 * MIB
    max_answer_bytes: Annotated[
        int,
        size(
            "Bytes of answers, of all connections, that are being made or were not taken yet. Fetches beyond "
            "it wait; who takes nothing while others wait is cut off after request_timeout_ms.",
            MIB,
            TIB,
        ),
    ] = 64 * MIB
    max_connections: Annotated[
        int, count("Connections beyond this many are refused as overloaded.", 1, 1_000_000)
    ] = 1000
    max_topics: Annotated[int, count("Topics beyond this many are refused.", 1, 1_000_000)] = 20_000
    max_topic_name: Annotated[
        int, count("The most characters of a new topic's name, and of its namespace.", 1, MAX_PART)
    ] = MAX_PART
    request_timeout_ms: Annotated[
        int,
        duration(
            "The silence in the middle of a request after which the line is cut; and how long a large one "
            "may take to arrive before it must keep a pace of 64 KiB a second.",
            10,
            HOUR_MS,
        ),
    ] = 30_000
    drain_timeout_ms: Annotated[
        int,
        duration("How long a stopping broker works off what it has accepted before it closes.", 0, HOUR_MS),
    ] = 10_000
    hot_tail_bytes: Annotated[
        int, size("Memory for the newest records, which live readers get without the disk.", 0, 64 * GIB)
    ] = 32 * MIB
    fsync_interval_ms: Annotated[
        int,
        duration(
            "How often topics with fsync = `interval` reach the disk: what a power cut may cost.", 1, HOUR_MS
        ),
    ] = 200
    monitor_check_ms: Annotated[
        int,
        duration(
            "How often to look for segments to hand off or drop that no append has caught.", 10, HOUR_MS
        ),
    ] = 10_000
    lease_sync_ms: Annotated[
        int, duration("How often the leases to append are brought in line with metadata.", 10, HOUR_MS)
    ] = 100
    auto_create_topics: Annotated[
        bool, Spec(Kind.SWITCH, "Whether the first append to a topic makes it.")
    ] = True
    max_held_appends: Annotated[
        int, count("Appends that may wait for a segment's handoff; more are overloaded.", 0, 10_000_000)
    ] = 10_000
    max_held_bytes: Annotated[
        int, size("Bytes of appends that may wait for a segment's handoff.", 0, 16 * GIB)
    ] = 16 * MIB
    max_held_ms: Annotated[
        int, duration("How long an append may wait for a segment's handoff.", 0, HOUR_MS)
    ] = 5000

    storage_mode: Annotated[
        str,
        Spec(
            Kind.CHOICE,
            "Where sealed segments go: `local` leaves them on their nodes, `shared_fs` puts them into a "
            "directory that all nodes have, `object_store` into a bucket. The same for all nodes of a "
            "cluster.",
            choices=MODES,
        ),
    ] = "local"
    storage_url: Annotated[
        str,
        text(
            "The place of the history: `file:///mnt/ister-history`, or `s3://bucket/prefix`, `gs://` or "
            "`az://`.",
            may_be_empty=True,
        ),
    ] = ""
    export_after_ms: Annotated[
        int,
        duration(
            "An open segment that is older is handed off, so that it gets into the history; 0 is never.",
            0,
            FOREVER_MS,
        ),
    ] = 600_000
    export_bytes_per_second: Annotated[
        int, size("How fast this broker uploads sealed segments, and reads them back; 0 is no limit.", 0, TIB)
    ] = 0

    history_cache_bytes: Annotated[
        int, size("Memory for what was read of the history, for the readers that go on from there.", 0, TIB)
    ] = 32 * MIB

    log_level: Annotated[
        str,
        text(
            "debug, info, warning, error or critical; for single modules too: `info,ister.wal=debug`.",
        ),
    ] = "info"
    log_file: Annotated[
        str, text("The file to append logs to; empty is the standard error.", may_be_empty=True)
    ] = ""
    log_format: Annotated[
        str, Spec(Kind.CHOICE, "`text` for people, `json` for programs.", choices=("text", "json"))
    ] = "text"

    segment_records: Annotated[int, TOPIC_SETTINGS["segment_records"]] = 1_000_000
    segment_bytes: Annotated[int, TOPIC_SETTINGS["segment_bytes"]] = 256 * MIB
    segment_age_ms: Annotated[int, TOPIC_SETTINGS["segment_age_ms"]] = 0
    fsync: Annotated[str, TOPIC_SETTINGS["fsync"]] = "fsync"
    retention_ms: Annotated[int, TOPIC_SETTINGS["retention_ms"]] = 0
    retention_bytes: Annotated[int, TOPIC_SETTINGS["retention_bytes"]] = 0
    topic_max_message_bytes: Annotated[
        int,
        size(
            "The largest batch of records that a topic takes; never over max_message_bytes.",
            1024,
            MAX_MESSAGE_BYTES,
        ),
    ] = 16 * MIB
    replicas: Annotated[int, TOPIC_SETTINGS["replicas"]] = 3
    local_retention_ms: Annotated[int, TOPIC_SETTINGS["local_retention_ms"]] = 48 * HOUR_MS
    local_retention_bytes: Annotated[int, TOPIC_SETTINGS["local_retention_bytes"]] = 20 * GIB

    def __post_init__(self) -> None:
        for name, spec in specs().items():
            value = getattr(self, name)
            if _checked(name, spec, value, "") != value:
                raise ConfigError(f"{name} = {value!r} is text", hint="Units are read by load_config only.")
        parse_levels(self.log_level)
        self.check_cluster()
        check_store_url(self.storage_mode, self.storage_url)

    def topic_defaults(self) -> TopicSettings:
        """What a topic has unless it is created with settings of its own."""
        return TopicSettings(
            segment_records=self.segment_records,
            segment_bytes=self.segment_bytes,
            segment_age_ms=self.segment_age_ms,
            fsync=self.fsync,
            retention_ms=self.retention_ms,
            retention_bytes=self.retention_bytes,
            max_message_bytes=min(self.topic_max_message_bytes, self.max_message_bytes),
            replicas=self.replicas,
            local_retention_ms=self.local_retention_ms,
            local_retention_bytes=self.local_retention_bytes,
        )


TOPIC_DEFAULTS: Final = frozenset((*TOPIC_SETTINGS, "topic_max_message_bytes")) - {"max_message_bytes"}
"""The fields that are the defaults of topics."""
CLUSTER_FIELDS: Final = frozenset(ClusterConfig.__struct_fields__)
"""The fields that are about being one of several brokers."""


@functools.cache
def specs() -> dict[str, Spec]:
    """What each field may hold, in the order of the class."""
    hints = get_type_hints(BrokerConfig, include_extras=True)
    return {name: get_args(hints[name])[1] for name in BrokerConfig.__struct_fields__}


class ConfigFile(NamedTuple):
    """A configuration file that was read: its name, for messages, and its text."""

    name: str
    text: str


class _Given(NamedTuple):
    """One value from one source, with the words that say where it stands."""

    name: str
    value: object
    where: str


def load_config(
    file: ConfigFile | None, environ: Mapping[str, str], flags: Mapping[str, object]
) -> BrokerConfig:
    """Defaults, then the file, then the environment, then the flags. Flags that are None were not given."""
    merged: dict[str, Value] = {}
    for source in (_from_file(file), _from_environment(environ), _from_flags(flags)):
        for name, value, where in source:
            spec = specs().get(name)
            if spec is None:
                raise ConfigError(
                    f"there is no setting {name!r} (from {where}){_meant(name, where)}",
                    hint="Remove or correct it; the configuration reference lists every setting.",
                )
            merged[name] = _checked(name, spec, value, where)
    return BrokerConfig(**_typed(merged))


def _meant(name: str, where: str) -> str:
    """Which of our names, or of those that people bring along, this may be; as it is written there."""
    found = nearest(name, [*specs(), *ALIASES])
    if found is None:
        return ""
    return f"; did you mean {PREFIX + found.upper() if where.startswith(_ENVIRONMENT) else found}?"


def _typed(merged: dict[str, Value]) -> dict[str, Any]:
    return dict(merged)


def _checked(name: str, spec: Spec, value: object, where: str) -> Value:
    try:
        return parse(spec, value)
    except NotAllowed as reason:
        place = f" (from {where})" if where else ""
        raise ConfigError(f"{name} = {value!r}{place} {reason}", hint=f"Allowed: {spec.allowed}.") from reason


def _from_file(file: ConfigFile | None) -> Iterator[_Given]:
    if file is None:
        return
    try:
        table = tomllib.loads(file.text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{file.name} is not TOML: {error}", hint='A line looks like this: max_message_bytes = "64MiB".'
        ) from error
    for name, value in table.items():
        yield _Given(ALIASES.get(name, name), value, f"the file {file.name}")


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Given]:
    for variable in sorted(environ):
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or name in _WITHOUT_EFFECT or name in _OF_OTHERS:
            continue
        meant = ALIASES.get(name, name)
        ours = PREFIX + meant.upper()
        if meant != name and ours in environ:
            raise ConfigError(
                f"{variable} and {ours} are both set, and mean the same", hint=f"Unset {variable}."
            )
        yield _Given(meant, environ[variable], f"{_ENVIRONMENT} {variable}")


def _from_flags(flags: Mapping[str, object]) -> Iterator[_Given]:
    for name, value in flags.items():
        if value is not None:
            yield _Given(ALIASES.get(name, name), value, "the command line")


def environment_notices(environ: Mapping[str, str]) -> list[str]:
    """A line for each variable that is accepted and has no effect, for the log."""
    return [
        f"{PREFIX}{name.upper()} has no effect: {reason}"
        for name, reason in _WITHOUT_EFFECT.items()
        if PREFIX + name.upper() in environ
    ]
