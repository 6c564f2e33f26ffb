"""What is made of the measured times of replicated topics: copies, a failover and its picture, the tables."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from bench.cluster.calls import Call, binned
from bench.cluster.copies import UNDER_WAY_RECORDS, what_is_missing
from bench.cluster.nodes import ClusterProcesses
from bench.cluster.timeline import height_of
from bench.machine import processor_seconds
from bench.peers.kafka import write_config
from bench.replication import raw
from bench.replication.failover import Run, measure_failover, summarise_runs
from bench.replication.lone import describe_lone
from bench.replication.measure import measure_replicated
from bench.replication.picture import draw_failover
from bench.replication.raw import COPIES, time_copies
from bench.report import replicated_table

from ister.bench.raw import time_writes
from ister.io.disk import File
from ister.protocol.messages import CopyDescription, SegmentDescription, TopicDescription, TopicSettings

SVG = "{http://www.w3.org/2000/svg}"


def a_topic(*segments: tuple[str, list[int], list[CopyDescription]]) -> TopicDescription:
    found = [
        SegmentDescription(number, number, 0, 0, 0, 1, state == "sealed", 0, 0, state, replicas, [], copies)
        for number, (state, replicas, copies) in enumerate(segments, 1)
    ]
    return TopicDescription("default/t", 1, 0, 0, 0, TopicSettings(), found, 0, [])


WHOLE = ("sealed", [1, 2, 3], list[CopyDescription]())


def test_a_topic_with_all_its_copies_lacks_nothing() -> None:
    under_way = CopyDescription(2, "behind", lacks=3)
    assert what_is_missing(a_topic(WHOLE, ("open", [3, 1, 2], [under_way])), 3) == ""


@pytest.mark.parametrize(
    ("segment", "said"),
    [
        (("sealed", [1, 2], []), "default/t:2 is on nodes [1, 2] only"),
        (
            ("sealed", [1, 2, 3], [CopyDescription(3, "incomplete", why="wait")]),
            "is incomplete on node 3: wait",
        ),
        (("sealed", [1, 2, 3], [CopyDescription(3, "unknown")]), "is unknown on node 3"),
        (("open", [1, 2, 3], [CopyDescription(2, "behind", 0, "not connected")]), "on node 2: not connected"),
        (("open", [1, 2, 3], [CopyDescription(2, "behind", UNDER_WAY_RECORDS + 1)]), "lacks 1001 records"),
        (("recovering", [1, 2, 3], []), "default/t:2 is recovering"),
    ],
)
def test_a_copy_that_is_not_whole_is_named(
    segment: tuple[str, list[int], list[CopyDescription]], said: str
) -> None:
    assert said in what_is_missing(a_topic(WHOLE, segment), 3)


def test_of_open_segments_alone_the_last_one_counts() -> None:
    found = a_topic(("sealed", [1, 2], []), ("open", [1, 2, 3], []))
    assert what_is_missing(found, 3)
    assert what_is_missing(found, 3, only_open=True) == ""
    assert what_is_missing(a_topic(WHOLE, ("open", [1, 2], [])), 3, only_open=True)


def test_a_node_whose_disk_was_taken_comes_back_through_the_others(tmp_path: Path) -> None:
    cluster = ClusterProcesses(tmp_path, {"log_level": "warning"})
    first = cluster.nodes[1]
    assert "--bootstrap-cluster" in first.options
    (first.directory / "data").mkdir(parents=True)
    cluster.wipe(1)
    assert not (first.directory / "data").exists()
    assert "--bootstrap-cluster" not in first.options
    joined = first.options[first.options.index("--join") + 1]
    ports = {
        node.options[node.options.index("--peer-port") + 1]
        for number, node in cluster.nodes.items()
        if number > 1
    }
    assert {address.rpartition(":")[2] for address in joined.split(",")} == ports
    assert "log_level=warning" in first.options


def a_failover(resumed_s: float = 1.5, *, led_metadata: bool = False) -> Run:
    """Killed at 100: appends to its topic wait for the next leader, those to another do not."""
    run = Run(killed=2, led_metadata=led_metadata, killed_at=100.0)
    again = 100.0 + resumed_s
    for step in range(500):
        began = 99.0 + step / 100
        run.appended(began, began + 0.002 if not 100 <= began < again else again + step / 1e6)
        run.others.append(Call(began, began + 0.001))
    run.arrivals = [call.ended for call in run.appends]
    return run


def test_a_failover_lasts_to_the_first_acknowledged_append_that_was_begun_after_the_kill() -> None:
    run = a_failover(1.5)
    run.appended(99.999, 100.01)  # it was under way at the kill, and says nothing of the failover
    assert run.resumed_s == pytest.approx(1.5, abs=0.01)
    assert run.reader_silence_s == pytest.approx(1.5, abs=0.02)


def test_a_run_is_resumed_by_an_append_that_was_begun_after_the_kill_only() -> None:
    run = Run(killed=1, killed_at=100.0)
    run.appended(99.9, 100.2)
    assert not run.resumed.is_set()
    run.appended(100.0, 101.0)
    assert run.resumed.is_set()


def test_failovers_over_the_bound_and_those_with_an_election_are_counted() -> None:
    found = summarise_runs([a_failover(1.2), a_failover(2.5, led_metadata=True), a_failover(1.4)])
    assert (found["runs"], found["over_2_s"], found["with_election"]) == (3, 1, 1)
    assert found["p50_s"] == pytest.approx(1.4, abs=0.02)
    assert found["max_s"] == found["with_election_p50_s"] == pytest.approx(2.5, abs=0.02)
    assert found["seconds"].split()[1].endswith("*")
    assert found["other_append_max_ms"] == pytest.approx(1)
    assert found["timeline"]["resumed_s"] == found["p50_s"]
    assert "with_election_p50_s" not in summarise_runs([a_failover()])


def test_the_picture_of_a_failover_has_the_wait_and_what_went_on() -> None:
    picture = draw_failover(summarise_runs([a_failover(1.5)])["timeline"])
    dots = [dot.attrib for dot in ET.fromstring(picture).iter(f"{SVG}circle")]
    waited = [float(dot["cy"]) for dot in dots if dot["class"] == "write" and dot["r"] == "2"]
    others = [float(dot["cy"]) for dot in dots if dot["class"] == "other-append" and dot["r"] == "2"]
    assert min(waited) == pytest.approx(height_of(1500), abs=2)
    assert all(y == pytest.approx(height_of(1), abs=0.2) for y in others)
    assert "acknowledged again after 1.5" in picture


def test_calls_lie_in_the_bin_of_their_beginning() -> None:
    calls = [Call(9.9, 12.0), Call(10.0, 10.001), Call(10.019, 10.022), Call(10.05, 10.06), Call(11.0, 12.0)]
    assert binned(calls, 10.0, 0.08) == "3 0 10 0"


def test_a_lone_record_is_compared_with_one_replica() -> None:
    found = describe_lone([0.002] * 9 + [0.2], [0.001] * 10, [0.0001] * 10)
    assert found["p50_ms"] == 2.0
    assert found["one_replica_p50_ms"] == 1.0
    assert found["p50_ratio_to_one_replica"] == 2.0
    assert found["raw_p50_ms"] == 0.1


def test_the_bare_loop_of_copies_writes_all_bytes_to_every_file_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []

    def write_and_look(file: File, total: int, cycle: int) -> list[float]:
        seconds = time_writes(file, total, cycle)
        written.append(file.read(total, 0))
        return seconds

    monkeypatch.setattr(raw, "time_writes", write_and_look)
    assert time_copies(tmp_path, 1000, 300) > 0
    assert [len(data) for data in written] == [1000] * COPIES
    assert all(b"\0" * 8 not in data for data in written)
    assert list(tmp_path.iterdir()) == []


def test_processor_time_is_of_the_process_that_is_asked_for() -> None:
    mine = processor_seconds(os.getpid())
    assert 0 < mine <= sum(os.times()[:2]) + 1


def test_a_kafka_node_of_several_names_all_controllers(tmp_path: Path) -> None:
    said = write_config(tmp_path, 1, 2, node_id="3", controller_quorum_voters="1@h:2,3@h:4").read_text()
    assert "node.id=3\n" in said and "controller.quorum.voters=1@h:2,3@h:4\n" in said


def test_the_table_of_replicated_logs_says_what_is_missing_and_what_is_not_synced() -> None:
    fields: dict[str, Any] = {"records_per_s": 1e6, "mb_per_s": 120.0, "p50_ms": 0.5, "rss_mb": 80.0}
    fields |= {"raw_mb_per_s": 240.0, "ratio_to_raw": 0.5}
    own = dict.fromkeys(("replicated", "replicated_1k", "replicated_latency"), fields)
    missing = {"ister": own, "peers": {"kafka_replicated": {"status": "missing", "how": "install it"}}}
    table = "\n".join(replicated_table(missing))
    assert (
        "| **Ister** | 1.00 M records/s | 240 MB/s, 0.50 of it | 1.00 M records/s | 240 MB/s, 0.50" in table
    )
    assert "| 0.5 ms | 80 MB |" in table
    assert "| Kafka | missing | | | | | | install it |" in table
    names = ("append", "append_1k", "latency")
    peer = {"version": "9", "how": "synced", **{n + s: fields for n in names for s in ("", "_unsynced")}}
    table = "\n".join(replicated_table({"ister": own, "peers": {"kafka_replicated": peer}}))
    assert table.count("| Kafka 9 |") == 2
    assert "not synced" in table


@pytest.mark.slow
def test_a_small_run_of_each_has_every_field(tmp_path: Path) -> None:
    found: dict[str, dict[str, Any]] = {**measure_replicated(tmp_path / "replicated", 10)}
    for name in ("replicated", "replicated_1k"):
        assert found[name]["records_per_s"] > 0 and found[name]["one_topic_records_per_s"] > 0
        assert found[name]["ratio_to_raw"] > 0
        assert found[name]["topics"] == found[name]["replicas"] == 3
    lone = found["replicated_latency"]
    assert lone["p50_ms"] > 0 and lone["one_replica_p50_ms"] > 0 and lone["raw_p50_ms"] > 0
    failover = measure_failover(tmp_path / "failover", 1)
    assert failover["runs"] == 1
    assert failover["p50_s"] == failover["max_s"] > 0
    assert failover["errors"] == 0
