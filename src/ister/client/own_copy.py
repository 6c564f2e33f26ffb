"""What one node has by itself: for those who compare copies, where any other reader takes whichever answers.

The node is asked with `here_only`, so that it answers from its own copy of a sealed segment, its own log of
an open one that it leads, or what it follows of one, and passes nothing on. What it lacks is an error that
says so.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from ister.addresses import Address
from ister.client.connection import Connection, open_connection
from ister.client.log import CLIENT_NAME
from ister.client.reader import check_line
from ister.errors import NodeUnreachable
from ister.frame import DEFAULT_LIMIT, Frame, frames_in
from ister.io.network import Network
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.messages import Fetch, FetchAnswer, Hello, Kind

FETCH_BYTES: Final = 2 * 1024 * 1024
BEHIND_MS: Final = 5_000
"""How long a follower may take to hear of what its leader has committed."""
_CONNECT_SECONDS: Final = 5.0


class OwnCopy:
    """One node's own records, over a connection of its own."""

    def __init__(self, connection: Connection, node_id: int) -> None:
        self._connection = connection
        self._node_id = node_id

    async def frames(self, topic: str, uid: int, start: int, end: int) -> AsyncGenerator[Frame, None]:
        """Verified frames that follow each other, from the one that holds `start` to the one before `end`."""
        offset, may_clip = start, True
        while offset < end:
            request = Fetch(
                topic,
                offset,
                FETCH_BYTES,
                BEHIND_MS,
                topic_uid=uid,
                here_only=True,
                read_from_any=True,
                as_it_is=True,
            )
            answer = await self._connection.request(
                Kind.FETCH, encode_header(request), wait_s=BEHIND_MS / 1000
            )
            told = decode_header(FetchAnswer, answer.header)
            frames = frames_in(answer.payload, limit=max(DEFAULT_LIMIT, len(answer.payload)))
            if told.served_by != self._node_id or not frames:
                raise NodeUnreachable(f"node {self._node_id} has nothing at offset {offset} of {topic}")
            behind, may_clip = check_line(frames, topic, offset, may_clip), False
            for frame in frames:
                if frame.header.base_offset < end:
                    yield frame
            offset = behind


@asynccontextmanager
async def open_own_copy(network: Network, node_id: int, address: Address) -> AsyncGenerator[OwnCopy, None]:
    connection = await open_connection(network, address, Hello(CLIENT_NAME), timeout_s=_CONNECT_SECONDS)
    try:
        yield OwnCopy(connection, node_id)
    finally:
        connection.close()
