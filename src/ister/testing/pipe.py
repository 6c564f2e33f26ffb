"""One direction of a simulated connection.

It carries packets with a random delay each, in their order, and at most a window of bytes that the
receiving protocol has not taken yet. A cut link holds packets and acknowledgements until it is healed;
when they are held for too long, the sender's end breaks. A one-way cut also holds the acknowledgements
of the direction that works, so a sender whose bytes arrive but whose acknowledgements do not breaks too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ister.testing.stream import Stream, StreamTransport


class Pipe:
    """One direction of a connection. An empty packet is its end."""

    def __init__(self, stream: Stream, sender: StreamTransport, receiver: StreamTransport) -> None:
        self.sender = sender
        self.receiver = receiver
        self._stream = stream
        self._network = stream.network
        self._loop = asyncio.get_running_loop()
        self._wire: deque[bytes] = deque()  # on the way, a timer for each
        self._held = 0  # of these, how many have arrived at a cut, and wait there
        self._inbox: deque[bytes] = deque()  # arrived, not yet taken by the protocol
        self._unacknowledged = 0  # sent, not yet known to be taken
        self._held_acknowledgements = 0
        self._held_reset = False
        self._arrives_at = 0.0
        self._patience: asyncio.TimerHandle | None = None

    @property
    def room(self) -> int:
        return self._network.window - self._unacknowledged

    def send(self, packet: bytes) -> None:
        self._unacknowledged += len(packet)
        if len(packet) > 1 and self._network.random.random() < self._network.split_probability:
            cut = self._network.random.randrange(1, len(packet))
            self._launch(packet[:cut])
            packet = packet[cut:]
        self._launch(packet)

    def _launch(self, packet: bytes) -> None:
        self._wire.append(packet)
        self._schedule_arrival()

    def _schedule_arrival(self) -> None:
        delay = self._network.delay(self.sender.host, self.receiver.host)
        # Packets do not overtake each other within a connection.
        self._arrives_at = max(self._loop.time() + delay, self._arrives_at)
        self._loop.call_at(self._arrives_at, self._arrive, context=self.receiver.context)

    def _arrive(self) -> None:
        if len(self._wire) <= self._held:
            return  # lost with a reset
        source, target = self.sender.host, self.receiver.host
        if self._held or self._network.blocked(source, target) or self.receiver.silent:
            self._held += 1
            self._lose_patience_later()
            return
        if self._network.strikes_reset(source, target):
            self._stream.reset()
            return
        packet = self._wire.popleft()
        self._network.note(f"packet {self._stream.number} {source}>{target} {len(packet)}")
        if self.receiver.is_closing():
            if packet and self.receiver.dead:  # nobody there takes bytes: the sender is told so
                self.receiver.outgoing.send_reset()
            return
        self._inbox.append(packet)
        self.hand_over()

    def hand_over(self) -> None:
        """To the protocol, as far as it reads."""
        while self._inbox and self.receiver.takes_bytes:
            packet = self._inbox[0]
            if not packet:
                self._inbox.popleft()
                self.receiver.feed_eof()
                return
            taken = self.receiver.feed(memoryview(packet))
            if not self._inbox:
                return  # the connection was reset from within the protocol
            if taken < len(packet):
                self._inbox[0] = packet[taken:]
            else:
                self._inbox.popleft()
            self._acknowledge(taken)

    def _acknowledge(self, size: int) -> None:
        if self._network.blocked(self.receiver.host, self.sender.host):
            self._held_acknowledgements += size
            self._lose_patience_later()
            return
        self._unacknowledged -= size
        if self.sender.waits_for_room:
            self.sender.pump_soon()

    def send_reset(self) -> None:
        """Tell the receiver that it is over; by dice, past the bytes that are still on the way."""
        if self._network.random.random() < 0.5:
            self._wire.clear()
            self._held = 0
        self._schedule_reset()

    def _schedule_reset(self) -> None:
        delay = self._network.delay(self.sender.host, self.receiver.host)
        self._loop.call_later(delay, self._reset_arrives)

    def _reset_arrives(self) -> None:
        if self._network.blocked(self.sender.host, self.receiver.host):
            self._held_reset = True
        else:
            self.receiver.lose(ConnectionResetError("connection reset by peer"))

    def heal(self) -> None:
        self.stop_waiting()
        held, self._held = self._held, 0
        for _ in range(held):
            self._schedule_arrival()
        if self._held_acknowledgements:
            size, self._held_acknowledgements = self._held_acknowledgements, 0
            self._loop.call_soon(self._acknowledge, size)
        if self._held_reset:
            self._held_reset = False
            self._schedule_reset()

    def drop(self) -> None:
        """All that is on the way is lost."""
        self._wire.clear()
        self._inbox.clear()
        self._held = 0
        self._held_reset = False

    def stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _lose_patience_later(self) -> None:
        if self._patience is None and not self.sender.dead:
            self._patience = self._loop.call_later(self._network.break_after, self._lose_patience)

    def _lose_patience(self) -> None:
        self._patience = None
        self._wire.clear()
        self._held = 0
        self.sender.lose(TimeoutError("the peer did not acknowledge in time"))
        self.send_reset()
