"""Asking a member whether its copy of a sealed segment is whole: nobody is believed to be by hearsay."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from ister.metadata.store import MetadataStore
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.peer import PeerKind
from ister.protocol.replication import DAMAGED, Copy, CopyAnswer
from ister.replication.places import Place

ASK_SECONDS = 15.0


class Said(Enum):
    """What is known of a copy by asking."""

    WHOLE = "whole"
    NOT_KNOWN = "not known"
    DAMAGED = "damaged"
    """And none in the list has it better."""


class Asking(Protocol):
    """The node that asks."""

    metadata: MetadataStore

    async def ask(self, member: int, kind: PeerKind, header: bytes, timeout: float) -> bytes: ...


async def ask_about(node: Asking, member: int, place: Place, *, source: int = 0) -> Said:
    """What it says of its copy, at the metadata of this node. With a `source` it makes one first, if it is no
    replica: it is asked again until that is whole."""
    segment = place.segment
    assert segment.data_end is not None
    index = node.metadata.state.applied_index
    request = Copy(place.topic.uid, segment.uid, 0, source, segment.data_end, index)
    answer = await node.ask(member, PeerKind.COPY, encode_header(request), ASK_SECONDS)
    end = decode_header(CopyAnswer, answer).end_offset
    if end == DAMAGED:
        return Said.DAMAGED
    return Said.WHOLE if end == segment.data_end else Said.NOT_KNOWN


async def is_whole_at(node: Asking, member: int, place: Place, *, source: int = 0) -> bool:
    return await ask_about(node, member, place, source=source) is Said.WHOLE
