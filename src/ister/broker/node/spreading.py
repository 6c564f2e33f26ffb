"""Which topics should be led elsewhere, so that nodes carry alike: pure functions of what they report.

A node's burden is a number, by the strategy; a topic is a part of its leader's. How unlike the nodes are is
the coefficient of variation of their burdens: the standard deviation by the mean. While it is above the
threshold, the topic goes from the node with most to the one with least whose going brings these two closest
together; one that would only make the other too heavy stays where it is, so that nothing is moved to and
fro.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, pstdev
from typing import NamedTuple


class Strategy(StrEnum):
    FAIR = "fair"
    """By how many topics a node leads."""
    BALANCED = "balanced"
    """0.3 by topics, 0.35 by CPU, 0.35 by memory, each as a share of the mean."""
    WEIGHTED = "weighted"
    """By the bytes that go in and out."""


@dataclass(frozen=True)
class TopicLoad:
    uid: int
    name: str
    bytes_in: float
    """A second."""
    may_move: bool = True


@dataclass(frozen=True)
class NodeLoad:
    """What one node reports."""

    member: int
    topics: Sequence[TopicLoad]
    bytes_in: float
    bytes_out: float
    cpu: float
    """Of one core: 1.0 is one that is busy all the time."""
    memory: float


class Shift(NamedTuple):
    topic: TopicLoad
    source: int
    target: int


class Plan(NamedTuple):
    burdens: dict[int, float]
    """By member, as they are."""
    before: float
    """The coefficient of variation as it is."""
    after: float
    """... and as it would be, by what is known of the topics."""
    shifts: list[Shift]


def plan(nodes: Sequence[NodeLoad], strategy: Strategy, threshold: float, most: int) -> Plan:
    """The next moves, at most so many of them."""
    burdens = dict(zip((node.member for node in nodes), _burdens(nodes, strategy), strict=True))
    current, left = dict(burdens), {node.member: list(_parts(node, burdens, strategy)) for node in nodes}
    before = variation(current.values())
    shifts: list[Shift] = []
    while len(shifts) < most and variation(current.values()) > threshold:
        source = max(current, key=lambda member: (current[member], -member))
        target = min(current, key=lambda member: (current[member], member))
        gap = current[source] - current[target]
        fitting = [(topic, part) for topic, part in left[source] if topic.may_move and 0 < part < gap]
        if not fitting:
            break
        topic, part = min(fitting, key=lambda one: (abs(gap - 2 * one[1]), one[0].uid))
        left[source].remove((topic, part))  # once in a plan: nothing moves twice
        current[source], current[target] = current[source] - part, current[target] + part
        shifts.append(Shift(topic, source, target))
    return Plan(burdens, before, variation(current.values()), shifts)


def variation(burdens: Iterable[float]) -> float:
    found = list(burdens)
    mean = fmean(found) if found else 0.0
    return pstdev(found) / mean if mean > 0 else 0.0


def _burdens(nodes: Sequence[NodeLoad], strategy: Strategy) -> list[float]:
    match strategy:
        case Strategy.FAIR:
            return [float(len(node.topics)) for node in nodes]
        case Strategy.WEIGHTED:
            return [node.bytes_in + node.bytes_out for node in nodes]
        case Strategy.BALANCED:
            topics = _shares([float(len(node.topics)) for node in nodes])
            cpu, memory = _shares([node.cpu for node in nodes]), _shares([node.memory for node in nodes])
            return [0.3 * t + 0.35 * c + 0.35 * m for t, c, m in zip(topics, cpu, memory, strict=True)]


def _shares(values: list[float]) -> list[float]:
    mean = fmean(values) if values else 0.0
    return [value / mean if mean > 0 else 1.0 for value in values]


def _parts(
    node: NodeLoad, burdens: dict[int, float], strategy: Strategy
) -> Iterable[tuple[TopicLoad, float]]:
    """Each topic's part of its node's burden: by its bytes, or evenly where these don't count."""
    written = sum(topic.bytes_in for topic in node.topics)
    for topic in node.topics:
        is_even = strategy is Strategy.FAIR or written <= 0
        share = 1 / len(node.topics) if is_even else topic.bytes_in / written
        yield topic, burdens[node.member] * share
