"""The log of a topic's open segment, opened: by its file if it has one, else as a new one (E6).

Fault model: the disk may fail at any step, and the metadata may not answer. Whatever is raised, no file stays
open. A log that was made and not recorded as made is found again by the next attempt, and kept if it has
records: metadata that forgot it must not cost them.
"""

from __future__ import annotations

import logging

from ister.broker.node.storage import Storage
from ister.broker.topic.resuming import Resumed
from ister.failpoints import Step
from ister.io.disk import Disk
from ister.metadata.commands import OpenedSegment
from ister.metadata.state import SegmentState, TopicState
from ister.wal.opening import OpenedLog, SegmentIdentity, create, recover

log = logging.getLogger("ister.broker.topic")


async def open_log(
    storage: Storage, topic: TopicState, identity: SegmentIdentity, cut_at: int | None
) -> OpenedLog:
    """Open the chain's last segment. `cut_at` is where this process, which wrote past it, knows its end."""
    disk, state = storage.disk, topic.open_segment
    carried, time_us = state.carried_producers, state.carried_append_time_us
    if state.log_exists:
        return await disk.run(lambda: recover(disk, identity, carried, time_us, cut_at=cut_at))
    storage.reach(Step.ACCEPTED)
    recovered = await disk.run(lambda: _find_or_create(disk, identity, state))
    try:
        storage.reach(Step.LOGGED)
        await storage.metadata.propose(OpenedSegment(topic.uid, state.segment, storage.node_id))
    except BaseException:
        close_files(recovered)
        raise
    storage.reach(Step.OPENED)
    return recovered


def _find_or_create(disk: Disk, identity: SegmentIdentity, state: SegmentState) -> OpenedLog:
    carried, time_us = state.carried_producers, state.carried_append_time_us
    disk.make_directory(identity.path.rpartition("/")[0])
    if disk.exists(identity.path + ".log"):
        recovered = recover(disk, identity, carried, time_us)
        if recovered.end_offset > identity.base_offset:
            return recovered
        close_files(recovered)
    return create(disk, identity, carried, time_us)


def close_files(recovered: OpenedLog) -> None:
    """Nobody will use what was opened."""
    recovered.file.close()
    recovered.side.close()


def log_opened(
    identity: SegmentIdentity, recovered: OpenedLog, resumed: Resumed, hot_start_offset: int
) -> None:
    fields = {
        "segment": identity.key,
        "reason": resumed.reason,
        "why": resumed.detail,
        "source": recovered.source,
        "base": identity.base_offset,
        "end": recovered.end_offset,
        "scanned_bytes": recovered.scanned_bytes,
        "cut_bytes": recovered.cut_bytes,
        "hot_start_offset": hot_start_offset,
    }
    log.info("segment opened", extra={"fields": fields})


def describe_cut(identity: SegmentIdentity, recovered: OpenedLog) -> str:
    return (
        f"{identity.key}: recovery cut {recovered.cut_bytes} bytes after the end at offset "
        f"{recovered.end_offset}: {recovered.cut_reason}"
    )
