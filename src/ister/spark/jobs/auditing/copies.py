"""The audit's task over replicas: each node's own copy of some shares, compared frame by frame, with each
other and with the history's.

A frame's header has the checksum of its body, and its own; each body was verified as it came. So two frames
whose headers are the same bytes are the same records, and only headers are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from ister.addresses import Address
from ister.client.own_copy import open_own_copy
from ister.errors import CorruptSegment, IsterError, ObjectNotFound, UnknownTopic
from ister.frame import HEADER_SIZE
from ister.io.network import TcpNetwork
from ister.spark.jobs.auditing.findings import REPLICA, Finding, shown
from ister.spark.jobs.auditing.objects import is_object
from ister.spark.jobs.snapshot import Share
from ister.spark.stored import StoredFrames

Headers = dict[int, tuple[int, bytes]]
"""By base offset: where the frame ends, and its header."""


OBJECT_NODE: Final = 0
"""What stands for the history among the nodes, which count from 1."""


def compare_shares(nodes: Mapping[int, Address], shares: Sequence[Share]) -> list[list[Finding]]:
    return [asyncio.run(_compare(nodes, share, _in_object(share))) for share in shares]


def _in_object(share: Share) -> Headers | None:
    """What the history has of a share. A damaged object is no match for copies; its own check tells of it."""
    if not is_object(share.range) or not share.nodes:
        return None
    found = share.range.lives[0].descriptor
    assert found is not None
    stored, headers = StoredFrames(found.store), Headers()
    try:
        for frame in stored.frames(found, share.range.start, share.range.end):
            headers[frame.header.base_offset] = (frame.header.end_offset, bytes(frame.data[:HEADER_SIZE]))
    except (CorruptSegment, ObjectNotFound):
        return None
    finally:
        stored.close()
    return headers


async def _compare(nodes: Mapping[int, Address], share: Share, stored: Headers | None) -> list[Finding]:
    copies: dict[int, Headers] = {} if stored is None else {OBJECT_NODE: stored}
    findings: list[Finding] = []
    for node in share.nodes:
        headers: Headers = {}
        try:
            await _read(node, nodes.get(node), share, headers)
        except UnknownTopic:
            raise
        except (IsterError, OSError) as error:
            at = max((end for end, _ in headers.values()), default=share.range.start)
            first, behind = getattr(error, "offsets", None) or (at, share.range.end)
            findings.append(
                Finding(
                    REPLICA,
                    first,
                    behind,
                    f"{shown(first, behind)}: node {node}: {error}",
                    share.segment,
                    node,
                )
            )
        copies[node] = headers
    return findings + _differences(copies, share, {finding.node for finding in findings})


async def _read(node: int, address: Address | None, share: Share, headers: Headers) -> None:
    if address is None:
        raise UnknownTopic(f"node {node} is not in the cluster any more", hint="Audit it again.")
    wanted = share.range
    async with open_own_copy(TcpNetwork(), node, address) as copy:
        async for frame in copy.frames(wanted.topic, wanted.uid, wanted.start, wanted.end):
            header = frame.header
            headers[header.base_offset] = (header.end_offset, bytes(frame.data[:HEADER_SIZE]))


def _differences(copies: Mapping[int, Headers], share: Share, broken: set[int]) -> list[Finding]:
    """Against the first whole copy. One that broke off is compared as far as it came."""
    whole = [node for node in copies if node not in broken]
    if not whole:
        return []
    reference, found = whole[0], []
    for node, headers in copies.items():
        if node == reference:
            continue
        for base, (end, header) in headers.items():
            theirs = copies[reference].get(base)
            if theirs is None or theirs[1] != header:
                found.append(_differ(share, node, reference, base, end))
        if node not in broken:
            missing = [base for base in copies[reference] if base not in headers]
            found += [_differ(share, node, reference, base, copies[reference][base][0]) for base in missing]
    return found


def _differ(share: Share, node: int, reference: int, start: int, end: int) -> Finding:
    other = "the object of the history" if reference == OBJECT_NODE else f"node {reference}"
    what = f"{shown(start, end)}: node {node} has other bytes than {other}"
    return Finding(REPLICA, start, end, what, share.segment, node)
