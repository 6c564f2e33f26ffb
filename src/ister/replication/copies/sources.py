"""Where copies come from: the log of one other replica, or whichever of several has good frames at a place.

All replicas of a sealed segment have the same bytes. So what one of them has damaged, or does not send, is
taken from the next, frame by frame if need be; whoever copies checks every frame again.

Errors: `CorruptFrame` if nobody who was asked has good frames there, `NodeUnreachable` if somebody who was
not heard may have them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from ister.asking import Asked, ask_in_turn
from ister.errors import (
    ConnectionFailed,
    CorruptFrame,
    CorruptSegment,
    NodeUnreachable,
    RequestTimeout,
    StorageFailed,
)
from ister.metadata.state import SegmentState
from ister.protocol.codec import encode_header
from ister.protocol.peer import PeerKind, node_of
from ister.protocol.replication import ReadLog
from ister.replication.copies.copying import Source
from ister.wal.opening import SegmentIdentity
from ister.wal.read_faults import unreadable

READ_SECONDS = 5.0

Ask = Callable[[int, PeerKind, bytes, float], Awaitable[bytes]]
"""A request to another member: kind, header, timeout -> the answer."""


class CheckedReads(Protocol):
    async def read_checked(
        self, identity: SegmentIdentity, state: SegmentState, offset: int, max_bytes: int
    ) -> bytes:
        """Frames of a sealed segment's log here, each checked in full. `OSError` if it could not be read."""
        ...

    def forget(self, prefix: str) -> None:
        """Files under this path were replaced."""
        ...


class Sources:
    def __init__(self, member: int, ask: Ask, sealed: CheckedReads) -> None:
        self._member = member
        self._ask = ask
        self._sealed = sealed

    def one(self, topic_uid: int, segment_uid: int, member: int, recovery: int) -> Source:
        """Another replica's log of a segment that is being recovered."""

        async def read(offset: int, max_bytes: int) -> bytes:
            request = ReadLog(topic_uid, segment_uid, offset, max_bytes, recovery)
            try:
                return await self._ask(member, PeerKind.READ_LOG, encode_header(request), READ_SECONDS)
            except (ConnectionFailed, RequestTimeout, StorageFailed) as error:
                raise NodeUnreachable(
                    f"node {node_of(member)} cannot be read from: {error.message}"
                ) from error
            except CorruptSegment as error:  # there, not here
                raise CorruptFrame(f"node {node_of(member)} has no good copy: {error.message}") from error

        return Source(f"node {node_of(member)}", read)

    def any_of(
        self, topic_uid: int, identity: SegmentIdentity, state: SegmentState, members: Sequence[int]
    ) -> Source:
        """The logs that these members have of a sealed segment; this node's own may be among them, if it is
        damaged: what is good of it is taken."""
        order = list(members)

        async def read_from(member: int, offset: int, max_bytes: int) -> bytes:
            if member == self._member:
                try:
                    return await self._sealed.read_checked(identity, state, offset, max_bytes)
                except OSError as error:
                    raise unreadable(identity.key, f"offset {offset}", error) from error
            request = ReadLog(topic_uid, state.uid, offset, max_bytes)
            return await self._ask(member, PeerKind.READ_LOG, encode_header(request), READ_SECONDS)

        async def read(offset: int, max_bytes: int) -> bytes:
            told = await ask_in_turn(order, lambda member: read_from(member, offset, max_bytes))
            for member in told.faults:
                order.remove(member)  # the next read begins with another
                order.append(member)
            corrupt = [member for member, why in told.faults.items() if isinstance(why, CorruptSegment)]
            if not told.answers:
                # What is damaged may lie behind what is wanted: then a single frame can still be had.
                again = await ask_in_turn(corrupt, lambda member: read_from(member, offset, 1))
                told = Asked(again.answers, {**told.faults, **again.faults})
            for frames in told.answers.values():
                return frames
            unheard = [str(why) for member, why in told.faults.items() if member not in corrupt]
            if unheard or not corrupt:
                why = unheard[-1] if unheard else "there is nobody to ask"
                raise NodeUnreachable(f"{identity.key} cannot be had at offset {offset}: {why}")
            raise CorruptFrame(
                f"nobody has a good frame of {identity.key} at offset {offset}: "
                f"{'; '.join(map(str, told.faults.values()))}"
            )

        names = ", ".join(str(node_of(member)) for member in members)
        return Source(f"one of nodes {names}", read)
