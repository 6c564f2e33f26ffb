"""How long something is tried again, and what is said of it meanwhile."""

from __future__ import annotations

import logging

import pytest

from ister.client.retry import Retries, gave_up, pause_s
from ister.errors import ConnectionFailed, IsterError, NodeUnreachable, NotLeader
from ister.testing import SimClock, VirtualLoop, simulate


def test_a_trouble_that_lasts_is_told_once_and_the_next_one_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main(loop: VirtualLoop) -> None:
        retries = Retries(SimClock(loop, loop.fork("clock")), 60.0, "reading t at offset 5")
        for _ in range(2):
            for _ in range(30):
                await retries.pause(NodeUnreachable("node 3 cannot be reached"))
            retries.succeeded()

    with caplog.at_level(logging.WARNING, "ister.client"):
        simulate(main, seed=1, limit_seconds=600)
    said = [record.getMessage() for record in caplog.records if record.name == "ister.client"]
    assert len(said) == 2
    assert all("reading t at offset 5: node 3 cannot be reached" in line for line in said)


def test_nothing_is_told_of_what_is_soon_over(caplog: pytest.LogCaptureFixture) -> None:
    async def main(loop: VirtualLoop) -> None:
        retries = Retries(SimClock(loop, loop.fork("clock")), 3.0, "a look")
        with pytest.raises(NodeUnreachable, match="a look failed after"):
            while True:
                await retries.pause(NodeUnreachable("node 3 cannot be reached"))

    with caplog.at_level(logging.WARNING, "ister.client"):
        simulate(main, seed=2, limit_seconds=600)
    assert not caplog.records


def test_what_is_asked_of_no_topic_names_none_to_recover() -> None:
    """`tests/losses` has those that are asked of one."""
    error = gave_up(NodeUnreachable("node 3 cannot be reached"), "listing topics", 3, 60.0)
    assert error.hint == NodeUnreachable.default_hint


@pytest.mark.parametrize(
    ("error", "longest"),
    [(NotLeader("no"), 0.25), (NodeUnreachable("no"), 0.25), (ConnectionFailed("no"), 2.0)],
)
def test_who_waits_for_a_failover_looks_again_soon(error: IsterError, longest: float) -> None:
    async def main(loop: VirtualLoop) -> list[float]:
        clock = SimClock(loop, loop.fork("clock"))
        return [pause_s(clock, failures, error) for failures in range(1, 40)]

    pauses = simulate(main, seed=3, limit_seconds=600)
    assert max(pauses) <= longest
    assert all(pause >= longest / 2 for pause in pauses[10:])
