"""The part of a log about topics, their settings and pins.

A topic that was made or deleted is remembered with the metadata index of that, which the later requests for
its name carry: a node that is behind then means the same topic (I3).
"""

from __future__ import annotations

from typing import Final

from ister.client.connection import Answer
from ister.client.requests import Part
from ister.errors import TopicExists, UnknownTopic
from ister.names import normalise_topic
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.messages import (
    AlterTopic,
    CreateTopic,
    Deleted,
    DeleteTopic,
    DescribeTopic,
    Kind,
    ListPins,
    ListTopics,
    PinDescription,
    PinList,
    Pinned,
    PinTopic,
    TopicDescription,
    TopicList,
    Trimmed,
    TrimTopic,
)

_NO_ARRAY: Final = b"\x90"


class Topics(Part):
    """Topics, their settings and pins."""

    async def create_topic(
        self, topic: str, *, if_absent: bool = False, **settings: int | str
    ) -> TopicDescription:
        """Make a topic; with `if_absent` an existing one is returned as it is."""
        name = normalise_topic(topic)
        header = encode_header(CreateTopic(name, settings, if_absent))
        retries = self.requests.retries_of(f"creating {name}")
        try:
            answer = await self.requests.attempt(retries, Kind.CREATE_TOPIC, header, name)
        except TopicExists as error:
            if retries.in_doubt:
                hint = "An earlier attempt of this call may have made it; `ister topic describe` shows it."
                raise TopicExists(error.message, hint=hint) from error
            raise
        made = await self._described(name, answer)
        self.requests.routes.changed_at(name, made.uid)
        return made

    async def delete_topic(self, topic: str) -> None:
        """Delete the topic that has this name now, and never one that is made after it: an attempt that was
        repeated may be carried out late."""
        name = normalise_topic(topic)
        retries = self.requests.retries_of(f"deleting {name}")
        uid = (await self.describe_topic(name)).uid
        while True:
            header = encode_header(DeleteTopic(name, uid))
            answer = await self.requests.attempt(retries, Kind.DELETE_TOPIC, header, name)
            deleted = decode_header(Deleted, answer.header)
            if deleted.was_there or retries.in_doubt:  # in doubt: an earlier attempt of this call deleted it
                self.requests.routes.changed_at(name, deleted.index)
                return
            self.requests.routes.changed_at(name, deleted.index)
            known, uid = uid, (await self.describe_topic(name)).uid
            if uid == known:  # else the node that described it first was behind
                raise UnknownTopic(f"topic {name} was deleted by somebody else")

    async def alter_topic(self, topic: str, **settings: int | str) -> TopicDescription:
        name = normalise_topic(topic)
        header = encode_header(AlterTopic(name, settings))
        return await self._described(
            name, await self.requests.call(f"altering {name}", Kind.ALTER_TOPIC, header, name)
        )

    async def describe_topic(self, topic: str) -> TopicDescription:
        name = normalise_topic(topic)
        header = encode_header(DescribeTopic(name, self.requests.routes.known_index(name)))
        answer = await self.requests.call(f"describing {name}", Kind.DESCRIBE_TOPIC, header, name)
        return decode_header(TopicDescription, answer.header or answer.payload)

    async def list_topics(self, prefix: str = "") -> list[TopicDescription]:
        """All topics whose full name starts with `prefix`, without their segments. Those of system
        namespaces, which begin with `_`, are among them only if the prefix does."""
        answer = await self.requests.call(
            "listing topics", Kind.LIST_TOPICS, encode_header(ListTopics(prefix))
        )
        return decode_header(TopicList, answer.header or answer.payload).topics

    async def trim_topic(self, topic: str, before_offset: int, *, uid: int = 0) -> int:
        """Drop the oldest records that lie before an offset, as far as they fill sealed segments; returns
        where the topic begins now. With `uid`, only of the topic that has it."""
        name = normalise_topic(topic)
        header = encode_header(TrimTopic(name, before_offset, uid))
        answer = await self.requests.call(f"trimming {name}", Kind.TRIM_TOPIC, header, name)
        return decode_header(Trimmed, answer.header).start_offset

    async def _described(self, topic: str, answer: Answer) -> TopicDescription:
        if answer.header in (b"", _NO_ARRAY):
            return await self.describe_topic(topic)
        return decode_header(TopicDescription, answer.header or answer.payload)

    async def pin(
        self, topic: str, name: str, offset: int, *, ttl_s: float = 60.0, uid: int = 0, about: str = ""
    ) -> Pinned:
        """Say that the reader `name` needs the topic from `offset` on, and let retention wait for it, within
        a bound, for `ttl_s`. Say so again before that is over: a reader that crashed holds nothing."""
        request = PinTopic(normalise_topic(topic), name, offset, max(1, round(ttl_s * 1000)), uid, about)
        return await self._pin(request)

    async def unpin(self, topic: str, name: str, *, uid: int = 0) -> None:
        """Let go of a pin; one that is not there is gone already."""
        await self._pin(PinTopic(normalise_topic(topic), name, 0, 0, uid))

    async def _pin(self, request: PinTopic) -> Pinned:
        # Of any node: the metadata has it.
        what = f"pinning {request.topic} for {request.name}"
        answer = await self.requests.call(what, Kind.PIN_TOPIC, encode_header(request))
        return decode_header(Pinned, answer.header)

    async def pins(self, prefix: str = "") -> list[PinDescription]:
        """How far readers are that said so, in topics whose full name starts with `prefix`; those that have
        not renewed their pin in time are among them for a day."""
        answer = await self.requests.call("listing pins", Kind.LIST_PINS, encode_header(ListPins(prefix)))
        return decode_header(PinList, answer.header or answer.payload).pins
