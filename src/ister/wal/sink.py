"""Who waits for an append, and what is remembered of the wait."""

from __future__ import annotations

from typing import Protocol

from ister.errors import IsterError
from ister.frame import Bytes


class Sink(Protocol):
    """Who waits for an append: a connection, mostly. Called on the event loop, once per token."""

    def appended(self, token: int, base_offset: int, append_time_us: int, leader: int = 0) -> None:
        """It is committed; by another node, if `leader` names one."""
        ...

    def refused(self, token: int, error: IsterError) -> None: ...


class OnlyIf:
    """The sink of an append that is to be taken under conditions only, and who waits for it.

    The conditions are part of the sink so that they go wherever the append goes: held, passed on to another
    node, or sent on to the next leader after a survivor cut it off (H2).
    """

    __slots__ = ("_sink", "offset", "told_index", "topic_uid")

    def __init__(self, sink: Sink, offset: int | None, told_index: int, topic_uid: int = 0) -> None:
        self._sink = sink
        self.offset = offset
        """It gets this offset; None if any will do."""
        self.told_index = told_index
        """If it is a producer's first: the log has forgotten nobody since this index of the metadata (A5)."""
        self.topic_uid = topic_uid
        """It is appended to this topic; 0 if to whichever has the name (I3)."""

    def appended(self, token: int, base_offset: int, append_time_us: int, leader: int = 0) -> None:
        self._sink.appended(token, base_offset, append_time_us, leader)

    def refused(self, token: int, error: IsterError) -> None:
        self._sink.refused(token, error)


Waiting = tuple[int, Sink, int, int, int, float, Bytes]
"""An append that is not committed yet: end offset, sink, token, base offset, append time, when it arrived,
and its frame, which goes to the next leader if a survivor seals the segment before it (H2).

A plain tuple, because one is made for every append.
"""
