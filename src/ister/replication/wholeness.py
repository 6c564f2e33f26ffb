"""Asking a member whether its copy of a sealed segment is whole: nobody is believed to be by hearsay."""

from __future__ import annotations

from typing import Protocol

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


async def is_whole_at(node: Asking, member: int, place: Place, *, source: int = 0) -> bool:
    """Whether it has all of the segment, at the metadata of this node. With a `source` it makes a copy first,
    if it is no replica: it is asked again until that is whole."""
    segment = place.segment
    assert segment.data_end is not None
    index = node.metadata.state.applied_index
    request = Copy(place.topic.uid, segment.uid, 0, source, segment.data_end, index)
    answer = await node.ask(member, PeerKind.COPY, encode_header(request), ASK_SECONDS)
    return decode_header(CopyAnswer, answer).end_offset == segment.data_end
