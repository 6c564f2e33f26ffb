"""The frames of a range, wherever they are: from the store what is in the history, the rest from brokers.

What can happen between the plan and the read, or while it is read:
- A range that was on nodes was exported since, moved, or released there: the task looks anew, and reads in
  the history what is in it by now.
- An object was replaced (compaction): the descriptor of the new one is asked for, and read on from there.
- An object is missing or damaged, or so it looks from here: the store may be another one, or not be mounted,
  or the way to it flips bits. Brokers are asked for the rest of that segment, which is said loudly: they have
  copies, or the object, or confirm that nobody has it, and then look after it. Only then its exact offsets
  are reported as missing (promise 5).
- Who wants the history alone gets no word but its own, with the name of the machine.
- The segment was trimmed since: its object is readable for some time yet. After that brokers say so.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterator, Sequence
from itertools import groupby
from types import TracebackType
from typing import Self

from ister.errors import CorruptSegment, ObjectNotFound
from ister.frame import Frame
from ister.spark.frames import BrokerFrames
from ister.spark.ranges import HOT, UNION, Descriptor, Loss, OffsetRange, Piece
from ister.spark.stored import StoredFrames

log = logging.getLogger("ister.spark")


class UnionFrames:
    """A `FrameStore` over both tiers, to be used in a `with`. It connects to what it needs."""

    def __init__(self, bootstrap: str, *, tier: str = UNION, verify: bool = True) -> None:
        self._bootstrap = bootstrap
        self._tier = tier
        self._verify = verify
        self._brokers: BrokerFrames | None = None
        self._stores: dict[str, StoredFrames] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for store in self._stores.values():
            store.close()
        if self._brokers is not None:
            self._brokers.__exit__(kind, error, trace)

    def frames(self, wanted: OffsetRange, loss: Loss) -> Iterator[Frame]:
        if self._tier == HOT:
            yield from self._of_brokers(wanted, wanted.start, wanted.end, loss)
            return
        lives = wanted.lives or (Piece(0, wanted.start, wanted.end, HOT, (), False),)
        for is_stored, pieces in groupby(lives, lambda piece: piece.descriptor is not None):
            if is_stored:
                yield from self._of_store(wanted, pieces, loss)
            else:
                yield from self._looked_at(wanted, list(pieces), loss)

    def _looked_at(self, wanted: OffsetRange, pieces: Sequence[Piece], loss: Loss) -> Iterator[Frame]:
        """What was on nodes when it was planned, or of which nobody knew."""
        start, end = pieces[0].start, pieces[-1].end
        now = self._open_brokers().locate(wanted.topic, wanted.uid, start, end)
        for is_stored, found in groupby(now, lambda piece: piece.descriptor is not None):
            if is_stored:
                for piece in found:
                    yield from self._of_store(wanted, [piece], loss)
                    start = piece.end
            else:
                behind = max(piece.end for piece in found)
                yield from self._of_brokers(wanted, start, behind, loss)
                start = behind
        yield from self._of_brokers(wanted, start, end, loss)

    def _of_store(
        self, wanted: OffsetRange, pieces: Iterator[Piece] | Sequence[Piece], loss: Loss
    ) -> Iterator[Frame]:
        for piece in pieces:
            assert piece.descriptor is not None
            yield from self._of_object(wanted, piece, piece.descriptor, loss)

    def _of_object(self, wanted: OffsetRange, piece: Piece, found: Descriptor, loss: Loss) -> Iterator[Frame]:
        at, last = piece.start, None
        while at < piece.end:
            try:
                for last in self._open_store(found.store).frames(found, at, piece.end):
                    yield last
                return
            except (CorruptSegment, ObjectNotFound) as error:
                at = at if last is None else max(at, last.header.end_offset)
                now = self._open_brokers().listed_now(wanted, found, at)
                if now is None:
                    # It was trimmed, or the topic was deleted: brokers know which.
                    yield from self._of_brokers(wanted, at, piece.end, loss)
                    return
                newer, _ = now
                if newer is not None and newer.name != found.name:
                    found = newer
                    continue
                why = f"{error.message}, as {platform.node()} sees it"
                if self._tier == UNION:
                    log.warning(
                        "%s; offsets %d to %d of %s are read from brokers",
                        why,
                        at,
                        piece.end - 1,
                        wanted.topic,
                    )
                    yield from self._of_brokers(wanted, at, piece.end, loss)
                    return
                behind = min(error.offsets[1] if error.offsets else piece.end, piece.end)
                loss.report(wanted.topic, at, behind, why, CorruptSegment)
                at = behind

    def _of_brokers(self, wanted: OffsetRange, start: int, end: int, loss: Loss) -> Iterator[Frame]:
        if start < end:
            part = OffsetRange(wanted.topic, wanted.uid, start, end)
            yield from self._open_brokers().frames(part, loss)

    def _open_brokers(self) -> BrokerFrames:
        if self._brokers is None:
            self._brokers = BrokerFrames(self._bootstrap).__enter__()
        return self._brokers

    def _open_store(self, url: str) -> StoredFrames:
        if url not in self._stores:
            self._stores[url] = StoredFrames(url, verify=self._verify)
        return self._stores[url]
