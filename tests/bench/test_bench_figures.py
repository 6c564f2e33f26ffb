"""Percentiles, medians, the bare loop, and what becomes of a run: the table, the pictures."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from bench.asked import ASKED, SUBSCRIPTIONS_ASKED
from bench.peers.peer import Found, Missing
from bench.plot import Bar, bar_chart
from bench.report import END, START, draw, figures, fill_figures
from bench.run import keep, measure_peer

from ister.bench.figures import Fields, Repetition, percentile, summarise, unsteady
from ister.bench.raw import raw_file, time_reads, time_writes
from ister.bench.workload import Workload, records_like
from ister.errors import ConfigError

FIELDS = {
    "records_per_s": 1.0,
    "mb_per_s": 2.0,
    "p50_ms": 3.0,
    "p99_ms": 4.0,
    "p999_ms": 5.0,
    "rss_mb": 6.0,
    "raw_mb_per_s": 7.0,
    "ratio_to_raw": 0.5,
}


def a_run() -> dict[str, Any]:
    scenarios: dict[str, dict[str, float]] = {}
    for asked in ASKED:
        scenario, field = asked.path
        found = scenarios.setdefault(scenario, dict(FIELDS))
        bounds = [bound for bound in (asked.least, asked.most) if bound is not None]
        found[field] = bounds[0] if bounds else 1.0
    scenarios["latency"]["raw_p50_ms"] = 0.1
    return {
        "quick": False,
        "machine": {
            "cores": 2,
            "memory_gb": 8.0,
            "filesystem": "ext4",
            "kernel": "Linux 6",
            "python": "3.11",
        },
        "ister": scenarios,
        "peers": {
            "redis": {"status": "missing", "how": "apt-get install redis-server"},
            "nats": {"version": "9", "how": "unsynced", "synced": False, "append": FIELDS, "latency": FIELDS},
        },
    }


@pytest.mark.parametrize(
    ("part", "expected"), [(0.5, 50.0), (0.99, 99.0), (0.999, 100.0), (1.0, 100.0), (0.0, 1.0)]
)
def test_a_percentile_is_the_value_that_so_many_are_not_above(part: float, expected: float) -> None:
    assert percentile([float(value) for value in range(1, 101)], part) == expected


def test_the_median_is_reported_and_the_ratio_is_of_seconds_for_the_same_records() -> None:
    repetitions = [Repetition(100, 1_000_000, seconds, [0.001], 0.5, 10) for seconds in (1.0, 2.0, 50.0)]
    found = summarise(repetitions, 3_000_000)
    assert found["records_per_s"] == 50.0
    assert found["mb_per_s"] == 0.5
    assert found["raw_mb_per_s"] == 2.0
    assert found["ratio_to_raw"] == 0.25
    assert found["rss_mb"] == 3.0
    assert found["repeats"] == 3


def test_the_bare_loop_writes_all_bytes_in_cycles_of_the_size_asked_for(tmp_path: Path) -> None:
    with raw_file(tmp_path) as file:
        assert len(time_writes(file, 1000, 300)) == 4
        assert len(time_writes(file, 200, 200, position=1000)) == 1
        assert b"\0" * 8 not in file.read(1200, 0)
        assert file.read(1, 1200) in (b"", b"\0")
        assert time_reads(file, 1200, 500) > 0


def test_records_are_of_the_size_asked_for_and_the_same_in_every_run() -> None:
    assert records_like(1, 3, 10) == records_like(1, 3, 10)
    assert records_like(1, 3, 10) != records_like(2, 3, 10)
    assert [len(record) for record in records_like(0, 3, 10)] == [10, 10, 10]
    assert records_like(0, 2, 0) == [b"", b""]


def test_a_workload_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="records is 0"):
        Workload(records=0, size=1, batch=1, in_flight=1)


def test_the_table_has_every_figure_asked_for_and_says_which_were_not_kept() -> None:
    run = a_run()
    kept = figures(run)
    for asked in ASKED:
        assert f"| {asked.what} | {asked.bound} |" in kept
    assert "**no**" not in kept
    run["ister"]["fanin"]["records_per_s"] = 99_999.0
    assert "| at least 100,000 records/s | 99,999 records/s | **no** |" in figures(run)


def test_subscriptions_have_a_table_of_their_own_once_they_were_measured() -> None:
    run = a_run()
    assert "subscriptions, 100 B" not in figures(run)
    own: dict[str, dict[str, float]] = {}
    for asked in SUBSCRIPTIONS_ASKED:
        scenario, field = asked.path
        bounds = [bound for bound in (asked.least, asked.most) if bound is not None]
        own.setdefault(scenario, {})[field] = bounds[0] if bounds else 1.0
    nats = {"status": "missing", "how": "apt-get install nats-server"}
    run["subscriptions"] = {"ister": own, "nats": nats}
    kept = figures(run)
    assert (
        "| **Ister** | 1.50 M records/s | 500,000 records/s | 2 ms | 10 ms | synced, then delivered |" in kept
    )
    assert "| NATS JetStream | missing |  |  |  | apt-get install nats-server |" in kept
    assert "not kept" not in kept
    own["delivery"]["p99_ms"] = 11.0
    assert "not kept: published to delivered at 20,000 a second, p99" in figures(run)


def test_a_quick_run_says_so() -> None:
    assert "One run on 2 cores" in figures(a_run())
    assert "One quick run on 2 cores" in figures({**a_run(), "quick": True})


def test_a_missing_peer_is_shown_as_missing_and_has_no_bar() -> None:
    run = a_run()
    assert "| Redis Streams | missing | | | | | | apt-get install redis-server |" in figures(run)
    assert "| Kafka | not asked for | | | | | |  |" in figures(run)
    picture = draw(run)["bench-append.svg"]
    assert "Redis" not in picture
    assert "NATS JetStream (not synced)" in picture


def test_both_kafkas_are_shown_with_the_disk_beside_them_and_the_lead_is_as_measured() -> None:
    run = a_run()
    slow, fast = {**FIELDS, "records_per_s": 0.5}, {**FIELDS, "records_per_s": 4.0}
    kept = {"version": "9", "how": "flushed", "synced": True}
    names = ("append", "append_1k", "latency")
    both = {**dict.fromkeys(names, slow), **{f"{name}_unsynced": fast for name in names}}
    run["peers"] |= {"kafka": {**kept, **both}, "kafka_replicated": {**kept, **both}}
    for name in ("append", "append_1k", "replicated", "replicated_1k"):
        run["ister"][name] |= {"records_per_s": 2.0}
    shown = figures(run)
    assert shown.count("| Kafka 9 | 0 records/s | 7 MB/s, 0.50 of it |") == 2
    assert shown.count("| Kafka 9 | 4 records/s | 7 MB/s, 0.50 of it |") == 2
    assert "before it acknowledges it, 4.0 times the records of 100 B and 4.0 times those of 1 KiB" in shown
    assert "no disk has yet, 0.5 times the records of 100 B" in shown, "not only where it flatters"
    assert "The disk itself" not in shown
    run["ister"]["append_1k"] |= {"raw_mb_per_s": 14.0}
    assert "the disk itself was not the same" in figures(run).lower()
    assert "(1 KiB on one node: 14 MB/s under Ister, 7 MB/s under Kafka)" in figures(run)
    picture = draw(run)["bench-append.svg"]
    assert "Kafka (not synced)" in picture and "Kafka:" in picture


def test_what_spark_does_is_shown_beside_what_else_was_measured_in_its_session() -> None:
    assert "Spark" not in figures(a_run())
    scans = {
        "all": {"ister": 2.5e6, "kafka_four_tuned": 1.6e6},
        "three": {"ister": 4e6, "kafka_four_tuned": 1e6},
    }
    written = {"ister": 1e6, "kafka_tuned_flushed": 0.5e6}
    spark = {"spark_scan": {"rows_per_s": scans}, "spark_writes": {"rows_per_s": written}}
    shown = figures({**a_run(), "spark": spark})
    assert "| **Ister** | 2.50 M rows/s | 4.00 M rows/s |" in shown
    assert "| Kafka, four partitions, large fetches | 1.60 M rows/s | 1.00 M rows/s |" in shown
    assert "| Kafka, the same, each batch synced | 0.50 M rows/s |" in shown


def test_what_history_has_is_shown_beside_what_was_asked() -> None:
    history = {
        "rows_per_s": {
            "all": {"history": 3e6},
            "three": {"history": 4e6},
            "count": 5e6,
            "frames_of_one_record": 0.4e6,
        },
        "of_parquet": {"all": 0.61, "three": 0.55},
        "broker_core": 0.001,
        "mb_per_s": {"tier": 250.0, "audit": 900.0},
    }
    growth = {"topics": {"100 GB": {"plan_s": 0.02}, "10000 segments": {"plan_s": 2.5}}}
    compact = {"mb_per_s": {"compact": 260.0, "copy": 500.0}}
    spark = {"spark_history": history, "spark_growth": growth, "spark_compact": compact}
    shown = figures({**a_run(), "spark": spark})
    assert "| compact into objects of 512 MB | at least 250 MB/s | 260 MB/s | yes |" in shown
    assert "| scan of all of Kafka's columns | at least 2.70 M rows/s | 3.00 M rows/s | yes |" in shown
    assert "of Parquet's rate | at least 0.90 | 0.55 | **no** |" in shown
    assert "| tier to zstd Parquet | at least 300 MB/s | 250 MB/s | **no** |" in shown
    assert "| planning a table of 100 GB | at most 2 s | 0.02 s | yes |" in shown
    assert "| planning a table of 10000 segments | at most 2 s | 2.5 s | **no** |" in shown


def test_a_disk_that_was_much_faster_once_than_another_time_is_pointed_out() -> None:
    steady = [Repetition(100, 1_000_000, 1.0, [0.001], seconds, 10) for seconds in (1.0, 1.2, 1.4)]
    assert unsteady(summarise(steady, 1)) == ""
    changed = [*steady, Repetition(100, 1_000_000, 1.0, [0.001], 0.5, 10)]
    assert "0.7143 to 2 MB/s from one repetition to another" in unsteady(summarise(changed, 1))


def test_a_peer_that_is_not_installed_is_reported_with_how_to_get_it() -> None:
    class Absent:
        name = "absent"

        def find(self) -> Found | Missing:
            return Missing("apt-get install absent")

        def run(self, work: Workload, lone: Workload, directory: Path) -> dict[str, Fields]:
            raise AssertionError("what is missing is not run")

    work = Workload(records=1, size=1, batch=1, in_flight=1)
    assert measure_peer(Absent(), work, work) == {"status": "missing", "how": "apt-get install absent"}


def test_only_what_is_between_the_marks_is_replaced() -> None:
    page = f"before\n{START}\nold\n{END}\nafter\n"
    filled = fill_figures(page, a_run())
    assert filled.startswith(f"before\n{START}\n|") and filled.endswith(f"{END}\nafter\n")
    assert "old" not in filled
    assert fill_figures(filled, a_run()) == filled
    with pytest.raises(ValueError, match="figures:start"):
        fill_figures("no marks", a_run())


def test_a_run_is_kept_as_results_pictures_and_table(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"{START}\n{END}\n")
    keep(a_run(), tmp_path)
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    pictures = {"docs/pictures/bench-append.svg", "docs/pictures/bench-latency.svg"}
    assert made == {"README.md", "docs/bench/results.json", *pictures}
    table = (tmp_path / "README.md").read_text()
    assert all(path in made for path in re.findall(r"!\[.*?\]\((.*?)\)", table))


def test_a_chart_is_well_formed_and_its_bars_are_in_proportion() -> None:
    chart = bar_chart("a < b & c", "note", [Bar("one", 10, "10"), Bar("half", 5, "5", is_own=True)])
    root = ET.fromstring(chart)
    bars = [float(found.attrib["width"]) for found in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert bars[0] == pytest.approx(2 * bars[1])
    assert "prefers-color-scheme: dark" in chart
