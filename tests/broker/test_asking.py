"""The same question to several members: what becomes of it."""

from __future__ import annotations

import asyncio

import pytest

from ister.asking import ask_each, ask_in_turn
from ister.errors import CorruptSegment, NodeUnreachable, OffsetOutOfRange, RequestTimeout
from ister.testing import simulate

ANSWERS, SILENT, DOWN, ROTTEN, FINAL = 1 << 32, 2 << 32, 3 << 32, 4 << 32, 5 << 32


async def ask(member: int) -> str:
    match member:
        case _ if member == SILENT:
            await asyncio.sleep(3600)
        case _ if member == DOWN:
            raise NodeUnreachable("it is down")
        case _ if member == ROTTEN:
            raise CorruptSegment("it is rotten")
        case _ if member == FINAL:
            raise OffsetOutOfRange("it is not there")
    return "yes"


def test_nobody_is_waited_for_longer_than_the_others_and_why_they_are_silent_is_told() -> None:
    told = simulate(lambda _: ask_each([SILENT, ANSWERS, DOWN], ask, 5), seed=1, limit_seconds=6)
    assert told.answers == {ANSWERS: "yes"}
    assert list(told.faults) == [SILENT, DOWN]
    assert isinstance(told.faults[SILENT], RequestTimeout) and "(5 s)" in str(told.faults[SILENT])


def test_one_is_asked_after_the_other_until_one_answers_or_says_what_all_would_say() -> None:
    passed_over = (NodeUnreachable, CorruptSegment)

    def in_turn(*members: int) -> tuple[dict[int, str], list[int]]:
        told = simulate(lambda _: ask_in_turn(members, ask, passed_over), seed=1)
        return told.answers, list(told.faults)

    assert in_turn(DOWN, ROTTEN, ANSWERS, FINAL) == ({ANSWERS: "yes"}, [DOWN, ROTTEN])
    assert in_turn(DOWN, ROTTEN) == ({}, [DOWN, ROTTEN])
    with pytest.raises(OffsetOutOfRange):
        in_turn(DOWN, FINAL, ANSWERS)
