"""Where reading begins and ends, as options say it: by time, by time for each topic, or by offset.

The first of these that is given counts, as with Kafka.

The JSON is Kafka's: a topic, its only partition 0, and there an offset or a time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ister.errors import ConfigError
from ister.names import normalise_topic
from ister.spark.option_values import Given, json_object, number

STRATEGIES: Final = ("error", "latest")
"""What a start by time is if nothing was appended since."""


class Moment(NamedTuple):
    """The first record that was appended at or after a time."""

    time_us: int
    must_be_there: bool = False
    """Whether it is an error that there is no such record yet; else it is the end."""


Place = str | int | Moment
"""`earliest`, `latest`, an offset, or a time."""


@dataclass(frozen=True)
class Places:
    """One place for each topic."""

    option: str
    """What said so, for messages."""
    everywhere: Place | None
    """The same for all topics; None if each has its own."""
    by_topic: Mapping[str, Place] = field(default_factory=dict)

    def of(self, topic: str) -> Place:
        return self.by_topic[topic] if self.everywhere is None else self.everywhere

    def check(self, topics: Collection[str]) -> None:
        """That each of these topics has a place, and no other one."""
        if self.everywhere is not None:
            return
        strangers = sorted(self.by_topic.keys() - set(topics))
        missing = sorted(set(topics) - self.by_topic.keys())
        if strangers or missing:
            what = f"says nothing of {missing}" if missing else f"names {strangers}, which are not subscribed"
            raise ConfigError(
                f"{self.option} {what}", hint=f"Give a place for each of {sorted(topics)} and no other."
            )


def starting_places(given: Given, default: str, *, is_stream: bool) -> Places:
    """A table can't begin at its end; a stream may, and does if nothing else is said."""
    must_be_there = _strategy(given) == "error"
    places = _places(given, "starting", default, must_be_there)
    if not is_stream:
        _refuse(places, "latest", "a table from there is empty: give earliest, an offset, or a time")
    return places


def ending_places(given: Given) -> Places:
    places = _places(given, "ending", "latest", False)
    _refuse(places, "earliest", "a table up to there is empty: give latest, an offset, or a time")
    return places


def _strategy(given: Given) -> str:
    name = "startingOffsetsByTimestampStrategy"
    strategy = given.get(name.lower(), "error").strip().lower()
    if strategy not in STRATEGIES:
        raise ConfigError(f"option {name} is {strategy!r}", hint=f"Give {' or '.join(STRATEGIES)}.")
    return strategy


def _places(given: Given, side: str, default: str, must_be_there: bool) -> Places:
    timestamp, by_topic = given.get(f"{side}timestamp"), given.get(f"{side}offsetsbytimestamp")
    if timestamp is not None:
        name = f"{side}Timestamp"
        milliseconds = number(name, timestamp, "milliseconds since 1970")
        return Places(name, Moment(milliseconds * 1000, must_be_there))
    if by_topic is not None:
        name = f"{side}OffsetsByTimestamp"
        times = {
            topic: Moment(_in_partition_0(name, topic, at, 0) * 1000, must_be_there)
            for topic, at in _topics_in(name, by_topic).items()
        }
        return Places(name, None, times)
    name, text = f"{side}Offsets", given.get(f"{side}offsets", default)
    if text.strip().lower() in ("earliest", "latest"):
        return Places(name, text.strip().lower())
    offsets = {topic: _in_partition_0(name, topic, at, -2) for topic, at in _topics_in(name, text).items()}
    words = {-2: "earliest", -1: "latest"}
    return Places(name, None, {topic: words.get(offset, offset) for topic, offset in offsets.items()})


def _topics_in(name: str, text: str) -> dict[str, object]:
    return {normalise_topic(topic): at for topic, at in json_object(name, text).items()}


def _in_partition_0(name: str, topic: str, at: object, least: int) -> int:
    meaning = "-2 is earliest, -1 is latest" if least else "in milliseconds since 1970"
    hint = f'Write {name} as {{"{topic}": {{"0": 100}}}}; {meaning}.'
    if not isinstance(at, dict) or list(at) != ["0"]:
        raise ConfigError(f"{name} of {topic} is {at!r}; a topic of Ister has just partition 0", hint=hint)
    found = at["0"]
    if not isinstance(found, int) or isinstance(found, bool) or found < least:
        raise ConfigError(f"{name} of {topic} is {found!r}", hint=hint)
    return found


def _refuse(places: Places, forbidden: str, why: str) -> None:
    if places.everywhere == forbidden:
        raise ConfigError(f"{places.option} is {forbidden}", hint=f"{why[0].upper()}{why[1:]}.")
    for topic, place in places.by_topic.items():
        if place == forbidden:
            raise ConfigError(
                f"{places.option} of {topic} is {forbidden}", hint=f"{why[0].upper()}{why[1:]}."
            )
