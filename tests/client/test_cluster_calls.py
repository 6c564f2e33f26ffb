"""What the client asks of a cluster as a whole: each call is one request, the same in both faces."""

from __future__ import annotations

import asyncio

import pytest
from fake_broker import FakeBroker, Fault

import ister
from ister import sync
from ister.errors import ControlRefused
from ister.io.network import TcpNetwork
from ister.protocol import messages as m

ASKED = [
    (m.Kind.TRANSFER_LEADER, m.NodeRequest(0)),
    (m.Kind.TRANSFER_LEADER, m.NodeRequest(3)),
    (m.Kind.ADD_NODE, m.AddNode("10.0.0.4", 6001)),
    (m.Kind.REMOVE_NODE, m.NodeRequest(2)),
    (m.Kind.PROMOTE_NODE, m.NodeRequest(4)),
    (m.Kind.CONTROL, m.Control("secret", "revoke-leases", "default/a", 3)),
]


def test_nodes_are_added_promoted_and_removed_and_the_metadata_handed_over() -> None:
    async def main() -> None:
        broker = FakeBroker(TcpNetwork())
        async with ister.connect(await broker.start()) as log:
            assert await log.transfer_leader() == m.NodeAnswer(2, "done")
            assert await log.transfer_leader(3) == m.NodeAnswer(3, "done")
            assert await log.add_node("10.0.0.4", 6001) == m.NodeAnswer(4, "done")
            assert await log.remove_node(2) == m.NodeAnswer(2, "done")
            assert await log.promote_node(4) == m.NodeAnswer(4, "done")
            await log.control("revoke-leases", "secret", "default/a", 3)
        assert broker.administered == ASKED
        await broker.stop()

    asyncio.run(main())


def test_the_synchronous_face_asks_the_same() -> None:
    async def main() -> None:
        broker = FakeBroker(TcpNetwork())
        address = await broker.start()

        def plain() -> list[m.NodeAnswer]:
            with sync.connect(address) as log:
                answers = [
                    log.transfer_leader(),
                    log.transfer_leader(3),
                    log.add_node("10.0.0.4", 6001),
                    log.remove_node(2),
                    log.promote_node(4),
                ]
                log.control("revoke-leases", "secret", "default/a", 3)
                return answers

        answers = await asyncio.to_thread(plain)
        assert [answer.node_id for answer in answers] == [2, 3, 4, 2, 4]
        assert broker.administered == ASKED
        await broker.stop()

    asyncio.run(main())


def test_a_lost_answer_is_asked_for_again() -> None:
    async def main() -> None:
        broker = FakeBroker(TcpNetwork())
        faults = [Fault.DROP_AFTER]
        broker.on_request = lambda kind: faults.pop() if kind == m.Kind.ADD_NODE and faults else None
        async with ister.connect(await broker.start()) as log:
            assert (await log.add_node("10.0.0.4", 6001)).node_id == 4
        assert len(broker.administered) == 2
        await broker.stop()

    asyncio.run(main())


def test_a_refused_control_is_said_once_and_not_repeated() -> None:
    async def main() -> None:
        broker = FakeBroker(TcpNetwork())
        broker.on_request = lambda kind: ControlRefused("no") if kind == m.Kind.CONTROL else None
        async with ister.connect(await broker.start()) as log:
            with pytest.raises(ControlRefused):
                await log.control("sync-leases", "wrong")
        assert broker.requests.count(m.Kind.CONTROL) == 1
        await broker.stop()

    asyncio.run(main())
