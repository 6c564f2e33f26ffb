"""What is told of an append whose first attempt may have taken effect."""

from __future__ import annotations

import pytest
from fake_broker import AppendFault, FakeBroker, Fault
from test_append import run

import ister
from ister.client.retry import leaves_doubt
from ister.errors import IsterError, NodeUnreachable, NotLeader, Overloaded
from ister.frame import FrameHeader


@pytest.mark.parametrize("last", [NodeUnreachable("node 2 is down"), NotLeader("moved"), Overloaded("busy")])
def test_an_append_that_may_be_in_the_log_is_not_given_up_as_one_that_is_not(last: IsterError) -> None:
    """docs/internals/cluster.md: after these the client may conclude that nothing was appended."""

    async def body(broker: FakeBroker, log: ister.Log) -> None:
        seen: list[int] = []

        def fault(header: FrameHeader) -> AppendFault:
            seen.append(header.sequence)
            return Fault.DROP_AFTER if len(seen) == 1 else last

        broker.on_append = fault
        with pytest.raises(IsterError) as told:
            await log.append("orders", [b"a"])
        assert broker.topics["default/orders"].values() == [b"a"], "it is there"
        assert leaves_doubt(told.value), f"and its caller was told {told.value!r}"

    run(body, retry_deadline_s=0.3)
