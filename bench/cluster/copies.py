"""Whether every segment has as many whole copies as its topic wants, by what the nodes say of themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final

import ister
from ister.errors import IsterError
from ister.protocol.messages import SegmentDescription, TopicDescription

REPLICATED_SECONDS: Final = 120.0
UNDER_WAY_RECORDS: Final = 1000
_POLL_SECONDS: Final = 0.1


def what_is_missing(described: TopicDescription, copies: int, *, only_open: bool = False) -> str:
    """The first segment that has fewer whole copies than so many, and why; empty if none has."""
    for segment in described.segments[-1:] if only_open else described.segments:
        if lack := _lack(segment, copies):
            return f"{described.topic}:{segment.segment} {lack}"
    return ""


def _lack(segment: SegmentDescription, copies: int) -> str:
    if segment.state not in ("open", "sealed"):
        return f"is {segment.state}"
    if len(segment.replicas) < copies:
        return f"is on nodes {segment.replicas} only"
    # A follower of an open segment lacks what is under way at this moment, and that is as it should be.
    for copy in segment.copies:
        if segment.sealed or copy.why or copy.lacks > UNDER_WAY_RECORDS:
            return f"is {copy.state} on node {copy.node}: {copy.why or f'lacks {copy.lacks} records'}"
    return ""


async def wait_replicated(
    bootstrap: str,
    topics: Iterable[str],
    copies: int,
    *,
    only_open: bool = False,
    seconds: float = REPLICATED_SECONDS,
) -> float:
    """Until all segments of these topics, or the open ones, have so many whole copies; returns the seconds.

    Where the open ones have theirs, no leader is lost and nothing is left to be handed on.
    """
    began = time.monotonic()
    async with ister.connect(bootstrap, request_timeout_s=5, retry_deadline_s=seconds) as log:
        for topic in topics:
            while missing := await _missing(log, topic, copies, only_open):
                if time.monotonic() - began > seconds:
                    raise AssertionError(f"not all is replicated after {seconds:g} s: {missing}")
                await asyncio.sleep(_POLL_SECONDS)
    return time.monotonic() - began


async def _missing(log: ister.Log, topic: str, copies: int, only_open: bool) -> str:
    try:
        return what_is_missing(await log.describe_topic(topic), copies, only_open=only_open)
    except IsterError as error:
        return f"{topic}: {error}"
