"""The part of a log about where topics begin and end, and waiting for what comes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime

from ister.client.reader import reading_key, wire_place
from ister.client.requests import Part
from ister.errors import UnknownTopic
from ister.names import normalise_topic
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.messages import LATEST, Fetch, FetchAnswer, Kind, ListOffsets, ListOffsetsAnswer


class Ends(Part):
    """Where topics begin and end, and waiting for what comes."""

    async def offsets_at(self, topic: str, place: str | int | datetime, *, uid: int = 0) -> int:
        """The offset at `earliest`, `latest`, or of the first record appended at or after a time
        (a datetime, or microseconds since 1970); the end of the topic where there is no such record. With
        `uid`, only of the topic that has it."""
        name = normalise_topic(topic)
        index = self.requests.routes.known_index(name)
        header = encode_header(ListOffsets(name, [wire_place(place)], index, topic_uid=uid))
        answer = await self.requests.call(f"finding offsets of {name}", Kind.LIST_OFFSETS, header, name)
        return decode_header(ListOffsetsAnswer, answer.header).offsets[0]

    async def ends_of(self, uids: Mapping[str, int]) -> dict[str, int | None]:
        """Where each of these topics ends, given by name and uid; None if there is none with that uid any
        more, also if another one has its name (I3)."""
        names = list(uids)
        found = await asyncio.gather(*(self._end_of(name, uids[name]) for name in names))
        return dict(zip(names, found, strict=True))

    async def _end_of(self, topic: str, uid: int) -> int | None:
        name = normalise_topic(topic)
        header = encode_header(
            ListOffsets(name, [LATEST], self.requests.routes.known_index(name), topic_uid=uid)
        )
        try:
            answer = await self.requests.call(
                f"finding the end of {name}", Kind.LIST_OFFSETS, header, reading_key(name)
            )
        except UnknownTopic:
            return None
        return decode_header(ListOffsetsAnswer, answer.header).offsets[0]

    async def wait_for_records(self, ends: Mapping[str, int], wait_s: float) -> bool:
        """Wait until a topic, of those that end at these offsets, has a record there, or something is wrong
        with one: whoever looks next will be told. No record is sent. False if the time was over before."""
        if not ends:
            await asyncio.sleep(wait_s)
            return False
        waits = [asyncio.ensure_future(self._has_record(name, ends[name], wait_s)) for name in ends]
        try:
            done, _ = await asyncio.wait(waits, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            return any(wait.exception() is not None or wait.result() for wait in done)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _has_record(self, topic: str, offset: int, wait_s: float) -> bool:
        name = normalise_topic(topic)
        key, index = reading_key(name), self.requests.routes.known_index(name)
        request = Fetch(name, offset, 1, int(wait_s * 1000), index, only_wait=True)
        what = f"waiting for offset {offset} of {name}"
        answer = await self.requests.call(what, Kind.FETCH, encode_header(request), key, wait_s=wait_s)
        told = decode_header(FetchAnswer, answer.header)
        self.requests.routes.learned(key, told.served_by)
        return told.end_offset > offset
