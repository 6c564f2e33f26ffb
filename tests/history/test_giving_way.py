"""An export makes way for those who write, as long as little waits for it, and for nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ister.history.giving_way import LEAST, PATIENCE_BYTES, QUIET, GivingWay, share
from ister.io.clock import monotonic
from ister.testing.loop import VirtualLoop, simulate

WRITTEN = 400 << 20
"""Bytes a second that writers have, at their limit."""
PIECE = 2 << 20


class Node:
    """Bytes come in at a rate, from now on."""

    def __init__(self, incoming: float, waiting: int) -> None:
        self.incoming = incoming
        self.waiting = waiting
        self._began = monotonic()

    def received(self) -> int:
        return int((monotonic() - self._began) * self.incoming)


def rate_of(node: Callable[[], Node], limit: int = 0, seconds: float = 20.0) -> float:
    """Of an export whose disk has 1 GiB a second."""

    async def story(_: VirtualLoop) -> float:
        here = node()
        pace = GivingWay(limit, here.received, lambda: here.waiting)
        began, exported = monotonic(), 0
        while monotonic() - began < seconds + 1:
            await asyncio.sleep(PIECE / (1 << 30))
            await pace.passed(PIECE)
            exported += PIECE if monotonic() - began > 1 else 0  # it has seen what comes in by then
        return exported / (monotonic() - began - 1)

    return simulate(story, seed=1)


@pytest.mark.parametrize(
    ("incoming", "waiting", "least", "most"),
    [
        (0, PATIENCE_BYTES, 900 << 20, 1 << 30),  # nobody writes: all that the disk has
        (QUIET // 2, PATIENCE_BYTES // 2, 900 << 20, 1 << 30),
        (WRITTEN, 1 << 30, 0.9 * LEAST, 1.1 * LEAST),  # a little waits: hardly felt
        (WRITTEN, PATIENCE_BYTES // 2, 0.22 * WRITTEN, 0.28 * WRITTEN),
        (WRITTEN, PATIENCE_BYTES, 900 << 20, 1 << 30),  # it falls behind no further
    ],
)
def test_the_pace_beside_writers(incoming: int, waiting: int, least: float, most: float) -> None:
    assert least <= rate_of(lambda: Node(incoming, waiting)) <= most


def test_the_limit_holds_beside_nobody_and_beside_writers() -> None:
    assert rate_of(lambda: Node(0, 0), limit=LEAST // 2) <= 0.55 * LEAST
    assert rate_of(lambda: Node(WRITTEN, PATIENCE_BYTES), limit=LEAST // 2) <= 0.55 * LEAST


def test_writers_that_stop_are_waited_for_no_longer() -> None:
    async def story(_: VirtualLoop) -> None:
        node = Node(WRITTEN, 1 << 30)
        pace = GivingWay(0, node.received, lambda: node.waiting)
        for _ in range(10):
            await pace.passed(PIECE)
        node.incoming = 0
        await pace.passed(PIECE)
        began = monotonic()
        for _ in range(1000):
            await pace.passed(PIECE)
        assert monotonic() - began < 2.0

    simulate(story, seed=1)


def test_what_waits_never_grows_for_good() -> None:
    """Beside writers that never stop, on a disk that has room for both: each byte passes twice, when it is
    uploaded and when it is read back."""
    waiting, disk = 0.0, 2.5 * WRITTEN
    for _ in range(3600):
        waiting += WRITTEN - min(share(WRITTEN, int(waiting)) or disk, disk) / 2
    assert waiting <= PATIENCE_BYTES + WRITTEN
