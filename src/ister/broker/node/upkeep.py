"""What no request triggers: opening what was there, handing off what is old, dropping what may go.

Each topic's trouble is its own: it is logged, and the others are looked after. Files are removed after the
metadata has let go of them (E4); what could not be removed is found again at the next start.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ister.broker.node.leftovers import (
    Files,
    check_nothing_is_newer,
    find_damaged,
    find_dropped,
    find_leftovers,
    list_files,
    remove_trimmed,
)
from ister.broker.node.retention import first_offset_to_keep
from ister.broker.topic.known import segment_path
from ister.broker.topic.sealing import has_better_clocks
from ister.broker.topic.topic_log import TopicLog
from ister.errors import BadRequest, IsterError, RequestTimeout
from ister.metadata.commands import TrimTopic
from ister.metadata.placement import Why
from ister.raft import RaftStatus

if TYPE_CHECKING:
    from ister.broker.node.broker import Broker

log = logging.getLogger("ister.broker")


class Upkeep:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._errors_due = 0
        self._may_trim = True
        self._told_of_clock = False
        """Both in this round of the monitor: no majority was missed yet; and it was said."""
        self.may_remove = False
        """Set once the files were compared with the metadata: if it is not this directory's, nothing goes."""

    # At the start.

    async def check_log(self, status: RaftStatus) -> None:
        """A node alone has no other source: what is in its directory must be in its log, as it was left (E6).

        Later it would be too late: the start itself adds to the log, over what may have been lost.
        """
        disk = self._broker.disk
        if status.membership.voters == (self._broker.metadata.member,):
            files = await disk.run(lambda: list_files(disk))
            check_nothing_is_newer(disk.location, files, status.last_index)

    async def remove_leftovers(self) -> None:
        """What is listed before the metadata is looked at must be known to it: files are made afterwards."""
        disk = self._broker.disk
        files = await disk.run(lambda: list_files(disk))
        gone = find_leftovers(disk.location, files, self._broker.metadata.state)
        self.may_remove = True
        self._broker.replication.completions.found_before(find_damaged(files))
        for path in gone:
            log.info("removing what is no longer in the metadata", extra={"fields": {"path": path}})
            await disk.run(lambda path=path: disk.remove(path))  # type: ignore[misc]
        self._let_go_of_dropped(files)

    async def let_go_of_dropped(self) -> None:
        """What other nodes keep now, and this one does not any more."""
        disk = self._broker.disk
        try:
            self._let_go_of_dropped(await disk.run(lambda: list_files(disk)))
        except OSError as error:
            log.warning(
                "copies that are kept elsewhere were not removed, the next start tries again: %s", error
            )

    def _let_go_of_dropped(self, files: Files) -> None:
        metadata = self._broker.metadata
        for topic_uid, segment_uid in find_dropped(files, metadata.state, metadata.member):
            self._broker.replication.let_go(topic_uid, segment_uid)

    async def open_all(self) -> None:
        """Open what was there before the start, so that the first request need not wait for it."""
        for topic in list(self._broker.topics.values()):
            try:
                if topic.leads:
                    await topic.led.ensure_open()
            except IsterError as error:
                # Another node may lead it by now, or nobody: then there is nothing to open here.
                is_own = topic.leads and not topic.known.is_deleted
                level = logging.ERROR if is_own else logging.DEBUG
                log.log(level, "topic %s cannot be opened: %s", topic.state.name, error)

    # All the time.

    async def monitor(self) -> None:
        """Roll over what is old, drop what is past its retention."""
        while True:
            await asyncio.sleep(self._broker.config.monitor_check_ms / 1000)
            self._may_trim, self._told_of_clock = True, False
            for topic in list(self._broker.topics.values()):
                try:
                    if topic.leads:
                        await self._look_after(topic)
                except IsterError as error:
                    log.warning("topic %s: %s", topic.state.name, error)

    async def _look_after(self, topic: TopicLog) -> None:
        if self._errors_due:
            self._errors_due -= 1
            raise BadRequest("the monitor was made to fail, for a test")
        topic.checkpoint_soon()
        if self._clock_is_off():
            # What it would call old may be young; and append times never go back (A6).
            if has_better_clocks(self._broker.storage):
                topic.rolling_over.roll_over(Why.CLOCK)
            return
        if topic.rolling_over.is_old:
            topic.rolling_over.roll_over(Why.OLD)
        start = first_offset_to_keep(
            topic.state,
            topic.facts.bytes,
            self._broker.clock.now_us(),
            has_store=self._broker.history is not None,
        )
        if start > topic.state.start_offset and self._may_trim:
            log.info("trimming", extra={"fields": {"topic": topic.state.name, "start_offset": start}})
            try:
                await self._broker.metadata.propose(TrimTopic(topic.state.uid, start))
            except RequestTimeout:
                self._may_trim = False  # there is no majority: each of the others would wait as long for it
                raise

    def _clock_is_off(self) -> bool:
        error_ms = self._broker.metadata.clock_error_us(self._broker.metadata.member) // 1000
        limit_ms = self._broker.config.max_clock_skew_ms
        if abs(error_ms) <= limit_ms:
            return False
        if self._told_of_clock:
            return True
        self._told_of_clock = True
        log.error(
            "the clock of node %d is %d ms from those of most others, more than max_clock_skew_ms (%d): it "
            "leads nothing and drops nothing until that is mended",
            self._broker.config.node_id,
            error_ms,
            limit_ms,
        )
        return True

    def fail_next(self, count: int) -> None:
        """For tests."""
        self._errors_due = count

    # When the metadata lets go of something.

    async def remove_files(self, topic: TopicLog) -> None:
        if not self.may_remove:
            return
        path, disk = f"segments/{topic.state.uid:016d}", self._broker.disk
        self._broker.storage.sealed.forget(path + "/")
        await topic.settled()
        try:
            await disk.run(lambda: disk.remove(path))
        except OSError as error:
            log.warning("%s was not removed, the next start tries again: %s", path, error)

    async def drop_trimmed(self, uid: int) -> None:
        broker = self._broker
        topic = broker.metadata.state.topic_by_uid(uid)
        if topic is not None and self.may_remove:
            # A file that is still open keeps its space.
            kept = {segment_path(uid, segment) for segment in topic.segments}
            broker.storage.sealed.forget(f"segments/{uid:016d}/", keep=kept)
            first = topic.segments[0].segment
            try:
                await broker.disk.run(lambda: remove_trimmed(broker.disk, uid, first))
            except OSError as error:
                log.warning("trimmed segments of %s were not removed: %s", topic.name, error)
