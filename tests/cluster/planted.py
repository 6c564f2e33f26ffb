"""Bugs put into the cluster on purpose, one at a time, to see that its simulation finds them.

Each is a context manager that changes the product's classes while it is entered. Those of Raft are the ones
of `tests.raft`; the others are mistakes that replicated logs really make, the ancestors' own among them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import msgspec

from ister.broker.clients.fetching import Fetches
from ister.broker.node.broker import Broker
from ister.broker.topic import handing_off as topic_handoff
from ister.broker.topic import handoff, sealing
from ister.broker.topic.handing_off import HandingOff
from ister.errors import IsterError, NotLeader
from ister.metadata.applying import TO_TOPICS
from ister.metadata.commands import Outcome, SealSegment
from ister.metadata.proposing import Proposals
from ister.metadata.replicated import ReplicatedMetadata
from ister.metadata.state import ClusterState, TopicState
from ister.protocol import messages
from ister.raft import Entry, HardState, RaftCore, driver
from ister.raft.durable import DurableStorage
from ister.wal.segment import Segment
from tests.raft import planted as raft

Plant = Callable[[], contextlib.AbstractContextManager[Any]]


def _with_core(core: type[RaftCore]) -> contextlib.AbstractContextManager[Any]:
    return mock.patch.object(driver, "RaftCore", core)


# Raft.


def a_vote_is_not_persisted() -> contextlib.AbstractContextManager[Any]:
    """R1: a node that comes back votes again in the same term."""
    append = DurableStorage.append

    def forgetful(self: DurableStorage, state: HardState | None, entries: Sequence[Entry]) -> None:
        append(self, msgspec.structs.replace(state, vote=0) if state is not None else None, entries)

    return mock.patch.object(DurableStorage, "append", forgetful)


def an_entry_of_an_old_term_is_committed_by_counting() -> contextlib.AbstractContextManager[Any]:
    """The paper's figure 8."""
    return _with_core(raft.CommitsAnOldTerm)


def a_stale_acknowledgement_is_counted() -> contextlib.AbstractContextManager[Any]:
    return _with_core(raft.CountsStaleAcks)


def the_log_is_always_truncated() -> contextlib.AbstractContextManager[Any]:
    return _with_core(raft.AlwaysTruncates)


def half_of_the_voters_commit() -> contextlib.AbstractContextManager[Any]:
    return _with_core(raft.CommitsWithHalf)


def half_of_the_voters_elect() -> contextlib.AbstractContextManager[Any]:
    return _with_core(raft.ElectsWithHalf)


def anybody_is_elected() -> contextlib.AbstractContextManager[Any]:
    return _with_core(raft.VotesForAnybody)


def entries_are_acknowledged_before_the_sync() -> contextlib.AbstractContextManager[Any]:
    """R1: the journal is written and not synced."""
    sync = DurableStorage.sync

    def hasty(self: DurableStorage) -> None:
        with mock.patch.object(type(self._file), "sync", lambda file: None):
            sync(self)

    return mock.patch.object(DurableStorage, "sync", hasty)


# The metadata.


def a_snapshot_is_empty() -> contextlib.AbstractContextManager[Any]:
    """Snapshots are taken and sent, and hold nothing but their index."""

    def empty(self: ClusterState) -> bytes:
        nothing = ClusterState()
        nothing.applied_index, nothing.cluster_id = self.applied_index, self.cluster_id
        return to_bytes(nothing)

    to_bytes = ClusterState.to_bytes
    from ister.metadata.replicated import _Machine

    return mock.patch.object(_Machine, "to_bytes", lambda machine: empty(machine._store.state))


def a_seal_is_no_compare_and_set() -> contextlib.AbstractContextManager[Any]:
    """H1: it seals whatever is open. Twice-proposed is twice-applied."""
    seal = TO_TOPICS[SealSegment]

    def careless(state: ClusterState, index: int, topic: TopicState, command: SealSegment) -> Outcome:
        number = topic.open_segment.segment
        if number != command.segment:
            end = max(command.end_offset, topic.open_segment.base_offset)
            command = msgspec.structs.replace(command, segment=number, end_offset=end)
        return seal(state, index, topic, command)

    return mock.patch.dict(TO_TOPICS, {SealSegment: careless})


def a_seal_of_an_earlier_life_applies() -> contextlib.AbstractContextManager[Any]:
    """What a dead process proposed is taken for its successor's."""
    seal = TO_TOPICS[SealSegment]

    def trusting(state: ClusterState, index: int, topic: TopicState, command: SealSegment) -> Outcome:
        proposer = state.nodes.get(command.sealed_by >> 31)
        starts = proposer.starts if proposer is not None else command.starts
        return seal(state, index, topic, msgspec.structs.replace(command, starts=starts))

    return mock.patch.dict(TO_TOPICS, {SealSegment: trusting})


def applying_depends_on_the_node() -> contextlib.AbstractContextManager[Any]:
    """R3: each node puts its own time into what it applies."""
    applied = ReplicatedMetadata.applied

    def with_own_time(self: ReplicatedMetadata, index: int, data: bytes) -> Outcome:
        outcome = applied(self, index, data)
        for topic in self.state.topics.values():
            if topic.open_segment.uid == index:
                topic.open_segment.opened_at_us += self.myself.node_id
        return outcome

    return mock.patch.object(ReplicatedMetadata, "applied", with_own_time)


def a_read_does_not_ask_the_leader() -> contextlib.AbstractContextManager[Any]:
    """Checker 9: what this node knows is taken for all that there is."""

    async def local(self: Proposals, timeout: float) -> None:
        if not self._raft.leader:
            raise NotLeader("no leader is known")

    return mock.patch.object(Proposals, "read_once", local)


# Handoffs and leases.


def the_end_is_taken_before_the_drain() -> contextlib.AbstractContextManager[Any]:
    """W2: the seal's end is what was committed when the handoff began."""
    drain = HandingOff.drain

    async def early(self: HandingOff, segment: Segment) -> Any:
        end = segment.committed_end
        await drain(self, segment)
        self._led.handoff.end_offset = end
        return [handoff.ProposeSeal(end)]

    return mock.patch.object(HandingOff, "drain", early)


def appends_are_admitted_while_the_seal_is_on_its_way() -> contextlib.AbstractContextManager[Any]:
    """The lease is checked before the wait only: who was let in writes on while its segment is sealed."""
    step = handoff.Handoff.step

    def open_door(self: handoff.Handoff, event: Any) -> Any:
        effects = step(self, event)
        self.admits = True
        return effects

    return mock.patch.object(handoff.Handoff, "step", open_door)


def producers_are_not_carried_over() -> contextlib.AbstractContextManager[Any]:
    """A5: the next leader has never heard of those who were writing."""
    make_seal = sealing.make_seal

    def forgetful(*args: Any) -> SealSegment:
        return msgspec.structs.replace(make_seal(*args), producers=[])

    return mock.patch.object(topic_handoff, "make_seal", forgetful)


def a_node_leads_before_it_was_announced() -> contextlib.AbstractContextManager[Any]:
    """It goes by what its own disk remembers of the metadata, which may be older than its last life."""
    start = Broker.start

    async def hasty(self: Broker) -> None:
        self._may_lead.set()
        await start(self)
        self.sync_leases()

    return mock.patch.object(Broker, "start", hasty)


# Reading.


def a_reader_jumps_over_what_cannot_be_read() -> contextlib.AbstractContextManager[Any]:
    """S4: on an error the cursor goes on to the next segment that answers."""
    answer = Fetches.answer

    async def jumping(self: Fetches, connection: Any, correlation: int, header: bytes) -> None:
        try:
            await answer(self, connection, correlation, header)
        except IsterError as error:
            request = msgspec.msgpack.decode(header, type=messages.Fetch)
            topic = self._broker.topics.get(request.topic)
            following = [
                segment.base_offset
                for segment in (topic.state.segments if topic is not None else [])
                if segment.base_offset > request.offset
            ]
            if not error.retriable or not following:
                raise
            jumped = msgspec.structs.replace(request, offset=following[0], min_index=0)
            await answer(self, connection, correlation, msgspec.msgpack.encode(jumped))

    return mock.patch.object(Fetches, "answer", jumping)


@contextlib.contextmanager
def nothing() -> Iterator[None]:
    """No bug at all: the measure of the others."""
    yield


FOUND_BY_SEEDS: dict[Plant, int] = {
    half_of_the_voters_commit: 3,
    half_of_the_voters_elect: 10,
    anybody_is_elected: 10,
    entries_are_acknowledged_before_the_sync: 3,
    a_snapshot_is_empty: 3,
    applying_depends_on_the_node: 1,
    a_read_does_not_ask_the_leader: 3,
    the_end_is_taken_before_the_drain: 5,
    appends_are_admitted_while_the_seal_is_on_its_way: 3,
    producers_are_not_carried_over: 1,
    a_reader_jumps_over_what_cannot_be_read: 5,
}
"""Each with the number of seeds, from 0 on, within which random faults find it."""

FOUND_BY_SCHEDULE: tuple[Plant, ...] = (
    a_vote_is_not_persisted,
    a_seal_is_no_compare_and_set,
    a_seal_of_an_earlier_life_applies,
    a_node_leads_before_it_was_announced,
    an_entry_of_an_old_term_is_committed_by_counting,
    a_stale_acknowledgement_is_counted,
    the_log_is_always_truncated,
)
"""Those that random faults find too seldom: a directed schedule finds each at once."""
