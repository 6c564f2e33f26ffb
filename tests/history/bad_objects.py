"""What somebody, or a disk, makes of an object that was published."""

from __future__ import annotations

from collections.abc import Callable

from ister.frame import Frame, decode, encode, frames_in, stamp
from ister.history.format import Exported, FramesOf, read_footer
from ister.wal.marks import uid_of


def flipped(position: int) -> Callable[[bytes], bytes]:
    def flip(whole: bytes) -> bytes:
        changed = bytearray(whole)
        changed[position] ^= 1
        return bytes(changed)

    return flip


def cut_short(whole: bytes) -> bytes:
    return whole[: len(whole) // 2]


def with_another_frame(whole: bytes) -> bytes:
    """The first frame is another one of the same offsets and size; what is behind it stays."""
    first = frames_in(_frames_of(whole))[0]
    return _with_other_records(first) + whole[first.header.size :]


def with_other_records(whole: bytes) -> bytes:
    """Of the same segment, and of the same size."""
    first = frames_in(_frames_of(whole))[0]
    told = read_footer(whole, len(whole), "it")
    frames = with_another_frame(whole)[: told.frames_size]
    return _object(whole, frames, told.topic_uid, uid_of(first.header))


def of_another_topic(whole: bytes) -> bytes:
    """With the same offsets and records."""
    told, frames = read_footer(whole, len(whole), "it"), bytearray()
    for frame in frames_in(_frames_of(whole)):
        header, copied = frame.header, bytearray(frame.data)
        stamp(copied, header.base_offset, header.segment + 1, header.append_time_us)
        frames += copied
    return _object(whole, bytes(frames), told.topic_uid + 1, told.segment_uid + 1)


def _frames_of(whole: bytes) -> bytes:
    return whole[: read_footer(whole, len(whole), "it").frames_size]


def _with_other_records(frame: Frame) -> bytes:
    header = frame.header
    values = [bytes([record.value[0] ^ 1]) + record.value[1:] for record in frame.records() if record.value]
    made = bytearray(encode(values))
    stamp(made, header.base_offset, header.segment, header.append_time_us)
    assert isinstance(decode(made), Frame) and len(made) == header.size
    return bytes(made)


def _object(whole: bytes, frames: bytes, topic_uid: int, segment_uid: int) -> bytes:
    told = read_footer(whole, len(whole), "it")
    segment = Exported(
        told.cluster_id,
        told.topic,
        topic_uid,
        told.segment,
        segment_uid,
        told.start_offset,
        told.end_offset,
        told.frames_size,
    )
    making = FramesOf(segment, "it")
    assert making.take(frames) == len(frames)
    return frames + making.ending()
