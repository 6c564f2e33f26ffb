"""Release: copies on nodes go once their segment is in the history, and they are old, too many, on a node
that is drained, or on one that the topic was moved away from.

The node that leads a topic looks after it. A segment's object is read to its last byte once more, and only
then the metadata is told that no node is to have a copy any more (E1, C3). Each node removes its files after
that, when it has read the object for itself (C4, `replication.copies.leaving`).

Fault model: the object may be missing or rotten by now: then that is reported, and the copies stay. Two nodes
that take themselves for the leader do it twice, and the second time changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress

from ister.errors import IsterError
from ister.failpoints import Step
from ister.metadata.commands import ReleaseCopies, Result
from ister.metadata.moves import MoveStage, MoveState, is_in_history
from ister.metadata.state import SegmentState, TopicState
from ister.metadata.store import MetadataStore
from ister.metrics import Counter

log = logging.getLogger("ister.history")

LOOK_SECONDS = 10.0


def due(
    topic: TopicState, now_us: int, drained: Collection[int] = (), moved: MoveState | None = None
) -> list[SegmentState]:
    """Segments whose copies may go: in the history, and past what nodes are to keep, or on a member that is
    drained, or that the topic was moved away from. The oldest first."""
    settings = topic.settings
    there = [segment for segment in topic.segments if segment.is_sealed and segment.replicas]
    size = sum(segment.end_position for segment in there)
    found: list[SegmentState] = []
    for segment in there:
        is_old = 0 < settings.local_retention_ms * 1000 <= now_us - segment.last_append_time_us
        is_too_much = 0 < settings.local_retention_bytes < size
        is_left = any(member in drained for member in segment.replicas) or _is_left_behind(segment, moved)
        if not (is_old or is_too_much or is_left):
            continue
        size -= segment.end_position
        if is_in_history(segment):
            found.append(segment)
    return found


def _is_left_behind(segment: SegmentState, move: MoveState | None) -> bool:
    """Whether a move waits for its copies to go: only once all that it sealed is in the history (E1)."""
    return (
        move is not None
        and move.stage == MoveStage.EXPORTED
        and segment.segment <= move.segment
        and move.source in segment.replicas
    )


class Releasing:
    def __init__(
        self,
        metadata: MetadataStore,
        look_at: Callable[[TopicState, SegmentState], Awaitable[str]],
        *,
        led: Callable[[], Iterable[TopicState]],
        now_us: Callable[[], int],
        reach: Callable[[Step], None],
    ) -> None:
        """`look_at` reads an object to its end and says what is wrong with it, `led` are the topics that this
        node looks after."""
        self._reach = reach
        self._metadata = metadata
        self._look_at = look_at
        self._led = led
        self._now_us = now_us
        self._woken = asyncio.Event()
        self.released = Counter(
            "released_segments_total", "Segments whose copies this node had released to the history."
        )

    def look_soon(self) -> None:
        """Somebody waits for copies to go."""
        self._woken.set()

    async def run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._woken.wait()
            self._woken.clear()
            state = self._metadata.state
            for topic in list(self._led()):
                moved = state.moves.of(topic.uid)
                for segment in due(topic, self._now_us(), state.drains.members, moved):
                    try:
                        await self.release(topic, segment)
                    except (IsterError, OSError) as error:
                        log.warning("the copies of %s stay for now: %s", topic.key_of(segment), error)
                        break

    async def release(self, topic: TopicState, segment: SegmentState) -> bool:
        """Let the copies of a segment go, if its object is what it should be; whether they go."""
        found, expected = segment.history, segment.replicas
        if found is None:
            return False
        if await self._look_at(topic, segment):
            return False
        self._reach(Step.RELEASING)
        outcome = await self._metadata.propose(ReleaseCopies(topic.uid, segment.uid, found.name, expected))
        self._reach(Step.RELEASED)
        fields = {
            "segment": topic.key_of(segment),
            "object": found.name,
            "result": str(outcome.result),
            "hot_start_offset": topic.hot_start_offset,
        }
        log.info("released", extra={"fields": fields})
        if outcome.result is Result.APPLIED:
            self.released.add()
        return outcome.ok
