"""A node alone: durable before it is answered, the same after any number of restarts."""

from __future__ import annotations

import asyncio
import random

import pytest

from ister.testing import Loss, VirtualLoop, simulate
from tests.metadata.nodes import alone, create, names, numbered, run_alone, topic


@pytest.fixture(autouse=True)
def _short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few entries stay behind a snapshot, so that the snapshots are what counts."""
    monkeypatch.setattr("ister.raft.driver.KEPT_BEHIND_SNAPSHOT", 3)


def test_what_was_answered_is_there_after_a_power_cut() -> None:
    async def main(loop: VirtualLoop) -> None:
        node = alone(loop)
        await run_alone(node)
        await create(node, *range(20))
        node.kill(power=True, loss=Loss.ALL)
        assert names(await run_alone(node)) == numbered(20)

    simulate(main, seed=1, limit_seconds=600)


@pytest.mark.parametrize("every", [7, 10_000])
def test_w8_any_number_of_restarts_see_the_same(every: int) -> None:
    """W8: recovery consumes the log, so that the second restart sees only later entries."""

    async def main(loop: VirtualLoop) -> None:
        node = alone(loop, snapshot_every=every)
        store = await run_alone(node)
        await asyncio.gather(*(store.propose(topic(f"t{n}", node.member)) for n in range(30)))
        for _ in range(4):
            node.kill(power=True, loss=Loss.ALL)
            store = await run_alone(node)
            assert names(store) == numbered(30)
            assert store.state.cluster_id == "c1"

    simulate(main, seed=2, limit_seconds=600)


@pytest.mark.parametrize("seed", range(30))
def test_w9_d17_snapshots_are_real_and_the_log_behind_them_too(seed: int) -> None:
    """W9, D17: snapshots are empty or never persisted, and the state is gone after enough entries."""

    async def main(loop: VirtualLoop) -> None:
        node = alone(loop, snapshot_every=7)
        rng = random.Random(seed)
        answered = 0
        for _ in range(6):
            store = await run_alone(node)
            assert names(store)[:answered] == numbered(answered)
            answered = len(store.state.topics)
            for _ in range(rng.randrange(1, 40)):
                await create(node, answered)
                answered += 1
            last = store.propose(topic(f"t{answered}", node.member))
            asked = asyncio.create_task(last)  # and nobody waits for its answer
            await asyncio.sleep(rng.random() * 0.005)
            node.kill(power=rng.random() < 0.7)
            asked.cancel()
        store = await run_alone(node)
        assert names(store)[:answered] == numbered(answered)
        assert not node.fatal
        assert store.status().snapshot_index > 0
        logs = [name for name in node.disk.mount().list("raft") if name.endswith(".log")]
        assert len(logs) == 1, "journals that a snapshot covers are removed"

    simulate(main, seed=seed, limit_seconds=600)


def test_a_start_with_a_snapshot_says_that_the_whole_state_is_new() -> None:
    async def main(loop: VirtualLoop) -> None:
        node = alone(loop, snapshot_every=10)
        await run_alone(node)
        assert node.restored == 0
        await create(node, *range(25))
        node.kill()
        await run_alone(node)
        assert node.restored == 1

    simulate(main, seed=3, limit_seconds=600)


def test_watchers_hear_every_command_in_order_with_its_index() -> None:
    async def main(loop: VirtualLoop) -> None:
        node = alone(loop)
        store = await run_alone(node)
        heard: list[int] = []
        store.watch(lambda command, outcome: heard.append(outcome.index))
        outcomes = await asyncio.gather(*(store.propose(topic(f"t{n % 5}", node.member)) for n in range(20)))
        assert heard == sorted(outcome.index for outcome in outcomes)
        assert len(set(heard)) == 20

    simulate(main, seed=4, limit_seconds=600)


def test_a_command_whose_asker_went_away_is_applied_all_the_same() -> None:
    async def main(loop: VirtualLoop) -> None:
        node = alone(loop)
        store = await run_alone(node)
        asked = asyncio.create_task(store.propose(topic("t0", node.member)))
        await asyncio.sleep(0)
        asked.cancel()
        await create(node, 1)
        assert names(store) == ["t0", "t1"]

    simulate(main, seed=4, limit_seconds=600)
