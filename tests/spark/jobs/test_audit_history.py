"""An audit reads the history past the brokers: each object that is not what it should be is found and named,
and a scan serves nothing of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from history_helpers import filled, numbered, objects_of, planned, rows, until_exported, until_released
from job_helpers import new_topic
from tests.history.bad_objects import (
    cut_short,
    flipped,
    of_another_topic,
    with_another_frame,
    with_other_records,
)

from ister import sync
from ister.cli.main import run
from ister.errors import CorruptSegment
from ister.spark import audit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Damage(NamedTuple):
    """What somebody, or a disk, does to an object; where that is found."""

    do: Callable[[bytes], bytes | None]
    offsets: tuple[int, int]
    """Of the ten in the segment: those that an audit tells as bad."""
    said: str
    is_served: bool = False
    """Whether what a reader needs of it is still good."""


DAMAGES = {
    "missing": Damage(lambda whole: None, (0, 10), "is not in"),
    "cut short": Damage(cut_short, (0, 10), "cut short"),
    "empty": Damage(lambda whole: b"", (0, 10), "no object of the history"),
    "other records": Damage(with_other_records, (0, 10), "is not the one that was published"),
    "another topic's": Damage(of_another_topic, (0, 10), "and should be"),
    "bit of a body": Damage(flipped(100), (0, 5), "is damaged at byte 0"),
    "bit of a header": Damage(flipped(20), (0, 10), "is damaged at byte 0"),
    "bit of the footer": Damage(flipped(-60), (0, 10), "checksum of its footer"),
    "bit of the trailer": Damage(flipped(-10), (0, 10), "checksum of its last 24 bytes"),
    "frame that is good by itself": Damage(with_another_frame, (0, 10), "has checksum", is_served=True),
    "longer": Damage(lambda whole: whole + b"more", (0, 10), "has more bytes", is_served=True),
}
SEGMENTS = len(DAMAGES) + 1
"""The last one is good."""


def put_back(path: Path, whole: bytes | None) -> None:
    path.unlink(missing_ok=True)
    if whole is not None:
        path.write_bytes(whole)


@pytest.fixture(scope="module")
def damaged(keeper: BrokerProcess) -> str:
    """A topic whose segments are in the history only, each object but the last one bad in its own way."""
    topic = new_topic("damaged")
    with sync.connect(keeper.address) as log:
        filled(log, topic, SEGMENTS, local_retention_ms=1)
        until_released(log, topic, SEGMENTS)
        objects = objects_of(log, topic)
        for path, damage in zip(objects, DAMAGES.values(), strict=False):
            put_back(path, damage.do(path.read_bytes()))
    return topic


def test_each_bad_object_is_found_by_an_audit_with_its_name_and_offsets(
    spark: SparkSession, keeper: BrokerProcess, kept: sync.Log, damaged: str
) -> None:
    report = audit(spark, damaged, bootstrap=keeper.address, replicas=True)
    (seen,) = report.topics
    by_segment = {segment.segment: segment for segment in seen.segments}
    objects = objects_of(kept, damaged)
    for number, (name, damage) in enumerate(DAMAGES.items(), 1):
        base = 10 * (number - 1)
        (found,) = by_segment[number].findings
        where = (base + damage.offsets[0], base + damage.offsets[1])
        assert (found.check, found.start, found.end) == ("object", *where), name
        assert objects[number - 1].name in found.what and damage.said in found.what, (name, found.what)
    assert [by_segment[number].is_clean for number in (SEGMENTS, SEGMENTS + 1)] == [True, True]
    assert all(not by_segment[number].replicas for number in range(1, SEGMENTS + 1))


def test_a_scan_names_each_bad_object_and_serves_nothing_of_it(
    keeper: BrokerProcess, kept: sync.Log, damaged: str, caplog: pytest.LogCaptureFixture
) -> None:
    objects = objects_of(kept, damaged)
    good = numbered(10 * len(DAMAGES), 10 * SEGMENTS + 5)
    for number, (name, damage) in enumerate(DAMAGES.items()):
        if damage.is_served:
            continue
        ends = {
            "startingOffsets": json.dumps({damaged: {"0": 10 * number}}),
            "endingOffsets": json.dumps({damaged: {"0": 10 * number + 10}}),
        }
        parts = planned(keeper.address, damaged, **ends)
        first = 10 * number + damage.offsets[0]
        with pytest.raises(CorruptSegment, match=f"offsets {first} to .*{objects[number].name}") as caught:
            rows(keeper.address, parts)
        assert damage.said in caught.value.message, name
        good += rows(keeper.address, parts, fails=False)
    assert set(good) <= set(numbered(0, 10 * SEGMENTS + 5))
    by_body = list(DAMAGES).index("bit of a body")
    assert sorted(good) == sorted(numbered(10 * by_body + 5, 10 * by_body + 10) + good[:15])


def test_what_nodes_have_of_a_bad_object_is_served_and_the_object_is_one_finding(
    spark: SparkSession, keeper: BrokerProcess, kept: sync.Log
) -> None:
    topic = new_topic("copied")
    filled(kept, topic, 3)
    path = objects_of(kept, topic)[1]
    put_back(path, flipped(100)(path.read_bytes()))
    report = audit(spark, topic, bootstrap=keeper.address)
    (found,) = report.topics[0].findings
    assert (found.check, found.start, found.end) == ("object", 10, 15)
    assert report.topics[0].records == 35
    assert rows(keeper.address, planned(keeper.address, topic)) == numbered(0, 35)


def test_copies_are_compared_with_the_object(
    spark: SparkSession, keeper: BrokerProcess, kept: sync.Log
) -> None:
    topic = new_topic("compared")
    filled(kept, topic, 2)
    assert audit(spark, topic, bootstrap=keeper.address, replicas=True).is_clean
    path = objects_of(kept, topic)[0]
    put_back(path, with_another_frame(path.read_bytes()))
    report = audit(spark, topic, bootstrap=keeper.address, replicas=True)
    said = {found.check: found for found in report.topics[0].findings}
    assert (said["replica"].start, said["replica"].end) == (0, 5)
    assert "node 1 has other bytes than the object of the history" in said["replica"].what
    assert "has checksum" in said["object"].what


def test_objects_that_no_descriptor_names_are_told(
    spark: SparkSession, keeper: BrokerProcess, kept: sync.Log, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = new_topic("orphans")
    filled(kept, topic, 2)
    assert not audit(spark, topic, bootstrap=keeper.address).topics[0].orphans
    path = objects_of(kept, topic)[0]
    twice = path.with_name(path.name.replace("-0.ister", "-1.ister"))
    twice.write_bytes(path.read_bytes())
    kept.delete_topic(topic)
    filled(kept, topic, 1)
    fresh = objects_of(kept, topic)[0]
    report = audit(spark, topic, bootstrap=keeper.address)
    orphans = {Path(orphan.name).name for orphan in report.topics[0].orphans}
    assert {twice.name, path.name} <= orphans and fresh.name not in orphans
    assert report.is_clean
    assert any(twice.name in note.what and "history sweep" in note.what for note in report.topics[0].notes)
    before = list(Path(fresh.parent.parent).rglob("*.ister"))
    assert run(["history", "sweep", topic, "--bootstrap", keeper.address], {}) == 0
    capsys.readouterr()
    assert not audit(spark, topic, bootstrap=keeper.address).topics[0].orphans
    assert len(list(Path(fresh.parent.parent).rglob("*.ister"))) < len(before)


def test_an_audit_of_the_history_costs_brokers_next_to_nothing(
    spark: SparkSession, keeper: BrokerProcess, kept: sync.Log
) -> None:
    topic = new_topic("by-itself")
    kept.create_topic(topic, segment_records=500)
    for _ in range(4):
        kept.append(topic, [b"x" * 1_000] * 500)
    until_exported(kept, topic, 4)
    before = kept.stats().metrics
    report = audit(spark, topic, bootstrap=keeper.address)
    after = kept.stats().metrics
    assert report.is_clean and report.topics[0].records == 2_000
    assert all(segment.object_name for segment in report.topics[0].segments if segment.records)
    assert after["bytes_out_total"] - before["bytes_out_total"] < 100_000
