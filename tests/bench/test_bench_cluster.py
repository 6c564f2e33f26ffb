"""What is made of a cluster's measured times: stalls by rollover, an election, its picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from bench.cluster.calls import Call
from bench.cluster.election import Run, measure_election, summarise_runs
from bench.cluster.rollover import Acknowledged, describe_stalls, measure_rollover, stalls
from bench.cluster.timeline import draw_timeline, height_of

SVG = "{http://www.w3.org/2000/svg}"


def an_election(writable_s: float = 0.5, append_s: float = 0.001) -> Run:
    """Killed at 100: requests before take a moment, writes begun afterwards wait for the new leader."""
    run = Run(killed=2, killed_at=100.0)
    again = 100.0 + writable_s
    for step in range(400):
        began = 99.0 + step / 100
        run.writes.append(Call(began, began + 0.004 if not 100 <= began < again else again + step / 1e6))
    for node_id in (1, 3):
        run.appends[node_id] = [Call(99.0 + step / 100, 99.0 + step / 100 + append_s) for step in range(400)]
    return run


def test_the_longest_gap_belongs_to_the_rollover_that_is_nearest() -> None:
    acknowledged = [
        Acknowledged(0.000, 100),
        Acknowledged(0.001, 200),
        Acknowledged(0.021, 300),  # 20 ms at the first boundary
        Acknowledged(0.022, 400),
        Acknowledged(0.023, 500),
        Acknowledged(0.033, 600),  # 10 ms at the second
        Acknowledged(0.034, 700),
    ]
    assert stalls(acknowledged, [200, 500]) == [pytest.approx(0.020), pytest.approx(0.010)]


def test_every_gap_counts_also_those_far_from_a_rollover() -> None:
    acknowledged = [Acknowledged(0.0, 100), Acknowledged(0.5, 200), Acknowledged(0.6, 5000)]
    assert stalls(acknowledged, [1000, 5000]) == [pytest.approx(0.5), pytest.approx(0.1)]


def test_stalls_are_told_in_milliseconds_with_their_worst() -> None:
    found = describe_stalls([number / 1000 for number in range(1, 101)], "steady_")
    assert found == {"steady_stall_p50_ms": 50, "steady_stall_p99_ms": 99, "steady_stall_max_ms": 100}


def test_metadata_is_writable_when_the_first_write_begun_after_the_kill_is_done() -> None:
    run = an_election(0.5)
    run.writes.append(Call(99.999, 100.05))  # it was under way at the kill, and says nothing of the election
    assert run.writable_s == pytest.approx(0.5, abs=0.01)


def test_appends_that_stood_still_with_the_metadata_are_seen() -> None:
    fine = summarise_runs([an_election(0.5)])
    assert fine["append_max_ms"] == pytest.approx(1)
    assert fine["append_silence_max_ms"] == pytest.approx(10, abs=2)
    stopped = an_election(0.5)
    stopped.appends[3] = [call for call in stopped.appends[3] if not 100 < call.began < 100.4]
    stopped.appends[3].insert(100, Call(100.0, 100.4))
    found = summarise_runs([stopped])
    assert found["append_max_ms"] == pytest.approx(400, rel=0.1)
    assert found["append_silence_max_ms"] > 300
    assert found["append_before_max_ms"] == pytest.approx(1)


def test_elections_over_the_bound_are_counted() -> None:
    found = summarise_runs([an_election(0.5), an_election(2.5), an_election(0.7)])
    assert (found["runs"], found["over_2_s"]) == (3, 1)
    assert found["max_s"] == pytest.approx(2.5, abs=0.02)
    assert found["p50_s"] == pytest.approx(0.7, abs=0.02)
    assert found["timeline"]["writable_s"] == found["p50_s"]


def test_the_timeline_is_well_formed_and_its_dots_lie_by_time_and_duration() -> None:
    picture = draw_timeline(summarise_runs([an_election(0.5)])["timeline"])
    root = ET.fromstring(picture)
    dots = [dot.attrib for dot in root.iter(f"{SVG}circle")]
    writes = [float(dot["cy"]) for dot in dots if dot["class"] == "write" and dot["r"] == "2"]
    assert min(writes) == pytest.approx(height_of(500), abs=2)
    appends = {float(dot["cy"]) for dot in dots if dot["class"] == "append" and dot["r"] == "2"}
    assert all(y == pytest.approx(height_of(1), abs=0.2) for y in appends)
    assert height_of(10) < height_of(1), "longer is higher"
    assert "writable again after 0.50 s" in picture
    assert "prefers-color-scheme: dark" in picture


@pytest.mark.slow
def test_a_small_run_of_each_has_every_field(tmp_path: Path) -> None:
    rollover = measure_rollover(tmp_path / "rollover", 3)
    assert rollover["rollovers"] >= 3
    assert (rollover["errors"], rollover["steady_errors"]) == (0, 0)
    assert 0 < rollover["stall_p50_ms"] <= rollover["stall_p99_ms"] <= rollover["stall_max_ms"]
    election = measure_election(tmp_path / "election", 1)
    assert election["runs"] == 1
    assert election["p50_s"] == election["max_s"] > 0
    assert set(election["timeline"]["appends_ms"]) < {"node 1", "node 2", "node 3"}
    assert f"node {election['timeline']['killed_node']}" not in election["timeline"]["appends_ms"]
