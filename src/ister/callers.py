"""The connections that others have dialled to the peer port, and what is taken from them.

Anything may call there: another broker, a client with the wrong port, a scanner, garbage. So nobody has a
claim to memory before it has said who it is: until its hello was accepted a caller may send messages of up
to `GREETING_BYTES` and has `GREETING_SECONDS` for it. How many may call at once is bounded; beyond that the
oldest of those that did not say that they are in the cluster has to go, so that strangers keep no member out.
Who falls silent is let go: a node that lost power says no goodbye.
A caller that does not take its answers is not read from. Whatever is refused is told why, in the caller's own
words where it is one of ours, and its connection closed; nothing of it reaches the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ister.errors import BadRequest, IsterError, Overloaded, RequestTimeout
from ister.io.clock import monotonic
from ister.logs import Repeats, fields
from ister.protocol.codec import (
    MAX_ANSWER_BYTES,
    MAX_HEADER_BYTES,
    decode_header,
    encode_failure,
    encode_header,
)
from ister.protocol.peer import (
    PEER_PREAMBLE_SIZE,
    NodeAddress,
    PeerHello,
    PeerHelloAnswer,
    PeerKind,
    check_peer_preamble,
)
from ister.protocol.stream import MessageStream

log = logging.getLogger("ister.peers")

GREETING_BYTES = 64 * 1024
GREETING_SECONDS = 5.0
SILENT_SECONDS = 15.0
TELL_EVERY_SECONDS = 60.0
MAX_CALLERS = 256
MAX_REQUESTS = 4096
"""Of one member, that are not answered yet."""
STRANGERS_REQUESTS = 4
"""Of one that is in no cluster: it has nothing to ask but to be let in."""
HELD_BYTES = 64 * 1024 * 1024
"""Of frames that one node has sent to be replicated, and that are not durable yet; then it is not read."""
_RAFT = int(PeerKind.RAFT)
_REPLICATE = int(PeerKind.REPLICATE)

Serve = Callable[[NodeAddress, int, bytes, bytes], Awaitable[bytes]]
"""Answers a request: who asks, kind, header, payload -> the answer's header."""


def _takes_no_frames(caller: Caller, header: bytes, payload: bytes) -> None:
    raise BadRequest("this node keeps no replicas")


class Callers:
    """All of them, and what they share."""

    def __init__(
        self,
        hello: Callable[[], PeerHello],
        *,
        on_raft: Callable[[int, bytes], None],
        serve: Serve,
        accepts: Callable[[PeerHello], IsterError | None],
        on_hello: Callable[[PeerHello], None],
        now_us: Callable[[], int] = lambda: 0,
    ) -> None:
        self.on_replicate: Callable[[Caller, bytes, bytes], None] = _takes_no_frames
        self.hello = hello
        self.on_raft = on_raft
        self.serve = serve
        self.accepts = accepts
        self.on_hello = on_hello
        self.now_us = now_us
        self._all: dict[Caller, None] = {}
        self._calls = 0
        self._refusals = Repeats(monotonic, TELL_EVERY_SECONDS)

    def __len__(self) -> int:
        return len(self._all)

    def next_number(self) -> int:
        self._calls += 1
        return self._calls

    def answer_call(self) -> Caller:
        """For the listener: somebody has connected."""
        return Caller(self)

    def nodes(self) -> list[NodeAddress]:
        """Those that say that they are in the cluster."""
        return [caller.hello.node for caller in self._all if caller.hello is not None and caller.is_member]

    def close(self) -> None:
        for caller in list(self._all):
            caller.close()

    def opened(self, caller: Caller) -> None:
        self._all[caller] = None
        if len(self._all) > MAX_CALLERS:
            silent = min(self._all, key=lambda one: one.heard_at)
            gone = next((one for one in self._all if not one.is_member), silent)
            gone.refuse(Overloaded(f"{MAX_CALLERS} others have called this node already"))
            self.lost(gone)

    def lost(self, caller: Caller) -> None:
        self._all.pop(caller, None)

    def tell_of_refusal(self, what: str, peer: str, error: IsterError) -> None:
        """Who is refused calls again within a second, for as long as it runs: that is said once, and then how
        often."""
        count = self._refusals.count((what, error.message))
        level = logging.WARNING if count else logging.DEBUG
        again = {"times": count} if count > 1 else {}
        log.log(level, "%s: %s", what, error.message, extra=fields(peer=peer, **again))

    def drop(self, is_gone: Callable[[PeerHello], bool]) -> None:
        for caller in [one for one in self._all if one.hello is not None and is_gone(one.hello)]:
            caller.abort()


class Caller(MessageStream):
    """One of them."""

    def __init__(self, callers: Callers) -> None:
        super().__init__(GREETING_BYTES, PEER_PREAMBLE_SIZE)
        self.hello: PeerHello | None = None
        self.number = callers.next_number()
        """Whoever calls later has a higher one."""
        self.heard_at = 0.0
        self._callers = callers
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = 0
        self._is_held_up = False

    @property
    def is_member(self) -> bool:
        """Whether it says so, and nothing speaks against it."""
        return self.hello is not None and bool(self.hello.cluster_id)

    # The stream's side.

    def opened(self) -> None:
        loop = asyncio.get_running_loop()
        self.heard_at = monotonic()
        self._timer = loop.call_later(GREETING_SECONDS, self._too_late)
        self._callers.opened(self)

    def preamble(self, data: bytes) -> None:
        check_peer_preamble(data)

    def message(self, correlation: int, kind: int, header: bytes, payload: bytes) -> None:
        hello = self.hello
        self.heard_at = monotonic()
        if hello is None:
            if kind != PeerKind.HELLO:
                raise BadRequest(f"a peer's first request is of kind {kind}, a hello was expected")
            self._greet(correlation, decode_header(PeerHello, header))
        elif kind == PeerKind.HELLO:
            raise BadRequest(f"node {hello.node.node_id} said hello a second time")
        elif kind == PeerKind.PING:
            self.send(correlation, 0, self._callers.now_us().to_bytes(8, "little"))
        elif not hello.cluster_id and kind != PeerKind.JOIN:
            raise BadRequest(f"a node that is in no cluster sent a request of kind {kind}")
        elif kind == _REPLICATE:
            self._callers.on_replicate(self, header, payload)
        elif kind == _RAFT:
            self._callers.on_raft(hello.node.member, payload)
        else:
            self._begin(hello.node, correlation, kind, header, payload)

    def refused(self, error: IsterError) -> None:
        self._callers.tell_of_refusal("not a peer", self.peer, error)
        self.send_raw(encode_failure(0, error))

    def lost(self) -> None:
        self._callers.lost(self)
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self._is_held_up:
            self.resume_reading()

    # Frames that it wants replicated.

    def hold(self, size: int) -> None:
        """So many bytes of its frames are not durable yet; or no longer so, if negative."""
        self._held += size
        if self._held > HELD_BYTES and not self._is_held_up:
            self._is_held_up = True
            self.pause_reading()
        elif self._held <= HELD_BYTES and self._is_held_up:
            self._is_held_up = False
            if not self.is_congested:
                self.resume_reading()

    # What it wants.

    def _greet(self, correlation: int, hello: PeerHello) -> None:
        error = self._callers.accepts(hello)
        if error is not None:
            self._callers.tell_of_refusal("peer refused", self.peer, error)
            self.send_raw(encode_failure(correlation, error))
            self.close()
            return
        self.hello = hello
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(SILENT_SECONDS, self._look)
        if hello.cluster_id:
            self.max_bytes = MAX_ANSWER_BYTES  # what a client may send, a replica must take
        self._callers.on_hello(hello)
        mine = self._callers.hello()
        self.send(correlation, 0, encode_header(PeerHelloAnswer(mine.cluster_id, mine.node)))

    def _look(self) -> None:
        """A member asks now and then whether this node is there: one that does not is gone without a word."""
        loop = asyncio.get_running_loop()
        left = self.heard_at + SILENT_SECONDS - monotonic()
        if left <= 0:
            self.abort()
        else:
            self._timer = loop.call_later(left, self._look)

    def _too_late(self) -> None:
        self.refuse(RequestTimeout(f"no hello came within {GREETING_SECONDS:g} s"))

    def refuse(self, error: IsterError) -> None:
        """Say why, and close."""
        self.refused(error)
        self.close()

    def _begin(self, node: NodeAddress, correlation: int, kind: int, header: bytes, payload: bytes) -> None:
        if len(self._tasks) >= (MAX_REQUESTS if self.is_member else STRANGERS_REQUESTS):
            error = Overloaded(f"{len(self._tasks)} requests of node {node.node_id} are not answered yet")
            self.send_raw(encode_failure(correlation, error))
            return
        task = asyncio.get_running_loop().create_task(self._answer(node, correlation, kind, header, payload))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(
        self, node: NodeAddress, correlation: int, kind: int, header: bytes, payload: bytes
    ) -> None:
        try:
            answer = await self._callers.serve(node, kind, header, payload)
            if len(answer) <= MAX_HEADER_BYTES:
                self.send(correlation, 0, answer)
            else:
                self.send(correlation, 0, b"", answer)
        except IsterError as error:
            self.send_raw(encode_failure(correlation, error))
        except Exception as error:  # a defect: who asked need not wait for its timeout to hear of it
            task = asyncio.current_task()
            report = {"message": f"a peer's request of kind {kind} failed", "exception": error, "task": task}
            asyncio.get_running_loop().call_exception_handler(report)
            self.send_raw(encode_failure(correlation, IsterError(f"{type(error).__name__}: {error}")))
