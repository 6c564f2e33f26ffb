"""The simulated network: hosts with names, links between them that are slow, cut or reset.

Each node gets `network.host("node-1")`, which implements `ister.io.network.Network`; its listeners are
reached under that name by all the others, and under the loopback names by itself. Connections keep
TCP's promise (`ister.testing.stream`): bytes in order, none lost while the connection lives.

- `partition(a, b, one_way=...)`: bytes from a to b (and back) are held. What is held longer than
  `break_after` breaks the sender's end; the other end learns of it after the partition, if at all.
- `heal()`, `heal(a, b)`: what was held is delivered, as TCP would.
- `reset(a, b)`: connections between the two break at both ends; bytes on the way are lost.
- `kill(host)`: the process there is gone. Its code hears nothing any more; its peers see a reset, or,
  with `silent` (power cut), nothing until something they sent goes unanswered for `break_after`.
  A new process there asks for `host(name)` again; the old object stays dead.
- Rules in `faults`, by link ("node-1>node-2"): `connect` (refused), `reset` (asked for each packet),
  `packet` with a delay.
"""

from __future__ import annotations

import asyncio
import contextvars
from random import Random

from ister.errors import AddressInUse, ConnectionFailed
from ister.io.network import PATIENCE_SECONDS, Listener, ProtocolFactory
from ister.testing.faults import DeadProcess, Faults, Trace
from ister.testing.stream import Stream

_EVERYWHERE = ("", "0.0.0.0", "::")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_FIRST_EPHEMERAL_PORT = 40_000


class _SimListener:
    def __init__(self, host: SimHost, port: int, factory: ProtocolFactory) -> None:
        self.host = host
        self.factory = factory
        self.context = contextvars.copy_context()
        self._address = (host.name, port)

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    def close(self) -> None:
        self.host.network.stop_listening(self)


class SimHost:
    """The network as one process on one host sees it."""

    def __init__(self, network: SimNetwork, name: str) -> None:
        self.network = network
        self.name = name
        self.alive = True

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listener:
        if host not in (self.name, *_EVERYWHERE, *_LOOPBACK):
            raise AddressInUse(f"cannot listen on {host}:{port}: it is no address of {self.name}")
        if not self.alive:
            raise AddressInUse(f"cannot listen on {host}:{port}") from DeadProcess(self.name)
        return self.network.start_listening(self, port, factory)

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.BufferedProtocol:
        target = self.name if host in _LOOPBACK else host
        return await self.network.open_stream(self, factory, target, port)


class SimNetwork:
    """All hosts of a run and the links between them."""

    def __init__(
        self,
        random: Random,
        *,
        latency: tuple[float, float] = (0.0001, 0.003),
        window: int = 256 * 1024,
        break_after: float = 15.0,
        split_probability: float = 0.1,
        trace: Trace | None = None,
    ) -> None:
        self.random = random
        self.latency = latency
        self.window = window  # bytes on the way in one direction of a connection
        self.break_after = break_after
        self.split_probability = split_probability  # that a packet arrives in two parts
        self.faults = Faults(random)
        self._trace = trace
        self._hosts: dict[str, SimHost] = {}
        self._listeners: dict[tuple[str, int], _SimListener] = {}
        self._cut: dict[tuple[str, str], None] = {}
        self._healed: asyncio.Event | None = None
        self._streams: dict[int, Stream] = {}
        self._opened = 0
        self._ports = _FIRST_EPHEMERAL_PORT

    # What the harness uses.

    def host(self, name: str) -> SimHost:
        """The host's network for the process that runs there now."""
        known = self._hosts.get(name)
        if known is None or not known.alive:
            known = self._hosts[name] = SimHost(self, name)
        return known

    def partition(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Nothing gets from `a` to `b`; nor back, unless `one_way`."""
        self._cut[a, b] = None
        if not one_way:
            self._cut[b, a] = None
        self.note(f"partition {a} {b} {one_way}")

    def isolate(self, name: str) -> None:
        """Cut one host off from every other one that is known by now."""
        for other in list(self._hosts):
            if other != name:
                self.partition(name, other)

    def heal(self, a: str | None = None, b: str | None = None) -> None:
        """The links between two hosts, or all, work again; what was held goes on its way."""
        self.note(f"heal {a} {b}")
        for source, target in list(self._cut):
            if a is None or b is None or {source, target} == {a, b}:
                del self._cut[source, target]
        for stream in list(self._streams.values()):
            if a is None or b is None or stream.between(a, b):
                stream.heal()
        if self._healed is not None:
            self._healed.set()
            self._healed = None

    def reset(self, a: str, b: str) -> None:
        """Break the connections between two hosts, at both ends."""
        for stream in list(self._streams.values()):
            if stream.between(a, b):
                stream.reset()

    def kill(self, name: str, *, silent: bool = False) -> None:
        """The process on this host is gone."""
        self.note(f"kill {name} {silent}")
        host = self._hosts.get(name)
        if host is not None:
            host.alive = False
        for address in [address for address in self._listeners if address[0] == name]:
            del self._listeners[address]
        for stream in list(self._streams.values()):
            stream.kill(name, silent=silent)

    def blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._cut

    @property
    def connection_count(self) -> int:
        """Connections of which at least one end is open."""
        return len(self._streams)

    # What hosts ask of it.

    def start_listening(self, host: SimHost, port: int, factory: ProtocolFactory) -> Listener:
        if port == 0:
            port = self.free_port()
        if (host.name, port) in self._listeners:
            raise AddressInUse(f"{host.name}:{port} is already in use by another process")
        listener = self._listeners[host.name, port] = _SimListener(host, port, factory)
        return listener

    def stop_listening(self, listener: _SimListener) -> None:
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def free_port(self) -> int:
        self._ports += 1
        return self._ports

    async def open_stream(
        self, host: SimHost, factory: ProtocolFactory, target: str, port: int
    ) -> asyncio.BufferedProtocol:
        await self._reach(host.name, target, port)
        listener = self._listeners.get((target, port))
        if not host.alive:
            raise ConnectionFailed(f"cannot connect to {target}:{port}") from DeadProcess(host.name)
        if listener is None or self.faults.strike("connect", f"{host.name}>{target}"):
            raise ConnectionFailed(f"cannot connect to {target}:{port}: connection refused")
        stream = self._make_stream(host.name, listener)
        try:
            await asyncio.sleep(self.delay(target, host.name))
        except asyncio.CancelledError:
            stream.client.abort()
            raise
        if not host.alive:
            raise ConnectionFailed(f"cannot connect to {target}:{port}") from DeadProcess(host.name)
        if stream.client.is_closing():
            raise ConnectionFailed(f"cannot connect to {target}:{port}: connection reset")
        protocol = factory()
        stream.client.attach(protocol)
        return protocol

    def _make_stream(self, source: str, listener: _SimListener) -> Stream:
        self._opened += 1
        client = (source, self.free_port())
        stream = Stream(self, self._opened, client, listener.address, listener.context)
        self._streams[stream.number] = stream
        self.note(f"connect {stream.number} {source}>{listener.address[0]}")
        loop = asyncio.get_running_loop()
        loop.call_soon(stream.accept, listener.factory, context=stream.server.context)
        return stream

    async def _reach(self, source: str, target: str, port: int) -> None:
        """The first packet's way there, or its failure to arrive."""
        await asyncio.sleep(self.delay(source, target))
        try:
            async with asyncio.timeout(min(self.break_after, PATIENCE_SECONDS)):
                while self.blocked(source, target) or self.blocked(target, source):
                    if self._healed is None:
                        self._healed = asyncio.Event()
                    await self._healed.wait()
        except TimeoutError:
            raise ConnectionFailed(f"cannot connect to {target}:{port}: timed out") from None

    # What streams ask of it.

    def delay(self, source: str, target: str) -> float:
        return self.random.uniform(*self.latency) + self.faults.delay("packet", f"{source}>{target}")

    def strikes_reset(self, source: str, target: str) -> bool:
        return self.faults.strike("reset", f"{source}>{target}") is not None

    def forget(self, stream: Stream) -> None:
        self._streams.pop(stream.number, None)

    def note(self, what: str) -> None:
        if self._trace is not None:
            self._trace.note(f"network {what}")
