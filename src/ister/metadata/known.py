"""Where the other nodes are, in a small file beside the log: a hint for the next start.

After a restart of all at once nobody has a leader, and what a node knows to be committed may be older than
its last life: the log alone cannot say how to reach those who would elect one. So the file is written
whenever the nodes change. It is only a hint: one that cannot be read or written is not an error.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from ister.io.disk import Disk, read_whole, write_whole
from ister.protocol.peer import NodeAddress

log = logging.getLogger("ister.metadata")

ADDRESSES = "raft/addresses"


class KnownNodes:
    """The nodes as they are known here, and their file."""

    def __init__(self, disk: Disk) -> None:
        self.nodes: list[NodeAddress] = []
        self._saved: list[NodeAddress] = []
        self._disk = disk
        self._saving = asyncio.Lock()

    async def load(self) -> list[NodeAddress]:
        """Those of the last life."""
        return await self._disk.run(self._load)

    def _load(self) -> list[NodeAddress]:
        try:
            if self._disk.exists(ADDRESSES):
                return msgspec.msgpack.decode(read_whole(self._disk, ADDRESSES), type=list[NodeAddress])
        except (OSError, msgspec.DecodeError) as error:
            log.warning("the addresses of the other nodes cannot be read: %s", error)
        return []

    async def save(self) -> None:
        """Those that are known now. One call at a time: all write the same file, and the last one counts."""
        async with self._saving:
            nodes = self.nodes
            if nodes != self._saved:
                data = msgspec.msgpack.encode(nodes)
                try:
                    await self._disk.run(lambda: write_whole(self._disk, ADDRESSES, data))
                    self._saved = nodes
                except OSError as error:
                    log.warning("the addresses of the other nodes were not saved: %s", error)
