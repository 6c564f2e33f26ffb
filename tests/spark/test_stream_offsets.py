"""What a checkpoint has: one text for one place, older versions read, newer and foreign ones refused."""

from __future__ import annotations

import json

import pytest

from ister.errors import BadRequest, UnsupportedVersion
from ister.spark.source.offsets import StreamOffset, TopicPlace, stream_offset

PLACES = {"default/b": TopicPlace(7, 0, 5), "default/a": TopicPlace(3, 2, 9)}


def test_an_offset_survives_the_checkpoint() -> None:
    offset = StreamOffset("c", "night-1", PLACES)
    assert stream_offset(json.loads(json.dumps(offset.to_json()))) == offset


def test_one_place_is_one_text_in_whichever_order_topics_were_found() -> None:
    """Spark compares offsets by their text: another order would be a batch that reads nothing."""
    one = json.dumps(StreamOffset("c", "r", PLACES).to_json())
    other = json.dumps(StreamOffset("c", "r", dict(reversed(PLACES.items()))).to_json())
    assert one == other
    assert one == (
        '{"version": 2, "cluster": "c", "reader": "r", "topics": {'
        '"default/a": {"uid": 3, "began": 2, "offset": 9}, "default/b": {"uid": 7, "began": 0, "offset": 5}}}'
    )


def test_an_offset_of_version_1_is_read() -> None:
    found = stream_offset({"version": 1, "topics": {"default/a": {"uid": 3, "offset": 9}}})
    assert found == StreamOffset("", "", {"default/a": TopicPlace(3, 0, 9)})


def test_an_offset_of_a_newer_version_says_which_ister_is_needed() -> None:
    with pytest.raises(UnsupportedVersion, match=r"offsets of version 3; this Ister reads up to version 2"):
        stream_offset({"version": 3, "lines": []})


@pytest.mark.parametrize(
    "found", [{}, {"version": "2"}, {"version": 2}, {"orders": {"0": 23}}, {"version": 1, "topics": {"a": 5}}]
)
def test_an_offset_of_another_source_is_refused(found: object) -> None:
    with pytest.raises(BadRequest, match="no offset of a stream of Ister"):
        stream_offset(found)
