"""A table of a snapshot has the same rows whenever and however it is read, or says what it lacks."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from history_helpers import filled, numbered, planned, rows, until_exported

from ister import sync
from ister.errors import ConfigError, OffsetOutOfRange, UnknownTopic
from ister.spark import snapshot
from ister.spark.options import parse_stream_options, parse_table_options

if TYPE_CHECKING:
    from conftest import BrokerProcess

OPTION = "snapshot.offsets"


def test_a_snapshot_is_read_again_with_the_same_rows_from_whichever_tier_has_them_then(
    kept: sync.Log, keeper: BrokerProcess
) -> None:
    filled(kept, "again", 2, open_records=5)
    taken = snapshot("again", keeper.address)
    first = planned(keeper.address, "again", **{OPTION: taken})
    assert rows(keeper.address, first) == numbered(0, 25)
    kept.append("again", [b"%d" % offset for offset in range(25, 42)])
    until_exported(kept, "again", 3)
    for options in ({}, {"minPartitions": "4"}, {"read.tier": "history"}):
        parts = planned(keeper.address, "again", **{OPTION: taken, **options})
        assert rows(keeper.address, parts) == numbered(0, 25)
    late = planned(keeper.address, "again", **{OPTION: taken, "startingOffsets": '{"again": {"0": 20}}'})
    assert rows(keeper.address, late) == numbered(20, 25)


def test_a_snapshot_of_several_topics_names_them_by_itself(kept: sync.Log, keeper: BrokerProcess) -> None:
    filled(kept, "snap-a", 1, open_records=1)
    filled(kept, "snap-b", 0, open_records=3)
    taken = snapshot(["snap-a", "snap-b"], keeper.address)
    kept.append("snap-b", [b"more"])
    options = parse_table_options({OPTION: taken})
    assert options.read.subscription.topics == ("default/snap-a", "default/snap-b")
    (one,) = planned(keeper.address, "snap-b", **{OPTION: taken})
    assert (one.start, one.end) == (0, 3)
    with pytest.raises(ConfigError, match="says nothing of default/again-not"):
        planned(keeper.address, "again-not", **{OPTION: taken})


@pytest.mark.slow
def test_what_was_trimmed_since_is_an_error_with_its_offsets(kept: sync.Log, keeper: BrokerProcess) -> None:
    filled(kept, "trimmed-since", 2)
    taken = snapshot("trimmed-since", keeper.address)
    told = json.loads(taken)
    now = planned(keeper.address, "trimmed-since")[0]
    told["topics"]["default/trimmed-since"]["end"] = now.end + 7  # as if the log had lost its end
    with pytest.raises(OffsetOutOfRange, match=r"offsets 25 to 31 .* the topic ends at 25"):
        planned(keeper.address, "trimmed-since", **{OPTION: json.dumps(told)})
    kept.alter_topic("trimmed-since", retention_bytes=1)
    kept.append("trimmed-since", [b"%d" % offset for offset in range(25, 31)])
    deadline = time.monotonic() + 60
    while (begins := kept.describe_topic("trimmed-since").start_offset) < 25:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    with pytest.raises(OffsetOutOfRange, match=f"offsets 0 to 24 .* begins at {begins}"):
        planned(keeper.address, "trimmed-since", **{OPTION: taken})


def test_another_cluster_or_another_topic_of_that_name_is_refused(
    kept: sync.Log, keeper: BrokerProcess
) -> None:
    filled(kept, "made-again", 1)
    taken = snapshot("made-again", keeper.address)
    kept.delete_topic("made-again")
    filled(kept, "made-again", 1)
    with pytest.raises(UnknownTopic, match="which was deleted"):
        planned(keeper.address, "made-again", **{OPTION: taken})
    elsewhere = json.dumps({**json.loads(taken), "cluster": "another"})
    with pytest.raises(ConfigError, match="is of cluster another"):
        planned(keeper.address, "made-again", **{OPTION: elsewhere})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "17",
        "{}",
        '{"cluster": "c", "topics": {}}',
        '{"cluster": "c", "topics": {"default/t": {"uid": 1, "start": 9, "end": 3}}}',
    ],
)
def test_what_is_no_snapshot_is_refused_with_the_way_to_make_one(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_table_options({"subscribe": "t", OPTION: text})
    assert "ister.spark.snapshot" in caught.value.hint


def test_a_snapshot_is_for_tables_and_is_the_only_end() -> None:
    text = '{"cluster": "c", "topics": {"default/t": {"uid": 1, "start": 0, "end": 3}}, "version": 1}'
    with pytest.raises(ConfigError, match=r"endingOffsets and snapshot\.offsets"):
        parse_table_options({"subscribe": "t", OPTION: text, "endingOffsets": "latest"})
    with pytest.raises(ConfigError, match="is for a table"):
        parse_stream_options({"subscribe": "t", OPTION: text})
    with pytest.raises(ConfigError, match="version 9"):
        parse_table_options({"subscribe": "t", OPTION: text.replace('"version": 1', '"version": 9')})
