"""What a person may say with `.option(...)`: the Kafka connector's names, checked before anything happens.

Spark hands names over in lower case and adds a few of its own. An option that nobody here knows is an error
with the nearest known one, because an option that is quietly ignored is a query that quietly means something
else. Other options of the Kafka client (`kafka.*`) are let pass with a warning, so that a query can be
carried over as it is; those that promise security are refused, since ignoring them would break the promise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ister.client.routing import DEFAULT_PORT, parse_bootstrap
from ister.errors import ConfigError
from ister.names import is_system, normalise_topic
from ister.settings import nearest

_GUIDE: Final = "docs/guides/spark.md lists the options."

_READ: Final = (
    "bootstrap.servers",
    "kafka.bootstrap.servers",
    "subscribe",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "includeHeaders",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
)
_WRITE: Final = ("bootstrap.servers", "kafka.bootstrap.servers", "topic", "delivery")
_TRANSACTION: Final = ("txnAppId", "txnVersion")
EXACTLY_ONCE: Final = "exactly-once"
ATOMIC: Final = "atomic"
AT_LEAST_ONCE: Final = "at-least-once"
_SPARKS_OWN: Final = frozenset({"path", "queryname", "checkpointlocation"})
_SECURITY: Final = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")
_KAFKAS_LATER: Final = {
    name.lower(): name
    for name in (
        "subscribePattern",
        "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "groupIdPrefix",
        "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "includeTimestamp",
    )
}


class Moment(NamedTuple):
    """The first record that was appended at or after a time."""

    time_us: int


Place = str | int | Moment
"""`earliest`, `latest`, an offset, or a time."""


@dataclass(frozen=True)
class ReadOptions:
    bootstrap: str
    topics: tuple[str, ...]
    """Full names, in the order given, each once."""
    start: Mapping[str, Place]
    """Where reading begins, for each topic."""
    end: Mapping[str, Place]
    """Where it ends, for each topic."""
    include_headers: bool
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    ignored: tuple[str, ...]
    """Options of the Kafka client that have no meaning here."""


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


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    given = _lowered(options)
    ignored = _check_names(given, _READ)
    topics = _topics(given)
    return ReadOptions(
        bootstrap=_bootstrap(given),
        topics=topics,
        start=_places(given, topics, "starting", "earliest"),
        end=_places(given, topics, "ending", "latest"),
        include_headers=_flag(given, "includeHeaders", False),
        fail_on_data_loss=_flag(given, "failOnDataLoss", True),
        min_partitions=_count(given, "minPartitions"),
        max_records_per_partition=_count(given, "maxRecordsPerPartition"),
        ignored=ignored,
    )


def parse_write_options(options: Mapping[str, str], *, is_stream: bool = False) -> WriteOptions:
    given = _lowered(options)
    ignored = _check_names(given, _WRITE if is_stream else (*_WRITE, *_TRANSACTION))
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
    return app_id, _number("txnVersion", version, "a whole number that grows from write to write")


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
        if not name.startswith("kafka."):
            raise _unknown(name, by_lower)
        ignored.append(name)
    return tuple(ignored)


def _unknown(name: str, by_lower: dict[str, str]) -> ConfigError:
    if name in _KAFKAS_LATER:
        return ConfigError(
            f"option {_KAFKAS_LATER[name]} of the Kafka connector is not supported here yet", hint=_GUIDE
        )
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


def _topics(given: Mapping[str, str]) -> tuple[str, ...]:
    if ("subscribe" in given) == ("assign" in given):
        what = "both subscribe and assign are" if "assign" in given else "neither subscribe nor assign is"
        raise ConfigError(f"{what} given", hint="Say what to read: .option('subscribe', 'topic,other').")
    if "assign" in given:
        names = _assigned(given["assign"])
    else:
        names = [name.strip() for name in given["subscribe"].split(",") if name.strip()]
    topics = tuple(dict.fromkeys(map(normalise_topic, names)))
    if not topics:
        raise ConfigError("there is no topic in subscribe or assign", hint="Name at least one.")
    return topics


def _assigned(text: str) -> list[str]:
    assigned = _json_object("assign", text)
    for topic, partitions in assigned.items():
        if partitions != [0]:
            raise ConfigError(
                f"assign names partitions {partitions!r} of {topic}",
                hint='A topic of Ister is one line, partition 0: {"topic": [0]}.',
            )
    return list(assigned)


def _places(given: Mapping[str, str], topics: tuple[str, ...], side: str, default: str) -> dict[str, Place]:
    """`startingTimestamp` goes before `startingOffsets`, as with Kafka."""
    timestamp, offsets = given.get(f"{side}timestamp"), given.get(f"{side}offsets", default)
    if timestamp is not None:
        moment = Moment(_number(f"{side}Timestamp", timestamp, "milliseconds since 1970") * 1000)
        return dict.fromkeys(topics, moment)
    name = f"{side}Offsets"
    places: dict[str, Place]
    if offsets.strip().lower() in ("earliest", "latest"):
        places = dict.fromkeys(topics, offsets.strip().lower())
    else:
        places = _places_by_topic(name, offsets, topics)
    forbidden = "latest" if side == "starting" else "earliest"
    for topic, place in places.items():
        if place == forbidden:
            raise ConfigError(
                f"{name} of {topic} is {forbidden}: a table from there is empty",
                hint=f"Give {default}, an offset, or {side}Timestamp.",
            )
    return places


def _places_by_topic(name: str, text: str, topics: tuple[str, ...]) -> dict[str, Place]:
    """Kafka's JSON: `{"topic": {"0": offset}}`, with -2 for earliest and -1 for latest."""
    places = {
        normalise_topic(topic): _place(name, topic, at) for topic, at in _json_object(name, text).items()
    }
    strangers, missing = sorted(places.keys() - set(topics)), sorted(set(topics) - places.keys())
    if strangers or missing:
        what = f"has no offset for {missing}" if missing else f"names {strangers}, which are not subscribed"
        raise ConfigError(f"{name} {what}", hint=f"Give an offset for each of {list(topics)} and no other.")
    return places


def _place(name: str, topic: str, at: object) -> Place:
    hint = f'Write {name} as {{"{topic}": {{"0": 100}}}}; -2 is earliest, -1 is latest.'
    if not isinstance(at, dict) or list(at) != ["0"]:
        raise ConfigError(f"{name} of {topic} is {at!r}; a topic of Ister has just partition 0", hint=hint)
    number = at["0"]
    if not isinstance(number, int) or isinstance(number, bool) or number < -2:
        raise ConfigError(f"{name} of {topic} is {number!r}, which is no offset", hint=hint)
    return {-2: "earliest", -1: "latest"}.get(number, number)


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name} is {text!r}, which is no JSON: {error}", hint=_GUIDE) from error
    if not isinstance(found, dict):
        raise ConfigError(f"{name} is {text!r}, which is no JSON object", hint=_GUIDE)
    return found


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(f"option {name} is {text!r}", hint="Give true or false.")
    return text == "true"


def _count(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    number = _number(name, text, "a whole number from 1")
    if number == 0:
        raise ConfigError(f"option {name} is 0", hint="Give a whole number from 1.")
    return number


def _number(name: str, text: str, what: str) -> int:
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit() and len(stripped) < 19):
        raise ConfigError(f"option {name} is {text!r}", hint=f"Give {what}.")
    return int(stripped)
