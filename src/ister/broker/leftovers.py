"""Files that metadata no longer speaks of, and files that it should: looked at when a broker starts.

A topic's or a segment's files are removed after its removal is durable in the metadata (E4), so a crash
leaves files behind, never the other way round. What metadata cannot explain is not touched: then the metadata
is the wrong one or an old one, and the start is refused (E6).
"""

from __future__ import annotations

import logging

from ister.errors import DataDirectoryError
from ister.io.disk import Disk
from ister.metadata.state import ClusterState, TopicState

log = logging.getLogger("ister.broker")


def remove_leftovers(disk: Disk, state: ClusterState) -> None:
    """Files of topics and segments that metadata no longer has: a crash came before their removal."""
    disk.make_directory("segments")
    for name in disk.list("segments"):
        uid = int(name) if name.isdecimal() else 0
        topic = state.topic_by_uid(uid)
        if topic is not None:
            _check_chain(disk, topic)
            remove_trimmed(disk, topic)
        elif 0 < uid <= state.applied_index:
            log.info("removing the files of a deleted topic", extra={"fields": {"uid": uid}})
            disk.remove(f"segments/{name}")
        else:
            raise DataDirectoryError(
                f"{disk.location}/segments/{name} is of no topic that the metadata knows of",
                hint="The metadata folder seems to be an old copy or another directory's; restore it.",
            )


def _check_chain(disk: Disk, topic: TopicState) -> None:
    """Files of a segment are made after its seal is durable: one past the chain was forgotten (E6)."""
    last = topic.open_segment.segment
    for number, name in _segment_files(disk, topic):
        if number > last:
            raise DataDirectoryError(
                f"the metadata knows {topic.name} up to segment {last}, but there is "
                f"{disk.location}/segments/{topic.uid:016d}/{name}",
                hint="The metadata folder is an old copy, or lost its last commands; restore it.",
            )


def _segment_files(disk: Disk, topic: TopicState) -> list[tuple[int, str]]:
    names = disk.list(f"segments/{topic.uid:016d}")
    return [(int(name.partition("-")[0]), name) for name in names if name.partition("-")[0].isdecimal()]


def remove_trimmed(disk: Disk, topic: TopicState) -> None:
    first = topic.segments[0].segment
    for number, name in _segment_files(disk, topic):
        if number < first:
            disk.remove(f"segments/{topic.uid:016d}/{name}")
