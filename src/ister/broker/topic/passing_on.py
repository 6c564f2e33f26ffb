"""An append that another node is to take, and what becomes of it.

A node that leads no longer says so (`NotLeader`) and has not taken the append; then the chain here is a
moment behind, and the append goes to its topic again, which knows better soon. That has an end: an append is
not passed on for longer than it would be held (H3).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ister.broker.node.storage import Storage
from ister.broker.topic.held import HeldAppend
from ister.errors import IsterError, NotLeader
from ister.io.clock import monotonic
from ister.protocol.codec import AppendAnswer

if TYPE_CHECKING:
    from ister.broker.topic.topic_log import TopicLog

_PAUSE_SECONDS = 0.05
"""The same for all, so that those that come back together leave again in their order."""


class PassedAppend:
    __slots__ = ("_append", "_storage", "_topic")

    def __init__(self, topic: TopicLog, append: HeldAppend, storage: Storage) -> None:
        self._topic = topic
        self._append = append
        self._storage = storage

    def taken(self, answer: AppendAnswer, node_id: int) -> None:
        append, end = self._append, answer.base_offset + self._append.header.count
        if end > self._topic.known.seen_end:
            self._topic.known.seen_end = end
        append.sink.appended(append.token, answer.base_offset, answer.append_time_us, node_id)

    def returned(self, error: IsterError) -> None:
        waited = monotonic() - self._append.started
        if isinstance(error, NotLeader) and waited < self._storage.max_held_seconds:
            asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._again)
        else:
            self._append.sink.refused(self._append.token, error)

    def _again(self) -> None:
        try:
            self._topic.append(*self._append)
        except IsterError as error:
            self._append.sink.refused(self._append.token, error)
