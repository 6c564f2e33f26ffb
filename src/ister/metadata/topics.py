"""Topics and the chains of their segments, as they are kept in the metadata.

Msgpack arrays: a field's place is its identity, new ones are appended with a default. A snapshot from before
they were there is read with the default.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import msgspec

from ister.names import wal_key
from ister.protocol.messages import TopicSettings
from ister.protocol.subscriptions import FailurePolicy
from ister.quorum import acknowledging
from ister.wal.producers import ProducerRow


class ToldCopy(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a member of a sealed segment's list has said of its copy, which is not whole (C2)."""

    member: int
    state: int
    """A `Reported`."""
    end_offset: int = 0
    """Where it ends, if it is short."""


class HistoryObject(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Where a sealed segment is in the history: its descriptor. Never edited (E5), but for `damaged`."""

    name: str
    attempt: int
    """Of this segment's uploads: part of the name (E2)."""
    size: int
    crc: int
    """Of the whole object."""
    first_append_time_us: int
    exported_by: int
    """The member that published it."""
    published_at_us: int
    damaged: bool = False
    """Somebody has read it, and it was not what it should be: no copy is released for its sake (C3)."""
    position: int = 0
    """Where its bytes begin, in a merged object: one that has those of several segments, end to end (E5)."""
    stored_size: int = 0
    """Of that merged object, all of it. 0: the object has this segment alone, and `size` is its size."""

    @property
    def is_to_be_made_anew(self) -> bool:
        """Whether a whole copy is to be exported in its place; a merged object is others' too, and stays."""
        return self.damaged and not self.is_part

    @property
    def is_part(self) -> bool:
        """Of a merged object."""
        return self.stored_size > 0


class SegmentState(msgspec.Struct, array_like=True, gc=False):
    """Outside the garbage collector's sight: there are many, they are in no cycle, and it would be slow."""

    segment: int
    uid: int
    base_offset: int
    leader: int
    """A member: a node with its disk. One that comes back on another disk is not it (I2)."""
    replicas: list[int]
    """Members. Of an open segment they never change (F4); the list is replaced, not edited."""
    opened_at_us: int
    carried_producers: list[ProducerRow]
    """What the seal before this one brought; dropped when this one is sealed."""
    carried_append_time_us: int
    log_exists: bool = False
    end_offset: int | None = None
    end_position: int = 0
    last_append_time_us: int = 0
    sealed_by: int = 0
    sealed_at_us: int = 0
    recovery: int = 0
    """The index of the last `BeginRecovery`; 0 if nobody has begun one. Kept after the seal, for people."""
    coordinator: int = 0
    """The member that began it: the only one that may seal."""
    lost_from: int | None = None
    """The rest of this segment's offsets, from here on, was given up by an operator (F6). What a replica that
    comes back has of them is set aside and reported, never cut."""
    records_limit: int = 0
    """The largest `segment_records` that the topic had while this segment was open: how far its leader may
    have gone, whichever of them it had heard of (F6). 0 of one that is sealed, or was opened before this was
    kept."""
    whole_at_least: int = 0
    """Of a sealed segment: so many of `replicas` are known to have had all of it; the others may end short,
    and be completed without anybody saying so here. 0 if nobody has counted them: then most of them had. Only
    commands from before there were names go by it."""
    forgot_at: int = 0
    """The uid that the last seal of this topic which dropped a producer has opened: this one, or an earlier
    one; 0 if none did. A producer's first frame that may be older may be stored, and forgotten (A5)."""
    whole: list[int] = []
    """Of a sealed segment: those of `replicas` that are known to have all of it, durably (C1), in the list's
    order. Replaced, not edited."""
    told: list[ToldCopy] = []
    """What others in the list have said of theirs, the oldest first. Who is in neither may have anything."""
    listed_at: int = 0
    """The index of the last change of the list or of the end: what was looked at before that is old."""
    history: HistoryObject | None = None
    """The published object that has all of its records (E1)."""
    first_attempt: int = 0
    """Objects of earlier attempts were abandoned, and are never published (E3)."""

    @property
    def is_released(self) -> bool:
        """Whether only the history has it: no node is to have a copy any more."""
        return self.history is not None and not self.replicas

    @property
    def is_sealed(self) -> bool:
        return self.end_offset is not None

    @property
    def data_end(self) -> int | None:
        """Where the records end that a replica must have: short of the seal if the rest was given up."""
        return self.end_offset if self.lost_from is None else self.lost_from

    @property
    def surely_whole(self) -> int:
        """So many of its replicas, whichever they are, have all of it."""
        return self.whole_at_least or acknowledging(len(self.replicas))

    def is_whole_at(self, member: int) -> bool:
        """Whether a member of the list is known to have all of it: of nothing everybody has all."""
        return member in self.whole or (self.is_empty and member in self.replicas)

    def told_by(self, member: int) -> ToldCopy | None:
        return next((told for told in self.told if told.member == member), None)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read in it, now and for ever: it is sealed, and nothing was appended or
        all of it was given up."""
        return self.data_end == self.base_offset


class LostRange(msgspec.Struct, array_like=True, frozen=True):
    """Offsets that were given out and whose records, if there were any, nobody can have (F6)."""

    from_offset: int
    end_offset: int
    segment: int
    """The first of them, if there are several."""
    at_us: int
    was_sealed: bool = False
    """Nothing was lost but records: what producers had sent is known."""


class PinState(msgspec.Struct, array_like=True):
    """How far a reader of the topic is, by what it said last (`metadata.pins`)."""

    name: str
    offset: int
    """The next one that it needs."""
    renewed_at_us: int
    expires_at_us: int
    about: str = ""
    """What it says of itself, for people."""
    before_offset: int = 0
    before_us: int = 0
    """What it said before that, and when: how fast it is. 0 if that was the first time."""

    def is_live(self, now_us: int) -> bool:
        return now_us < self.expires_at_us


class SubscriptionState(msgspec.Struct, array_like=True):
    """A durable place in a topic (`metadata.subscriptions`)."""

    name: str
    uid: int
    kind: str
    created_at_us: int
    cursor: int
    """The next offset: everything below is acknowledged (S4)."""
    owner: int = 0
    """The member that hands out its records; 0 until somebody asks for some (S1)."""
    epoch: int = 0
    """Raised by every change of owner, each life of one, and every seek."""
    beyond: list[tuple[int, int]] = []
    """Ranges that are acknowledged beyond the cursor; replaced, not edited."""
    attempts: list[tuple[int, int, int]] = []
    """How often ranges were handed out that are not acknowledged; replaced, not edited."""
    policy: FailurePolicy = FailurePolicy()
    paused: bool = False
    """Nothing is handed out."""


def _uid_of(subscription: SubscriptionState) -> int:
    return subscription.uid


class TopicState(msgspec.Struct, array_like=True):
    name: str
    uid: int
    settings: TopicSettings
    created_at_us: int
    segments: list[SegmentState]
    """Those not trimmed, in order; the last one is open."""
    start_offset: int = 0
    get_owner: int = 0
    """The member that hands out records to GET; 0 until the first GET (S5)."""
    get_epoch: int = 0
    get_offset: int = 0
    """Where GET goes on after a crash of its owner: the next offset (S4)."""
    lost: list[LostRange] = []
    """What was given up, oldest first; the newest ones, trimmed or not. The segments have their own marks."""
    pins: list[PinState] = []
    """Each name once; the list is replaced, not edited."""
    home: int = 0
    """The member that it was moved to, and stays led by across rollovers; 0 if it goes round."""
    subscriptions: list[SubscriptionState] = []
    """In the order in which they were made, which is that of their uids; the list is replaced, not edited."""

    def subscription(self, name: str) -> SubscriptionState | None:
        return next((one for one in self.subscriptions if one.name == name), None)

    def subscription_by_uid(self, uid: int) -> SubscriptionState | None:
        place = bisect_left(self.subscriptions, uid, key=_uid_of)
        found = self.subscriptions[place] if place < len(self.subscriptions) else None
        return found if found is not None and found.uid == uid else None

    @property
    def open_segment(self) -> SegmentState:
        return self.segments[-1]

    @property
    def hot_start_offset(self) -> int:
        """From where on nodes have the records. What is before that is in the history only: here a reader
        cuts over."""
        start = self.open_segment.base_offset
        for segment in reversed(self.segments[:-1]):
            if segment.is_released:
                break
            start = segment.base_offset
        return start

    def key_of(self, segment: SegmentState) -> str:
        return wal_key(self.name, segment.segment)

    def segment(self, number: int) -> SegmentState | None:
        """The segment with this number; None if it was trimmed or is not there yet."""
        place = number - self.segments[0].segment
        return self.segments[place] if 0 <= place < len(self.segments) else None

    def holding(self, offset: int) -> SegmentState | None:
        """The segment that holds `offset`, or will once it is written."""
        # Empty sealed segments share their base with the next one: the last of them is the one.
        place = bisect_right(self.segments, offset, key=_base_of) - 1
        return self.segments[place] if place >= 0 else None


def _base_of(segment: SegmentState) -> int:
    return segment.base_offset
