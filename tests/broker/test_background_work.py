"""Work that nobody waits for: if it ends by a defect the node ends with it, and nothing of it is silent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from tests.broker.broker_helpers import SimNode, frame_of, simulated
from tests.cluster.small import World as Cluster
from tests.cluster.small import play as play_cluster
from tests.simulation.small import World, play

from ister.broker.node import process
from ister.config import BrokerConfig
from ister.errors import InvariantBroken, IsterError, NotLeader
from ister.testing.checkers import Violation


def a_defect(*_: object) -> None:
    raise KeyError("a defect")


async def fails(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


@pytest.mark.parametrize("error", [KeyError("a defect"), OSError("no such file"), NotLeader("it is not")])
def test_a_loop_that_ends_by_an_error_ends_the_node_and_says_where(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    async def scenario(node: SimNode) -> None:
        node.broker.sync_leases = fail  # type: ignore[method-assign]
        await asyncio.sleep(10)
        (fatal,) = node.fatal
        assert isinstance(fatal, InvariantBroken) and node.broker.fatal is fatal
        assert "_keep_leases" in fatal.message and type(error).__name__ in fatal.message
        assert node.loop.unhandled == [fatal]
        node.loop.unhandled.clear()

    simulated(scenario)
    (line,) = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert line.exc_info is not None and line.exc_info[1] is not None
    assert line.exc_info[1].__cause__ is error, "the traceback is of what was met"


def test_a_defect_in_work_that_comes_to_an_end_ends_the_node_too() -> None:
    async def scenario(node: SimNode) -> None:
        node.broker.spawn(fails(KeyError("a defect")))
        await asyncio.sleep(1)
        assert ["KeyError" in fatal.message for fatal in node.fatal] == [True]
        node.loop.unhandled.clear()

    simulated(scenario)


@pytest.mark.parametrize("error", [OSError("no such file"), NotLeader("it is not")])
def test_an_error_of_work_that_comes_to_an_end_is_reported_and_costs_that_work_alone(
    error: Exception,
) -> None:
    async def scenario(node: SimNode) -> None:
        node.broker.spawn(fails(error))
        await asyncio.sleep(1)
        assert node.fatal == []
        assert node.loop.unhandled == [error]
        node.loop.unhandled.clear()
        await (await node.connect()).append("t", frame_of(b"x"))

    simulated(scenario)


def test_what_a_stop_cancels_is_no_failure() -> None:
    async def turns_it_into_an_error() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise NotLeader("it is stopping") from None

    async def scenario(node: SimNode) -> None:
        node.broker.spawn(asyncio.sleep(3600), vital=True)
        node.broker.spawn(turns_it_into_an_error(), vital=True)
        await asyncio.sleep(1)
        await node.stop()
        assert node.fatal == [] and node.loop.unhandled == []
        again = await node.launch_again()
        await again.stop()

    simulated(scenario)


def test_a_simulated_cluster_counts_a_node_that_died_of_a_defect_as_a_violation() -> None:
    async def script(world: Cluster) -> None:
        world.nodes[2].running.sync_leases = a_defect  # type: ignore[method-assign]
        await world.until(lambda: not world.nodes[2].is_up)
        await world.judge()

    with pytest.raises(Violation, match="node-2 died of a defect"):
        play_cluster(script)


def test_a_simulated_broker_that_died_of_a_defect_is_a_violation() -> None:
    async def script(world: World) -> None:
        assert world.node.broker is not None
        world.node.broker.sync_leases = a_defect  # type: ignore[method-assign]
        await asyncio.sleep(10)
        assert not world.node.is_up
        await world.node.start()
        await world.judge()

    with pytest.raises(Violation, match="died of a defect"):
        play(script)


def test_a_process_that_cannot_go_on_while_it_starts_ends_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def starts_and_fails(config: BrokerConfig, *, on_fatal: Callable[[IsterError], None]) -> None:
        on_fatal(InvariantBroken("a loop ended"))
        await asyncio.sleep(3600)

    monkeypatch.setattr(process, "start", starts_and_fails)
    with pytest.raises(InvariantBroken, match="a loop ended"):
        asyncio.run(process._main(BrokerConfig(), None))
