"""Which topics a query reads: a list of them, or all whose names match a pattern.

With a pattern the topics are those that match at the moment of asking. Those of system namespaces match none:
what Ister keeps for itself is nobody's data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ister.errors import ConfigError
from ister.names import DEFAULT_NAMESPACE, is_system, normalise_topic
from ister.spark.option_values import Given, json_object

WAYS: Final = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True)
class Subscription:
    topics: tuple[str, ...] = ()
    """Full names, in the order given, each once; none with a pattern."""
    pattern: str | None = None
    """A regular expression for the whole name."""

    @cached_property
    def _matches(self) -> re.Pattern[str]:
        return re.compile(self.pattern or "")

    def among(self, existing: Iterable[str]) -> tuple[str, ...]:
        """The topics that are read, if these exist. Those of a list are read whether they exist or not."""
        if self.pattern is None:
            return self.topics
        return tuple(sorted(name for name in existing if not is_system(name) and self._match(name)))

    def _match(self, name: str) -> bool:
        """By its full name, or by the short one of a topic in the default namespace."""
        short = name.removeprefix(f"{DEFAULT_NAMESPACE}/")
        return any(self._matches.fullmatch(spelling) for spelling in {name, short})


def parse_subscription(given: Given) -> Subscription:
    ways = [way for way in WAYS if way.lower() in given]
    if len(ways) != 1:
        what = f"{' and '.join(ways)} are all given" if ways else f"none of {', '.join(WAYS)} is given"
        raise ConfigError(what, hint="Say what to read in one way: .option('subscribe', 'topic,other').")
    if "subscribepattern" in given:
        return _pattern(given["subscribepattern"])
    if "assign" in given:
        names = _assigned(given["assign"])
    else:
        names = [name.strip() for name in given["subscribe"].split(",") if name.strip()]
    topics = tuple(dict.fromkeys(map(normalise_topic, names)))
    if not topics:
        raise ConfigError(f"there is no topic in {ways[0]}", hint="Name at least one.")
    return Subscription(topics)


def _pattern(text: str) -> Subscription:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"subscribePattern is {text!r}, which is no regular expression: {error}",
            hint="Write it for whole names, for example 'orders-.*' or 'shop/.*'.",
        ) from error
    if not text.strip():
        raise ConfigError("subscribePattern is empty", hint="Give '.*' for every topic.")
    return Subscription(pattern=text)


def _assigned(text: str) -> list[str]:
    assigned = json_object("assign", text)
    for topic, partitions in assigned.items():
        if partitions != [0]:
            raise ConfigError(
                f"assign names partitions {partitions!r} of {topic}",
                hint='A topic of Ister is one line, partition 0: {"topic": [0]}.',
            )
    return list(assigned)
