"""What was asked of Ister's speed and memory, and where in a run's results the answer is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

Results = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """One figure: what it is, how it is shown, and the bound that it should keep."""

    what: str
    path: tuple[str, str]
    show: Callable[[float], str]
    least: float | None = None
    most: float | None = None

    def value(self, results: Results) -> float:
        scenario, field = self.path
        return float(results["ister"][scenario][field])

    @property
    def bound(self) -> str:
        if self.least is not None:
            return f"at least {self.show(self.least)}"
        return f"at most {self.show(self.most)}" if self.most is not None else "stated"

    def verdict(self, results: Results) -> str:
        value = self.value(results)
        if self.least is not None:
            return "yes" if value >= self.least else "**no**"
        if self.most is not None:
            return "yes" if value <= self.most else "**no**"
        return ""


def rate(value: float) -> str:
    return f"{value / 1e6:.2f} M records/s" if value >= 1e6 else f"{value:,.0f} records/s"


def throughput(value: float) -> str:
    return f"{value / 1000:.2f} GB/s" if value >= 1000 else f"{value:.0f} MB/s"


def milliseconds(value: float) -> str:
    return f"{value:.3g} ms"


def seconds(value: float) -> str:
    return f"{value:.3g} s"


def number(value: float) -> str:
    return f"{value:,.0f}"


def of_raw(value: float) -> str:
    return f"{value:.2f} of raw"


def times_raw(value: float) -> str:
    return f"{value:.2f} times raw"


def times(value: float) -> str:
    return f"{value:.2f} times"


def part(value: float) -> str:
    return f"{value:.2f}"


def percent(value: float) -> str:
    return f"{value:.1f} %"


def megabytes(value: float) -> str:
    return f"{value:.0f} MB"


ASKED: Final = (
    Asked("100 B records, batches of 1,000", ("append", "records_per_s"), rate, least=2.5e6),
    Asked("1 KiB records, batches of 1,000", ("append_1k", "ratio_to_raw"), of_raw, least=0.6),
    Asked("1 KiB records, as throughput", ("append_1k", "mb_per_s"), throughput),
    Asked(
        "a lone 100 B record, p50, against a bare write and sync",
        ("latency", "p50_ratio_to_raw"),
        times_raw,
        most=2.5,
    ),
    Asked("a lone 100 B record, p50", ("latency", "p50_ms"), milliseconds),
    Asked("64 connections, 16 lone appends in flight on each", ("fanin", "records_per_s"), rate, least=1e5),
    Asked("catch-up read of 1 KiB records, as frames", ("read", "mb_per_s"), throughput, least=1000),
    Asked("the same as Arrow batches, against frames", ("read", "arrow_ratio_to_frames"), part, least=0.8),
    Asked("single records in a plain Python loop", ("read", "records_per_s"), rate, least=5e5),
    Asked("a fetch of one record from the hot tail, p50", ("read", "fetch_hot_p50_ms"), milliseconds),
    Asked("a fetch of one record from disk, p50", ("read", "fetch_disk_p50_ms"), milliseconds),
    Asked("1,000 topics in turn, against one topic", ("topics", "ratio_to_one_topic"), part, least=0.5),
    Asked(
        "three nodes, a producer at full speed over 1,000 rollovers: longest pause at one, p99",
        ("rollover", "stall_p99_ms"),
        milliseconds,
        most=30,
    ),
    Asked("errors that this producer saw", ("rollover", "errors"), number, most=0),
    Asked(
        "kill -9 of the metadata leader: metadata writable again, longest of 20",
        ("election", "max_s"),
        seconds,
        most=2,
    ),
    Asked("an append to another node meanwhile, p99", ("election", "append_p99_ms"), milliseconds),
    Asked("the same before the kill, p99", ("election", "append_before_p99_ms"), milliseconds),
    Asked(
        "three nodes, three replicas, a topic of each node: 100 B records, batches of 1,000",
        ("replicated", "records_per_s"),
        rate,
        least=7e5,
    ),
    Asked(
        "the same into one topic",
        ("replicated", "one_topic_records_per_s"),
        rate,
        least=7e5,
    ),
    Asked("1 KiB records, three topics", ("replicated_1k", "mb_per_s"), throughput, least=100),
    Asked("1 KiB records, one topic", ("replicated_1k", "one_topic_mb_per_s"), throughput, least=100),
    Asked(
        "a lone 100 B record with three replicas, p50, against one replica",
        ("replicated_latency", "p50_ratio_to_one_replica"),
        times,
        most=3,
    ),
    Asked(
        "kill -9 of the node that leads a topic: appends acknowledged again, p50 of 20",
        ("failover", "p50_s"),
        seconds,
        most=2,
    ),
    Asked("the longest of these", ("failover", "max_s"), seconds),
    Asked("broker memory, the most in any of these", ("all", "rss_mb"), megabytes, most=300),
    Asked("`ister --help`", ("help", "p50_ms"), milliseconds, most=150),
)
SUBSCRIPTIONS_ASKED: Final = (
    Asked("one consumer, acknowledging batches", ("exclusive", "records_per_s"), rate, least=1.5e6),
    Asked("eight consumers of a shared one", ("shared", "records_per_s"), rate, least=5e5),
    Asked("published to delivered at 20,000 a second, p50", ("delivery", "p50_ms"), milliseconds, most=2),
    Asked("published to delivered at 20,000 a second, p99", ("delivery", "p99_ms"), milliseconds, most=10),
    Asked("published to acknowledged meanwhile, p99", ("delivery", "acknowledged_p99_ms"), milliseconds),
    Asked("a bare write and sync at that pace, p50", ("delivery", "raw_p50_ms"), milliseconds),
    Asked("a bare write and sync at that pace, p99", ("delivery", "raw_p99_ms"), milliseconds),
    Asked("eight consumers, batches of 100 shared out", ("shared_small", "records_per_s"), rate),
    Asked("eight consumers of a key-shared one, 1,000 keys", ("key_shared", "records_per_s"), rate),
    Asked("1,000 idle subscriptions, of a core", ("idle", "cpu_percent"), percent, most=2),
    Asked("1,000 idle subscriptions, memory", ("idle", "rss_grown_mb"), megabytes, most=50),
)
"""Of `results["subscriptions"]["ister"]`, the first four of the peers there too."""
