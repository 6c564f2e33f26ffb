"""Whether the open segment must be recovered before this node goes on with it, and what that waits for.

After a restart a leader never appends to a segment that has other replicas (A3): it waits for a recovery, its
own or another's, which may take as long as too few replicas answer. Functions of the metadata, and of who
answers.
"""

from __future__ import annotations

from ister.broker.node.storage import Storage
from ister.broker.topic.known import KnownTopic
from ister.protocol.peer import node_of
from ister.quorum import revealing

WAITS_HINT = "Start those nodes again; `ister topic recover` shows what else can be done."


class Unrecovered:
    def __init__(self, topic: KnownTopic, storage: Storage) -> None:
        self._topic = topic
        self._storage = storage

    @property
    def is_begun(self) -> bool:
        """Whether somebody recovers the open segment."""
        segment = self._topic.state.open_segment
        return len(segment.replicas) > 1 and segment.recovery > 0

    @property
    def may_have_records(self) -> bool:
        """Whether the open segment may have been appended to by an earlier process, or before a failure."""
        segment = self._topic.state.open_segment
        return self.is_begun or (len(segment.replicas) > 1 and segment.log_exists)

    @property
    def lacks_others(self) -> bool:
        """Whether it must be recovered, and too few replicas answer for that: it may take long."""
        segment, metadata = self._topic.state.open_segment, self._storage.metadata
        if not self.may_have_records or not self._storage.may_lead.is_set():
            return False
        alive = sum(map(metadata.is_alive, segment.replicas))
        return alive < revealing(len(segment.replicas))

    def what_is_missing(self) -> str:
        """For whoever waits for the open segment: why there is none; empty if that is soon over."""
        segment, metadata = self._topic.state.open_segment, self._storage.metadata
        if not self.may_have_records or not self._topic.leads:
            return ""
        silent = [node_of(member) for member in segment.replicas if not metadata.is_alive(member)]
        nodes = ", ".join(map(str, silent))
        waits = (
            f"node{'s' if len(silent) > 1 else ''} {nodes} cannot be reached" if silent else "that goes on"
        )
        return f"{self._topic.state.key_of(segment)} must be recovered by its replicas first, and {waits}"
