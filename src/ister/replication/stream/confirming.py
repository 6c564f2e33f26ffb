"""Whether a leader still leads, asked of its followers before it says that a segment ends here.

A recovery may have ended the segment, and others may have appended behind it, without this node having heard
of it. It has fenced R - Q + 1 replicas then; so if Q, the leader among them, say after the question came that
they still follow, nothing was committed by anybody else before it. That needs no clock and no metadata.

Questions that come in one turn of the event loop are one. One that nobody answers in time is given up; a
follower that connects meanwhile is asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class _Round:
    """One question, and who has answered it."""

    def __init__(self) -> None:
        self.told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.members: set[int] = set()
        self.askers = 0


class Confirming:
    def __init__(self, needed: int, ask: Callable[[int], None]) -> None:
        """`needed` of the followers are to answer what `ask` sends to all of them."""
        self._needed = needed
        self._ask = ask
        self._number = 0
        self._joinable = False
        self._rounds: dict[int, _Round] = {}

    async def confirm(self, seconds: float) -> bool:
        """True once enough followers have said that they follow; False if they do not say so in time."""
        if not self._joinable:
            self._number += 1
            self._joinable = True
            self._rounds[self._number] = _Round()
            asyncio.get_running_loop().call_soon(self._send, self._number)
        number = self._number
        asked = self._rounds.setdefault(number, _Round())
        asked.askers += 1
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(asked.told)
        except TimeoutError:
            return False
        finally:
            asked.askers -= 1
            if not asked.askers:
                self._rounds.pop(number, None)

    def _send(self, number: int) -> None:
        self._joinable = False
        self._ask(number)

    @property
    def open(self) -> list[int]:
        """Questions to which answers are still wanted."""
        return list(self._rounds)

    def answered(self, member: int, number: int) -> None:
        """A follower follows, and has said so after this question came."""
        for asked, question in self._rounds.items():
            if asked <= number:
                question.members.add(member)
                if len(question.members) >= self._needed and not question.told.done():
                    question.told.set_result(True)

    def close(self) -> None:
        """The segment is not this leader's any more."""
        for question in self._rounds.values():
            if not question.told.done():
                question.told.set_result(False)
