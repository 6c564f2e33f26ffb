"""Files that metadata no longer speaks of, and files that it should: looked at when a broker starts.

A topic's or a segment's files are removed after its removal is durable in the metadata (E4), so a crash
leaves files behind, never the other way round. What metadata cannot explain is not touched: then the metadata
is the wrong one or an old one, and the start is refused (E6).
"""

from __future__ import annotations

from ister.errors import DataDirectoryError
from ister.io.disk import Disk
from ister.metadata.state import ClusterState, TopicState
from ister.replication.copies.copying import ASIDE
from ister.replication.copies.damage import SUFFIX as DAMAGED

Files = dict[str, list[str]]
"""Names in `segments`, and in each of these directories."""


def list_files(disk: Disk) -> Files:
    disk.make_directory("segments")
    return {name: disk.list(f"segments/{name}") for name in disk.list("segments")}


def find_leftovers(location: str, files: Files, state: ClusterState) -> list[str]:
    """Paths of topics and segments that metadata no longer has: a crash came before their removal.

    The metadata must be at least as new as the files: what it has never heard of is refused.
    """
    gone: list[str] = []
    for name, inside in files.items():
        uid = int(name) if name.isdecimal() else 0
        topic = state.topic_by_uid(uid)
        if topic is not None:
            _check_chain(location, topic, inside)
            gone += [f"segments/{name}/{file}" for file in _trimmed(topic, inside)]
        elif 0 < uid <= state.applied_index:
            gone.append(f"segments/{name}")
        else:
            raise DataDirectoryError(
                f"{location}/segments/{name} is of no topic that the metadata knows of",
                hint="The raft folder seems to be an old copy or another directory's; restore it.",
            )
    return gone


def find_dropped(files: Files, state: ClusterState, member: int) -> list[tuple[int, int]]:
    """Sealed segments, as topic and segment uids, that there are files of and that are kept elsewhere (F4).

    An open segment's files are never such, whoever its replicas are: a recovery may be copying it here.
    """
    dropped: dict[tuple[int, int], None] = {}
    for name, inside in files.items():
        topic = state.topic_by_uid(int(name)) if name.isdecimal() else None
        for file in inside if topic is not None else ():
            assert topic is not None
            segment = topic.segment(_number(file))
            is_known = segment is not None and _uid(file).isdecimal() and int(_uid(file)) == segment.uid
            if segment is not None and is_known and segment.is_sealed and member not in segment.replicas:
                dropped[topic.uid, segment.uid] = None
    return list(dropped)


def has_files_up_to(files: Files, topic: TopicState, number: int, member: int) -> bool:
    """Whether there are logs here of a topic's segments up to that number which others are to have. A tail
    that was set aside is none: it stays for who has given it up (F6)."""
    logs = [file for file in files.get(f"{topic.uid:016d}", []) if _is_log(file)]
    found = [topic.segment(_number(file)) for file in logs if _number(file) <= number]
    return any(segment is not None and member not in segment.replicas for segment in found)


def find_damaged(files: Files) -> list[int]:
    """The uids of segments in whose copy here an earlier process has found damage."""
    return [int(_uid(file)) for inside in files.values() for file in inside if file.endswith(DAMAGED)]


def check_nothing_is_newer(location: str, files: Files, last_index: int) -> None:
    """Files are made after the command that they are named after: one past the log's end was forgotten."""
    for name, inside in files.items():
        for path, uid in [(name, name), *((f"{name}/{file}", _uid(file)) for file in inside)]:
            if uid.isdecimal() and int(uid) > last_index:
                raise DataDirectoryError(
                    f"{location}/segments/{path} is of no topic or segment that the metadata knows of: it "
                    f"was made at index {int(uid)}, and the metadata's log ends at {last_index}",
                    hint="The raft folder is an old copy, or lost its last commands; restore it.",
                )


def _uid(name: str) -> str:
    return name.partition("-")[2].partition(".")[0]


def _check_chain(location: str, topic: TopicState, inside: list[str]) -> None:
    """Files of a segment are made after its seal is durable: one past the chain was forgotten (E6)."""
    last = topic.open_segment.segment
    for name in inside:
        if _number(name) > last:
            raise DataDirectoryError(
                f"the metadata knows {topic.name} up to segment {last}, but there is "
                f"{location}/segments/{topic.uid:016d}/{name}",
                hint="The raft folder is an old copy, or lost its last commands; restore it.",
            )


def _number(name: str) -> int:
    """The segment's, of one of its files; 0 for a file that is none."""
    first = name.partition("-")[0]
    return int(first) if first.isdecimal() else 0


def _is_log(name: str) -> bool:
    """A segment's, or one that is pulled to take its place."""
    return "." + name.partition(".")[2] in (".log", ASIDE + ".log")


def _trimmed(topic: TopicState, inside: list[str]) -> list[str]:
    first = topic.segments[0].segment
    return [name for name in inside if 0 < _number(name) < first]


def remove_trimmed(disk: Disk, topic_uid: int, first_segment: int) -> None:
    for name in disk.list(f"segments/{topic_uid:016d}"):
        if 0 < _number(name) < first_segment:
            disk.remove(f"segments/{topic_uid:016d}/{name}")
