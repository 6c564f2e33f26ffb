"""Whether the brokers can be reached from where this runs: each of them, by a greeting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from ister.addresses import Address
from ister.client.connection import open_connection
from ister.client.log import CLIENT_NAME
from ister.client.routing import parse_bootstrap
from ister.errors import IsterError
from ister.io.clock import monotonic
from ister.io.network import TcpNetwork
from ister.protocol.messages import Hello

TIMEOUT_S = 3.0


class Greeting(msgspec.Struct, frozen=True):
    """What a broker answered; `error` says why it did not, with what to do."""

    address: str
    cluster_id: str = ""
    node_id: int = 0
    milliseconds: float = 0.0
    error: str = ""
    hint: str = ""


def greet_all(addresses: Sequence[str]) -> list[Greeting]:
    """Of all at once, in their order."""

    async def greet() -> list[Greeting]:
        return list(await asyncio.gather(*map(_greet, map(_address, addresses))))

    return asyncio.run(greet())


def _address(text: str) -> Address:
    return parse_bootstrap(text)[0]


async def _greet(address: Address) -> Greeting:
    begun = monotonic()
    try:
        line = await open_connection(TcpNetwork(), address, Hello(CLIENT_NAME), timeout_s=TIMEOUT_S)
    except IsterError as error:
        return Greeting(str(address), error=error.message, hint=error.hint)
    took_ms = (monotonic() - begun) * 1000
    answer = line.hello
    line.close()
    assert answer is not None
    return Greeting(str(address), answer.cluster_id, answer.node_id, round(took_ms, 1))
