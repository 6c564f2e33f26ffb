"""Counters, gauges and histograms cheap enough for the hot path.

Plain numbers, changed on the event loop only; a registry turns them into Prometheus families when somebody
asks. (prometheus-client's own objects take a lock at each change, about a microsecond on a path that
has ten in all.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

SECONDS = (
    0.00005,
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    5.0,
)
COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


class Counter:
    __slots__ = ("help", "name", "value")

    def __init__(self, name: str, help: str) -> None:  # noqa: A002 (Prometheus' own word)
        self.name, self.help, self.value = name, help, 0

    def add(self, amount: int = 1) -> None:
        self.value += amount


class Gauge:
    """A number that is read when asked for."""

    __slots__ = ("help", "name", "read")

    def __init__(self, name: str, help: str, read: Callable[[], float]) -> None:  # noqa: A002
        self.name, self.help, self.read = name, help, read


class Histogram:
    __slots__ = ("bounds", "counts", "help", "name", "total")

    def __init__(self, name: str, help: str, bounds: tuple[float, ...] = SECONDS) -> None:  # noqa: A002
        self.name, self.help, self.bounds = name, help, bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


Metric = Counter | Gauge | Histogram


class Registry:
    """All metrics of one broker, in the order in which they were added."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def add(self, *metrics: Metric) -> None:
        for metric in metrics:
            self._metrics[metric.name] = metric

    def all(self) -> list[Metric]:
        return list(self._metrics.values())

    def counted(self, name: str) -> int:
        """What one counter is at."""
        metric = self._metrics[name]
        assert isinstance(metric, Counter)
        return metric.value

    def values(self) -> dict[str, float]:
        """Every metric as one number or two, for those who want no histogram."""
        found: dict[str, float] = {}
        for metric in self._metrics.values():
            match metric:
                case Counter():
                    found[metric.name] = metric.value
                case Gauge():
                    found[metric.name] = metric.read()
                case Histogram():
                    found[metric.name + "_count"] = sum(metric.counts)
                    found[metric.name + "_sum"] = metric.total
        return found

    def collect(self) -> Iterator[Any]:
        """prometheus-client's interface for a custom collector."""
        from prometheus_client import core

        for metric in self._metrics.values():
            name = "ister_" + metric.name
            match metric:
                case Counter():
                    yield core.CounterMetricFamily(name, metric.help, value=metric.value)
                case Gauge():
                    yield core.GaugeMetricFamily(name, metric.help, value=metric.read())
                case Histogram():
                    yield core.HistogramMetricFamily(name, metric.help, _buckets(metric), metric.total)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    below = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    return buckets
