"""From seconds and latencies to the fields that a bench reports.

The names of the fields are fixed, so that scripts can rely on them. MB is a million bytes of record values;
the raw figure counts the same records, in the time that the bare loop took for all that a broker writes for
them. So `ratio_to_raw` is `raw seconds / measured seconds`, and 1 is the disk's own speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

Fields = dict[str, float | int | str]


@dataclass(frozen=True)
class Repetition:
    """One measured phase and the bare loop beside it."""

    records: int
    record_bytes: int
    seconds: float
    latencies: Sequence[float]
    raw_seconds: float
    cycle_bytes: int

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds


def percentile(ordered: Sequence[float], part: float) -> float:
    """The value that `part` of all are not above; `ordered` is sorted and not empty."""
    return ordered[min(len(ordered) - 1, max(0, -int(-len(ordered) * part // 1) - 1))]


def milliseconds(latencies: Sequence[float]) -> Fields:
    ordered = sorted(latencies)
    return {
        name: rounded(percentile(ordered, part) * 1000)
        for name, part in (("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999))
    }


def rounded(value: float) -> float:
    """Four digits that mean something; more would be noise."""
    return float(f"{value:.4g}")


UNSTEADY: Final = 1.5


def unsteady(fields: Mapping[str, Any]) -> str:
    """What to say where the bare loop, which does the same each time, was so much faster once than another
    time: the disk, or who shares it, changed under the bench. Empty if it did not."""
    least, most = fields.get("raw_least_mb_per_s", 0), fields.get("raw_most_mb_per_s", 0)
    if most <= UNSTEADY * least:
        return ""
    return (
        f"the disk's own figure was {least:.4g} to {most:.4g} MB/s from one repetition to another: something "
        "else used it, or it is no steady disk. Measure again before you compare"
    )


def summarise(repetitions: Sequence[Repetition], rss_bytes: int) -> Fields:
    """The median of the repetitions; latencies of all of them together."""
    raw = [one.record_bytes / one.raw_seconds for one in repetitions]
    bytes_per_s = median(one.record_bytes / one.seconds for one in repetitions)
    return {
        "records_per_s": rounded(median(one.records_per_s for one in repetitions)),
        "mb_per_s": rounded(bytes_per_s / 1e6),
        **milliseconds([latency for one in repetitions for latency in one.latencies]),
        "rss_mb": rounded(rss_bytes / 1e6),
        "raw_mb_per_s": rounded(median(raw) / 1e6),
        "raw_least_mb_per_s": rounded(min(raw) / 1e6),
        "raw_most_mb_per_s": rounded(max(raw) / 1e6),
        "ratio_to_raw": rounded(median(one.raw_seconds / one.seconds for one in repetitions)),
        "cycle_bytes": round(median(one.cycle_bytes for one in repetitions)),
        "repeats": len(repetitions),
    }
