"""One line over both tiers, from a real broker that exports into a directory; without Spark."""

from __future__ import annotations

import logging
import pickle
import platform
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from history_helpers import filled, numbered, objects_of, planned, rows, until_exported, until_released
from tests.history.bad_objects import cut_short, flipped

from ister import sync
from ister.errors import ConfigError, CorruptSegment, OffsetOutOfRange
from ister.spark.frames import BrokerFrames
from ister.spark.jobs.gaps import Noted
from ister.spark.locating import locate
from ister.spark.options import parse_stream_options, parse_table_options
from ister.spark.ranges import HISTORY, HOT, UNION, Loss, OffsetRange, Piece
from ister.spark.union import UnionFrames

if TYPE_CHECKING:
    from conftest import BrokerProcess


def test_what_is_in_the_history_is_read_there_and_the_rest_from_brokers_as_one_line(
    kept: sync.Log, keeper: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(kept, "both", 3)
    (whole,) = planned(keeper.address, "both")
    assert [(piece.tier, piece.start, piece.end) for piece in whole.lives] == [
        (HISTORY, 0, 10),
        (HISTORY, 10, 20),
        (HISTORY, 20, 30),
        (HOT, 30, 35),
    ]
    asked: list[tuple[int, int]] = []
    frames = BrokerFrames.frames

    def noted(self: BrokerFrames, wanted: OffsetRange, loss: Loss) -> Any:
        asked.append((wanted.start, wanted.end))
        return frames(self, wanted, loss)

    monkeypatch.setattr(BrokerFrames, "frames", noted)
    assert rows(keeper.address, [whole]) == numbered(0, 35)
    assert asked == [(30, 35)]
    cut = planned(keeper.address, "both", minPartitions="7")
    assert len(cut) == 7 and rows(keeper.address, cut) == numbered(0, 35)


def test_a_range_of_the_history_alone_needs_no_broker(kept: sync.Log, keeper: BrokerProcess) -> None:
    filled(kept, "past-brokers", 2, open_records=0)
    parts = planned(keeper.address, "past-brokers")
    assert rows("127.0.0.1:1", parts) == numbered(0, 20)


def test_what_was_exported_after_the_plan_is_found_in_the_history(
    kept: sync.Log, keeper: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(kept, "moves-on", 1)
    (whole,) = planned(keeper.address, "moves-on")
    kept.append("moves-on", [b"%d" % offset for offset in range(15, 20)])
    until_exported(kept, "moves-on", 2)

    def none(self: BrokerFrames, wanted: OffsetRange, loss: Loss) -> Any:
        raise AssertionError(f"brokers were asked for {wanted}")

    monkeypatch.setattr(BrokerFrames, "frames", none)
    assert rows(keeper.address, [whole]) == numbered(0, 15)


def test_tiers_by_themselves(kept: sync.Log, keeper: BrokerProcess) -> None:
    filled(kept, "tiers", 2)
    by_history = planned(keeper.address, "tiers", **{"read.tier": "history"})
    assert rows(keeper.address, by_history, tier=HISTORY) == numbered(0, 20)
    by_hot = planned(keeper.address, "tiers", **{"read.tier": "hot"})
    assert rows(keeper.address, by_hot, tier=HOT) == numbered(0, 25)  # nothing was released yet
    past = {"read.tier": "history", "endingOffsets": '{"tiers": {"0": 22}}'}
    with pytest.raises(
        OffsetOutOfRange, match=r"offsets 20 to 21 .* what the history has of the topic ends at 20"
    ):
        planned(keeper.address, "tiers", **past)


def test_a_missing_object_is_read_from_nodes_that_have_copies_and_named(
    kept: sync.Log, keeper: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    filled(kept, "one-missing", 3)
    parts = planned(keeper.address, "one-missing")
    missing = objects_of(kept, "one-missing")[1]
    missing.unlink()
    caplog.set_level(logging.WARNING)
    assert rows(keeper.address, parts) == numbered(0, 35)
    assert missing.name in caplog.text and "offsets 10 to 19" in caplog.text
    with pytest.raises(CorruptSegment, match=f"offsets 10 to 19 .*{missing.name}"):
        rows(keeper.address, parts, tier=HISTORY)
    assert rows(keeper.address, parts, tier=HISTORY, fails=False) == numbered(0, 10) + numbered(20, 35)


def test_a_store_that_is_another_one_here_makes_no_gap(
    kept: sync.Log, keeper: BrokerProcess, tmp_path: Path
) -> None:
    """A directory that is not mounted, and no node has copies: brokers have the last word."""
    filled(kept, "not-mounted", 2, local_retention_ms=1)
    until_released(kept, "not-mounted", 2)
    parts = [
        replace(part, lives=tuple(_elsewhere(piece, f"file://{tmp_path}") for piece in part.lives))
        for part in planned(keeper.address, "not-mounted")
    ]
    noted = Noted()
    with UnionFrames(keeper.address) as store:
        frames = [frame.header.base_offset for part in parts for frame in store.frames(part, noted)]
    assert (frames[:5], noted.found) == ([0, 5, 10, 15, 20], [])
    assert rows(keeper.address, parts) == numbered(0, 25)
    with pytest.raises(CorruptSegment, match=f"is not in file://{tmp_path}, as {platform.node()} sees it"):
        rows(keeper.address, parts, tier=HISTORY)


def test_a_store_that_has_bad_objects_here_alone_makes_no_gap(
    kept: sync.Log, keeper: BrokerProcess, tmp_path: Path
) -> None:
    """No node has copies, but brokers see the same object as it was published: they have the last word."""
    filled(kept, "bad-here", 2, local_retention_ms=1)
    until_released(kept, "bad-here", 2)
    root = Path(kept.history("bad-here").location.removeprefix("file://"))
    for path, spoil in zip(objects_of(kept, "bad-here"), (flipped(100), cut_short), strict=True):
        copied = tmp_path / path.relative_to(root)
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes(spoil(path.read_bytes()))
    parts = [
        replace(part, lives=tuple(_elsewhere(piece, f"file://{tmp_path}") for piece in part.lives))
        for part in planned(keeper.address, "bad-here")
    ]
    assert rows(keeper.address, parts) == numbered(0, 25)
    with pytest.raises(CorruptSegment, match=f"is damaged at byte .*, as {platform.node()} sees it"):
        rows(keeper.address, parts, tier=HISTORY)


def _elsewhere(piece: Piece, store: str) -> Piece:
    found = piece.descriptor
    return piece if found is None else piece._replace(descriptor=found._replace(store=store))


def test_partitions_carry_no_secret_of_the_environment(
    kept: sync.Log, keeper: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-that-nobody-sees")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-that-nobody-sees")
    filled(kept, "secrets", 1)
    pickled = pickle.dumps(planned(keeper.address, "secrets"))
    assert b"file://" in pickled and b"nobody-sees" not in pickled


def test_a_tier_that_is_none_is_refused_and_a_stream_has_no_history_alone() -> None:
    with pytest.raises(ConfigError, match=r"read\.tier is 'cold'"):
        parse_table_options({"subscribe": "t", "read.tier": "cold"})
    with pytest.raises(ConfigError, match="this is a stream"):
        parse_stream_options({"subscribe": "t", "read.tier": "history"})
    assert parse_stream_options({"subscribe": "t"}).read.tier == UNION


def test_what_was_trimmed_between_two_looks_at_the_topic_is_a_gap_and_not_skipped(
    kept: sync.Log, keeper: BrokerProcess
) -> None:
    """A plan is made of a description of the topic and a list of its history, one after the other."""
    filled(kept, "two-looks", 3)
    there = kept.describe_topic("two-looks")
    (whole,) = planned(keeper.address, "two-looks")
    kept.trim_topic("two-looks", 20)
    lives = locate(kept, "two-looks", there.uid, 0, 35, there)
    assert [(piece.start, piece.end, piece.tier) for piece in lives] == [
        (0, 20, HOT),
        (20, 30, HISTORY),
        (30, 35, HOT),
    ]
    late = OffsetRange(whole.topic, whole.uid, 0, 35, lives)
    for part in (late, OffsetRange(whole.topic, whole.uid, 0, 35)):
        with pytest.raises(OffsetOutOfRange, match=r"offsets 0 to 19 .* begins at 20"):
            rows(keeper.address, [part])
        assert rows(keeper.address, [part], fails=False) == numbered(20, 35)
