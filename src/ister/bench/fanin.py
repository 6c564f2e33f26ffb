"""Many small appends from many connections: what the broker does when nobody batches.

The client side is as thin as the real connection class allows: one frame made beforehand and sent over and
over (without a producer's identity, so that it is a new record each time), no futures, no tasks. What is
measured is the broker; but client and broker share the machine, and so its processors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from ister.bench.load import Phase, describe
from ister.bench.raw import now
from ister.bench.workload import Workload
from ister.client.connection import Connection, open_connection
from ister.client.log import CLIENT_NAME
from ister.client.routing import parse_bootstrap
from ister.errors import IsterError
from ister.frame import encode
from ister.io.network import TcpNetwork
from ister.names import normalise_topic
from ister.protocol.codec import Bytes, encode_header
from ister.protocol.messages import Append, Hello, Kind

_TIMEOUT_S: Final = 60.0
_APPEND: Final = int(Kind.APPEND)


class Fanin:
    """Connections that are kept between repetitions, as clients keep theirs."""

    def __init__(self, bootstrap: str, count: int) -> None:
        self._address = parse_bootstrap(bootstrap)[0]
        self._count = count
        self._connections: list[Connection] = []

    async def __aenter__(self) -> Self:
        network, hello = TcpNetwork(), Hello(CLIENT_NAME)
        for _ in range(self._count):
            self._connections.append(
                await open_connection(network, self._address, hello, timeout_s=_TIMEOUT_S)
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections:
            connection.close()
        await asyncio.sleep(0)

    async def run(self, topic: str, values: Sequence[bytes], work: Workload) -> Phase:
        race = _Race(encode_header(Append(normalise_topic(topic))), encode(values), work.batch_count)
        began = now()
        for connection in self._connections:
            for _ in range(work.in_flight):
                _Slot(race, connection).send()
        await race.finished
        return describe(work, values, now() - began, race.latencies)


class _Race:
    """What all appends of one phase share: how many are still to be sent, and to be answered."""

    __slots__ = ("finished", "frame", "header", "latencies", "unanswered", "unsent")

    def __init__(self, header: bytes, frame: bytes, count: int) -> None:
        self.header = header
        self.frame = frame
        self.unsent = self.unanswered = count
        self.latencies: list[float] = []
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Slot:
    """One append in flight, and after it the next: the sink of its own answers."""

    __slots__ = ("_began", "_connection", "_race")

    def __init__(self, race: _Race, connection: Connection) -> None:
        self._race = race
        self._connection = connection
        self._began = 0.0

    def send(self) -> None:
        race = self._race
        if race.unsent:
            race.unsent -= 1
            self._began = now()
            self._connection.send(_APPEND, race.header, race.frame, self, _TIMEOUT_S)

    def answered(self, header: bytes, payload: Bytes) -> None:
        race = self._race
        race.latencies.append(now() - self._began)
        race.unanswered -= 1
        if race.unanswered:
            self.send()
        elif not race.finished.done():
            race.finished.set_result(None)

    def failed(self, error: IsterError) -> None:
        if not self._race.finished.done():
            self._race.finished.set_exception(error)
