"""The last look at the copies that are counted, before one that is not in the list goes (C4).

The metadata says who has all of a segment. Files go by its word only when so many of those as are needed have
said once more, at this very list, that they have: an answer is worth a deletion, a silence or a "no" is not,
and keeps none of the others from being counted.
"""

from __future__ import annotations

from typing import Protocol

from ister.asking import ask_each
from ister.errors import NodeUnreachable, RequestTimeout
from ister.metadata.copies import needed, staying
from ister.metadata.store import MetadataStore
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.peer import PeerKind
from ister.protocol.replication import Copy, CopyAnswer
from ister.replication.places import Place

ASK_SECONDS = 15.0


class Asking(Protocol):
    """The node that asks."""

    metadata: MetadataStore

    async def ask(self, member: int, kind: PeerKind, header: bytes, timeout: float) -> bytes: ...


async def ask_about(node: Asking, member: int, place: Place, *, source: int = 0) -> bool:
    """Whether it says that it has all of a sealed segment, at the metadata of this node. With a `source` it
    makes a copy first, if it is no replica: it is asked again until that is whole."""
    segment = place.segment
    assert segment.data_end is not None
    index = node.metadata.state.applied_index
    request = Copy(place.topic.uid, segment.uid, 0, source, segment.data_end, index)
    answer = await node.ask(member, PeerKind.COPY, encode_header(request), ASK_SECONDS)
    return decode_header(CopyAnswer, answer).end_offset == segment.data_end


async def are_enough_there(node: Asking, place: Place, silent: set[int]) -> bool:
    """Whether so many have all of it as are needed without a copy that is not in the list (C4). `silent` are
    members that did not answer a moment ago, and are not waited for again; others come to it."""
    segment = place.segment
    there = staying(node.metadata.state.nodes, segment.replicas)
    counted = [m for m in there if segment.is_whole_at(m) and m not in silent and node.metadata.is_alive(m)]
    count = needed(segment.replicas, there)
    if len(counted) < count:
        return False
    told = await ask_each(counted, lambda member: ask_about(node, member, place), ASK_SECONDS)
    silent.update(m for m, why in told.faults.items() if isinstance(why, NodeUnreachable | RequestTimeout))
    return sum(told.answers.values()) >= count
