"""How topics come to be: by command, or by the first append to them.

Appends to a topic that is being made wait for it, within bounds, in the order of their arrival. That there is
no topic is never a matter of this node being behind: the metadata leader is asked before anybody is told so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ister.broker.topic.held import HeldAppend, HeldAppends
from ister.broker.topic.sealing import seen_by
from ister.broker.topic.topic_log import TopicLog
from ister.errors import IsterError, NotLeader, Overloaded, ShuttingDown, TopicExists, UnknownTopic
from ister.metadata.commands import CreateTopic, Outcome, Result
from ister.metadata.placement import first_leader, replicas_of
from ister.names import is_system
from ister.protocol.messages import TopicSettings
from ister.settings import validate_settings

if TYPE_CHECKING:
    from ister.broker.node.broker import Broker

ASK_SECONDS = 3.0
_CHOICES = 3
"""How often a leader is chosen anew because the one chosen has left meanwhile."""


class Creation:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._held: dict[str, HeldAppends] = {}
        """Appends that wait for the topic that the first of them makes."""
        self._proposed: list[str] = []
        """Names in creations that are under way; one may be there twice."""

    def is_awaited(self, name: str) -> bool:
        """Whether appends wait for this topic: a later one must not overtake them."""
        return name in self._held

    def hold(self, name: str, append: HeldAppend) -> None:
        """Keep an append to a topic that is not there until it is made, or known not to be."""
        broker, config = self._broker, self._broker.config
        may_make = config.auto_create_topics and not is_system(name)
        if not may_make and broker.metadata.is_alone:
            raise _not_made(name)
        held = self._held.get(name)
        if held is None:
            if may_make:
                self._check_room_for(name)
            held = HeldAppends(config.max_held_appends, config.max_held_bytes, config.max_held_ms / 1000)
            self._held[name] = held
            broker.spawn(self._make_for(name, held))
        held.add(append, name)

    async def _make_for(self, name: str, held: HeldAppends) -> None:
        broker = self._broker
        try:
            if broker.config.auto_create_topics and not is_system(name):
                topic = await broker.create_topic(name, {}, if_absent=True)
            else:
                topic = await broker.find(name)
        except IsterError as error:
            del self._held[name]
            held.refuse(_not_made(name) if isinstance(error, UnknownTopic) else error)
            return
        del self._held[name]
        for append in held.release():
            try:
                topic.append(*append)  # which refuses it, if it was deleted since
            except IsterError as error:
                append.sink.refused(append.token, error)

    async def create(self, name: str, settings: dict[str, int | str], *, if_absent: bool) -> TopicLog:
        broker = self._broker
        self._check_room_for(name)
        defaults = broker.config.topic_defaults()
        chosen: TopicSettings = msgspec.structs.replace(defaults, **validate_settings(settings))
        created_at_us = broker.clock.now_us()
        self._proposed.append(name)
        try:
            outcome = await self._propose(name, chosen, created_at_us)
        finally:
            self._proposed.remove(name)
        topic = await broker.find(name)
        # An attempt of this call whose answer was lost may be the one that made it.
        is_ours = topic.state.created_at_us == created_at_us
        if outcome.result is Result.EXISTS and not if_absent and not is_ours:
            raise TopicExists(f"topic {name} is there already")
        return topic

    async def _propose(self, name: str, settings: TopicSettings, created_at_us: int) -> Outcome:
        for _ in range(_CHOICES):
            leader = await self._first_leader(name)
            replicas = replicas_of(leader, settings.replicas, name, seen_by(self._broker.storage))
            command = CreateTopic(name, settings, leader, replicas, created_at_us)
            outcome = await self._broker.metadata.propose(command)
            if outcome.result is not Result.REFUSED:
                return outcome
        raise NotLeader(f"topic {name} was not made: {outcome.detail}")

    async def _first_leader(self, name: str) -> int:
        metadata = self._broker.metadata
        if not metadata.state.active_members:
            await metadata.read_index(ASK_SECONDS)
        members = seen_by(self._broker.storage).able
        if not members:
            raise NotLeader(f"no node can lead {name} yet: the cluster is only starting")
        return first_leader(name, members)

    def _check_room_for(self, name: str) -> None:
        """Hold max_topics, with those that are being made: by a command, or by a first append."""
        made, limit = self._broker.topics, self._broker.config.max_topics
        being_made = {new for new in (*self._held, *self._proposed) if new not in made}
        if name in made or name in being_made:
            return
        if len(made) + len(being_made) >= limit:
            raise Overloaded(
                f"there are {len(made)} topics and {len(being_made)} are being made, max_topics is {limit}"
            )

    def stop(self) -> None:
        for held in self._held.values():
            held.refuse(ShuttingDown("the broker is stopping"))


def _not_made(name: str) -> UnknownTopic:
    if is_system(name):
        return UnknownTopic(
            f"there is no topic {name}, and no append makes one in a namespace that begins with _",
            hint="Such namespaces are Ister's own. Choose another name, or make the topic by command.",
        )
    return UnknownTopic(f"there is no topic {name}, and auto_create_topics is off")
