"""Reading an open segment at a node that follows it: committed records only, as far as that node knows (F5).

What is committed is the leader's to say, with each message or within 50 ms. So a follower may be a little
behind, and one that was cut off far behind: it never says where the topic ends, and whoever finds nothing
here gets the leader's answer. One that was fenced, is opening, or is damaged does not answer at all.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ister.broker.topic.reads import read_open
from ister.errors import CorruptSegment, NotLeader
from ister.io.disk import Disk
from ister.metadata.state import TopicState
from ister.protocol.peer import node_of
from ister.wal.followed import FollowedSegment
from ister.wal.read_faults import read_failed
from ister.wal.reader import Found

if TYPE_CHECKING:
    from ister.broker.topic.topic_log import TopicLog

log = logging.getLogger("ister.broker.followed")


class FollowedCopy:
    """The open segment's copy here, for one request."""

    def __init__(self, topic: TopicLog, copy: FollowedSegment, disk: Disk) -> None:
        self._topic = topic
        self._disk = disk
        self._copy = copy

    @property
    def state(self) -> TopicState:
        return self._topic.state

    @property
    def uid(self) -> int:
        return self._copy.identity.uid

    @property
    def end_offset(self) -> int:
        return self._copy.committed_end

    @property
    def is_there(self) -> bool:
        """Whether it is still followed, and still the open segment."""
        return self._topic.places.followed is self._copy

    async def read(self, offset: int, max_bytes: int) -> Found:
        if not self.is_there:
            raise NotLeader(f"{self._copy.identity.key} is not followed here any more")
        try:
            found = await read_open(self._disk, self._copy, offset, max_bytes)
            if found.damage is not None:
                raise found.damage
            return found
        except CorruptSegment as error:
            log.error("this copy is not read from any more: %s", error.message)
            self._topic.places.distrust_copy(self.uid)
            leader = node_of(self.state.open_segment.leader)
            raise NotLeader(f"node {leader} leads, and may have it whole: {error.message}") from error
        except OSError as error:  # the leader is asked for this; the next one is read here again
            raise read_failed(self._copy.identity.key, f"offset {offset}", error) from error
