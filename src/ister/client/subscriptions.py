"""The part of a log about subscriptions: made, deleted, sent elsewhere."""

from __future__ import annotations

from datetime import datetime

from ister.client.reader import Place, microseconds, wire_place
from ister.client.requests import Part
from ister.errors import SubscriptionExists, UnknownSubscription
from ister.names import normalise_topic
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.messages import Kind
from ister.protocol.subscriptions import (
    CreateSubscription,
    DeleteSubscription,
    FailurePolicy,
    ListSubscriptions,
    PauseSubscription,
    SeekSubscription,
    SubscriptionDescription,
    SubscriptionKind,
    SubscriptionList,
)


class Subscriptions(Part):
    """Subscriptions: made, deleted, sent elsewhere."""

    async def create_subscription(
        self,
        topic: str,
        name: str,
        *,
        kind: str = SubscriptionKind.EXCLUSIVE,
        start: Place = "latest",
        if_absent: bool = False,
        policy: FailurePolicy | None = None,
    ) -> SubscriptionDescription:
        """Make a durable place in a topic, which begins at `latest`, `earliest`, an offset or a time (a
        datetime). With `if_absent` an existing one of that kind is returned as it is. `policy` says what
        becomes of records that are not acknowledged: delivered again, in the end blocked, dropped, put
        aside."""
        at_us = microseconds(start) if isinstance(start, datetime) else -1
        offset = 0 if isinstance(start, datetime) else wire_place(start)
        request = CreateSubscription(
            normalise_topic(topic), name, kind, offset, at_us, if_absent, policy or FailurePolicy()
        )
        retries = self.requests.retries_of(f"creating the subscription {name}", request.topic)
        try:
            answer = await self.requests.attempt(
                retries, Kind.CREATE_SUBSCRIPTION, encode_header(request), None
            )
        except SubscriptionExists as error:
            if retries.in_doubt:
                hint = "An earlier attempt of this call may have made it: `ister subscription describe`."
                raise SubscriptionExists(error.message, hint=hint) from error
            raise
        return decode_header(SubscriptionDescription, answer.header or answer.payload)

    async def delete_subscription(self, topic: str, name: str) -> None:
        """What it had not acknowledged is nobody's business any more; the records stay."""
        full = normalise_topic(topic)
        found = [one for one in await self.subscriptions(full, name) if one.topic == full]
        if not found:
            raise UnknownSubscription(f"{full} has no subscription {name}")
        header = encode_header(DeleteSubscription(full, name, found[0].uid))
        retries = self.requests.retries_of(f"deleting the subscription {name}", full)
        try:
            await self.requests.attempt(retries, Kind.DELETE_SUBSCRIPTION, header, None)
        except UnknownSubscription:
            if not retries.in_doubt:
                raise

    async def seek_subscription(self, topic: str, name: str, place: Place) -> SubscriptionDescription:
        """Let a subscription go on at `earliest`, `latest`, an offset or a time (a datetime), for all of its
        consumers. What is acknowledged of what was delivered before counts no more."""
        full = normalise_topic(topic)
        at_us = microseconds(place) if isinstance(place, datetime) else -1
        offset = 0 if isinstance(place, datetime) else wire_place(place)
        header = encode_header(SeekSubscription(full, name, offset, at_us))
        answer = await self.requests.call(f"moving the subscription {name}", Kind.SEEK_SUBSCRIPTION, header)
        return decode_header(SubscriptionDescription, answer.header or answer.payload)

    async def pause_subscription(self, topic: str, name: str) -> SubscriptionDescription:
        """Hand out nothing until it is resumed; what is handed out can be acknowledged."""
        return await self._pause(topic, name, True)

    async def resume_subscription(self, topic: str, name: str) -> SubscriptionDescription:
        return await self._pause(topic, name, False)

    async def _pause(self, topic: str, name: str, paused: bool) -> SubscriptionDescription:
        header = encode_header(PauseSubscription(normalise_topic(topic), name, paused))
        what = f"{'pausing' if paused else 'resuming'} the subscription {name}"
        answer = await self.requests.call(what, Kind.PAUSE_SUBSCRIPTION, header)
        return decode_header(SubscriptionDescription, answer.header or answer.payload)

    async def subscriptions(self, prefix: str = "", name: str = "") -> list[SubscriptionDescription]:
        """Those of topics whose full name starts with `prefix`; with `name`, only of that name."""
        header = encode_header(ListSubscriptions(prefix, name))
        answer = await self.requests.call("listing subscriptions", Kind.LIST_SUBSCRIPTIONS, header)
        return decode_header(SubscriptionList, answer.header or answer.payload).subscriptions
