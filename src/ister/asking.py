"""The same question to several members: what each of them answers, and why the others do not.

A member that cannot be asked is a finding, not an error: whoever asks knows what it is worth. A member that
does not answer in time did not answer (`RequestTimeout`). A defect in the asking goes through.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from ister.errors import IsterError, RequestTimeout
from ister.protocol.peer import node_of

log = logging.getLogger("ister.asking")

T = TypeVar("T")


class Asked(NamedTuple, Generic[T]):
    """By member, in the order in which they were named."""

    answers: dict[int, T]
    faults: dict[int, IsterError | OSError]


async def ask_each(members: Iterable[int], ask: Callable[[int], Awaitable[T]], seconds: float) -> Asked[T]:
    """All of them side by side; nobody is waited for longer than so many seconds."""
    asked = Asked[T]({}, {})

    async def ask_one(member: int) -> T | IsterError | OSError:
        try:
            async with asyncio.timeout(seconds):
                return await ask(member)
        except TimeoutError:
            return RequestTimeout(f"node {node_of(member)} did not answer in time ({seconds:g} s)")
        except (IsterError, OSError) as error:
            return error

    named = list(members)
    for member, found in zip(named, await asyncio.gather(*map(ask_one, named)), strict=True):
        if isinstance(found, IsterError | OSError):
            log.debug("node %d did not answer: %s", node_of(member), found)
            asked.faults[member] = found
        else:
            asked.answers[member] = found
    return asked


async def ask_in_turn(
    members: Iterable[int],
    ask: Callable[[int], Awaitable[T]],
    passed_over: tuple[type[IsterError], ...] = (IsterError,),
) -> Asked[T]:
    """One after the other until one answers. What is not to be passed over goes through: the others would
    say the same."""
    asked = Asked[T]({}, {})
    for member in members:
        try:
            asked.answers[member] = await ask(member)
            break
        except passed_over as error:
            asked.faults[member] = error
    return asked
