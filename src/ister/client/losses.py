"""The part of a log about what cannot be reached, and giving that up (F6)."""

from __future__ import annotations

from ister.client.requests import Part
from ister.names import normalise_topic
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.messages import Kind, RecoverTopic
from ister.protocol.recovery import TopicRecovery


class Losses(Part):
    """What of a topic cannot be reached, and giving it up."""

    async def recovery_of(self, topic: str) -> TopicRecovery:
        """How it stands with the topic's open segment, and what would be lost if it were given up now."""
        name = normalise_topic(topic)
        return await self._recover(f"looking at {name}", RecoverTopic(name))

    async def accept_loss(self, shown: TopicRecovery, *, node_stopped: bool) -> TopicRecovery:
        """Give up, for good, what cannot be reached of a topic, so that it goes on (F6): the rest of its open
        segment, if it waits for that, and what left of sealed segments with their disks.

        `shown` is what `recovery_of` said: no other segment is given up, and of these nothing that lies
        before its `lost_from`, or its `gone_from`. `node_stopped` states that the nodes in `shown.silent` are
        stopped, and stay so until they have heard of this.
        """
        is_open_lost = not shown.gone_segments or shown.gives_up_open
        request = RecoverTopic(
            shown.topic,
            accept_loss=True,
            node_stopped=node_stopped,
            segment_uid=shown.segment_uid if is_open_lost else 0,
            leader_starts=shown.leader_starts,
            lost_from=shown.lost_from,
            gone_segments=shown.gone_segments,
            gone_from=shown.gone_from,
        )
        return await self._recover(f"accepting the loss of {shown.topic}", request)

    async def _recover(self, what: str, request: RecoverTopic) -> TopicRecovery:
        # Of any node: the one that leads the topic is the last to ask.
        answer = await self.requests.call(what, Kind.RECOVER_TOPIC, encode_header(request))
        return decode_header(TopicRecovery, answer.header or answer.payload)
