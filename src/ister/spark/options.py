"""What a person may say with `.option(...)`: the Kafka connector's names, checked before anything happens.

Spark hands names over in lower case and adds a few of its own. An option that nobody here knows is an error
with the nearest known one, because an option that is quietly ignored is a query that quietly means something
else. Other options of the Kafka client (`kafka.*`) are let pass with a warning, so that a query can be
carried over as it is; those that promise security are refused, since ignoring them would break the promise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ister.client.routing import DEFAULT_PORT, parse_bootstrap
from ister.errors import ConfigError
from ister.names import is_system, normalise_topic
from ister.settings import nearest
from ister.spark.option_values import Given, count, duration_s, flag, number, size
from ister.spark.ranges import HISTORY, TIERS, UNION
from ister.spark.source.places import Places, ending_places, starting_places
from ister.spark.source.snapshots import Snapshot, parse_snapshot
from ister.spark.source.subscription import WAYS, Subscription, parse_subscription

_ALL: Final = ("bootstrap.servers", "kafka.bootstrap.servers")
_READ: Final = (
    *_ALL,
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "includeHeaders",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "read.tier",
    "verifyChecksums",
)
_ENDS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_SNAPSHOT: Final = "snapshot.offsets"
_ONLY_TABLE: Final = (*_ENDS, _SNAPSHOT)
_ONLY_STREAM: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
)
_TABLE: Final = (*_READ, *_ONLY_TABLE)
_STREAM: Final = (*_READ, *_ONLY_STREAM)
_WRITE: Final = (*_ALL, "topic", "delivery", "includeHeaders")
"""Kafka's connector lets `includeHeaders` pass here and goes by the column alone: the same options may serve
both ways."""
_TRANSACTION: Final = ("txnAppId", "txnVersion")
EXACTLY_ONCE: Final = "exactly-once"
ATOMIC: Final = "atomic"
AT_LEAST_ONCE: Final = "at-least-once"
_SPARKS_OWN: Final = frozenset({"path", "queryname", "checkpointlocation"})
_SECURITY: Final = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")
_OF_KAFKAS_CONSUMER: Final = frozenset(
    {"kafkaconsumer.polltimeoutms", "fetchoffset.numretries", "fetchoffset.retryintervalms"}
)
"""Read options of the connector that tune its client, and change no result."""
_NAME: Final = "groupidprefix"
MAX_TRIGGER_DELAY_S: Final = 15 * 60.0


@dataclass(frozen=True)
class ReadOptions:
    """What a table and a stream have in common."""

    bootstrap: str
    subscription: Subscription
    start: Places
    include_headers: bool
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    tier: str
    """`UNION`, `HISTORY` or `HOT`: what is read, and from where."""
    verify_checksums: bool
    ignored: tuple[str, ...]
    """Options of the Kafka client that have no meaning here."""


@dataclass(frozen=True)
class TableOptions:
    read: ReadOptions
    end: Places
    snapshot: Snapshot | None = None
    """Where the topics begin and end, if that was decided before: then `end` says nothing."""


@dataclass(frozen=True)
class TriggerLimits:
    """How much one micro-batch takes, at least and at most."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_s: float = MAX_TRIGGER_DELAY_S
    """So long fewer than `min_offsets` are waited on."""
    max_bytes: int | None = None


@dataclass(frozen=True)
class StreamOptions:
    read: ReadOptions
    limits: TriggerLimits
    name: str | None
    """What the brokers are told who reads: `groupIdPrefix`."""


@dataclass(frozen=True)
class WriteOptions:
    bootstrap: str
    topic: str | None
    """The full name; None if each row names its own."""
    delivery: str
    """Of a stream `EXACTLY_ONCE`, of a table `ATOMIC`; of either `AT_LEAST_ONCE`."""
    application: str | None
    """Who writes a table (`txnAppId`), if versions of it are to be recognised."""
    version: int
    ignored: tuple[str, ...]


def parse_include_headers(options: Mapping[str, str]) -> bool:
    """What the columns depend on. Nobody knows yet whether a table or a stream is to be made."""
    given = _lowered(options)
    _check_names(given, (*_READ, *_ONLY_TABLE, *_ONLY_STREAM))
    return flag(given, "includeHeaders", False)


def parse_table_options(options: Mapping[str, str]) -> TableOptions:
    given = _lowered(options)
    _refuse_those_of_the_other(given, _ONLY_STREAM, "a stream (readStream)", "a table (read)")
    snapshot = _snapshot(given)
    if snapshot is not None and not any(way.lower() in given for way in WAYS):
        given["subscribe"] = ",".join(snapshot.topics)
    read = _read(given, _TABLE, is_stream=False)
    end = ending_places(given)
    if read.subscription.pattern is None:
        end.check(read.subscription.topics)
    return TableOptions(read, end, snapshot)


def _snapshot(given: Given) -> Snapshot | None:
    text = given.get(_SNAPSHOT)
    if text is None:
        return None
    for name in _ENDS:
        if name.lower() in given:
            raise ConfigError(
                f"{name} and {_SNAPSHOT} are both given, and both say where the table ends",
                hint="Leave out one of them.",
            )
    return parse_snapshot(text)


def parse_stream_options(options: Mapping[str, str]) -> StreamOptions:
    given = _lowered(options)
    _refuse_those_of_the_other(given, _ONLY_TABLE, "a table (read)", "a stream (readStream)")
    return StreamOptions(_read(given, _STREAM, is_stream=True), _limits(given), given.get(_NAME) or None)


def _read(given: Given, known: Iterable[str], *, is_stream: bool) -> ReadOptions:
    ignored = _check_names(given, known)
    if _NAME in given and not is_stream:
        ignored = (*ignored, _NAME)
    subscription = parse_subscription(given)
    start = starting_places(given, "latest" if is_stream else "earliest", is_stream=is_stream)
    if subscription.pattern is None:
        start.check(subscription.topics)
    return ReadOptions(
        bootstrap=_bootstrap(given),
        subscription=subscription,
        start=start,
        include_headers=flag(given, "includeHeaders", False),
        fail_on_data_loss=flag(given, "failOnDataLoss", True),
        min_partitions=count(given, "minPartitions"),
        max_records_per_partition=count(given, "maxRecordsPerPartition"),
        tier=_tier(given, is_stream),
        verify_checksums=flag(given, "verifyChecksums", True),
        ignored=ignored,
    )


def _tier(given: Given, is_stream: bool) -> str:
    tier = given.get("read.tier", UNION).strip().lower()
    if tier not in TIERS:
        raise ConfigError(f"read.tier is {tier!r}", hint=f"Give {', '.join(TIERS)}.")
    if is_stream and tier == HISTORY:
        raise ConfigError(
            "read.tier is history, and this is a stream, which goes on into what is not in the history yet",
            hint="Leave it out: a stream reads what the history has from the store, the rest from brokers.",
        )
    return tier


def _limits(given: Given) -> TriggerLimits:
    limits = TriggerLimits(
        max_offsets=count(given, "maxOffsetsPerTrigger"),
        min_offsets=count(given, "minOffsetsPerTrigger"),
        max_delay_s=duration_s(given, "maxTriggerDelay", MAX_TRIGGER_DELAY_S),
        max_bytes=size(given, "maxBytesPerTrigger"),
    )
    if limits.min_offsets and limits.max_offsets and limits.min_offsets > limits.max_offsets:
        raise ConfigError(
            f"minOffsetsPerTrigger is {limits.min_offsets}, maxOffsetsPerTrigger {limits.max_offsets}",
            hint="Let the least be no more than the most.",
        )
    return limits


def parse_write_options(options: Mapping[str, str], *, is_stream: bool = False) -> WriteOptions:
    given = _lowered(options)
    ignored = _check_names(given, _WRITE if is_stream else (*_WRITE, *_TRANSACTION))
    flag(given, "includeHeaders", True)
    topic = given.get("topic")
    name = None if topic is None else normalise_topic(topic)
    if name is not None and is_system(name):
        raise ConfigError(
            f"topic {name} is one of Ister's own", hint="Choose a name that does not begin with _."
        )
    delivery = _delivery(given, EXACTLY_ONCE if is_stream else ATOMIC)
    application, version = _transaction(given, delivery)
    return WriteOptions(_bootstrap(given), name, delivery, application, version, ignored)


def _delivery(given: Mapping[str, str], default: str) -> str:
    delivery = given.get("delivery", default).strip().lower()
    if delivery not in (default, AT_LEAST_ONCE):
        raise ConfigError(f"delivery is {delivery!r}", hint=f"Give {default} or {AT_LEAST_ONCE}.")
    return delivery


def _transaction(given: Mapping[str, str], delivery: str) -> tuple[str | None, int]:
    app_id, version = (given.get(name.lower()) for name in _TRANSACTION)
    if (app_id is None) != (version is None):
        missing = _TRANSACTION[app_id is not None]
        raise ConfigError(
            f"{missing} is missing", hint="Give both txnAppId and txnVersion, or neither of them."
        )
    if app_id is None or version is None:
        return None, 0
    if not app_id.strip():
        raise ConfigError("txnAppId is empty", hint="Give a name that this writer keeps from run to run.")
    if delivery == AT_LEAST_ONCE:
        raise ConfigError(
            f"txnAppId is given, and delivery={AT_LEAST_ONCE}, which does not look at it",
            hint="Leave out one of them.",
        )
    return app_id, number("txnVersion", version, "a whole number that grows from write to write")


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


# Names.


def _check_names(given: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Refuse what is unknown; returns what is let pass without having a meaning."""
    by_lower = {name.lower(): name for name in known}
    ignored = []
    for name in sorted(given):
        if name in by_lower or name in _SPARKS_OWN:
            continue
        if name.startswith(_SECURITY):
            raise ConfigError(
                f"option {name} asks for security, which Ister does not have yet",
                hint="Leave it out, and keep the brokers on a network that you trust.",
            )
        if not name.startswith("kafka.") and not (name in _OF_KAFKAS_CONSUMER and "subscribe" in by_lower):
            raise _unknown(name, by_lower)
        ignored.append(name)
    return tuple(ignored)


def _refuse_those_of_the_other(given: Given, names: Iterable[str], other: str, this: str) -> None:
    for name in names:
        if name.lower() in given:
            raise ConfigError(f"option {name} is for {other}, and this is {this}", hint="Leave it out.")


def _unknown(name: str, by_lower: dict[str, str]) -> ConfigError:
    found = nearest(name, by_lower)
    guess = f"; did you mean {by_lower[found]}?" if found else ""
    known = ", ".join(sorted(by_lower.values()))
    return ConfigError(f"there is no option {name!r}{guess}", hint=f"The options here are: {known}.")


# Values.


def _bootstrap(given: Mapping[str, str]) -> str:
    plain, kafkas = given.get("bootstrap.servers"), given.get("kafka.bootstrap.servers")
    if plain is not None and kafkas is not None and plain != kafkas:
        raise ConfigError(
            f"bootstrap.servers is {plain!r} and kafka.bootstrap.servers is {kafkas!r}",
            hint="Give one of them.",
        )
    bootstrap = plain or kafkas or f"127.0.0.1:{DEFAULT_PORT}"
    parse_bootstrap(bootstrap)
    return bootstrap
