"""What was written before segments had replicas is read: snapshots, and commands in the journal."""

from __future__ import annotations

from typing import Any

import msgspec

from ister.metadata.codec import decode_command
from ister.metadata.commands import Command, CreateTopic, OpenedSegment, Result, SealSegment
from ister.metadata.state import ClusterState
from ister.protocol.messages import TopicSettings
from tests.metadata.chains import NEW_TWO, ONE, THREE, TWO, apply, chain, node, recover, seal, the_topic

# As they were written then: the hexadecimal one by that build itself, the others are the same values by hand.
SETTINGS: list[Any] = [1_000_000, 268_435_456, 0, "fsync", 0, 0, 16_777_216]
ROWS: list[Any] = [[7, [[0, 1, 0, 5]]]]
SEALED: list[Any] = [1, 4, 0, ONE, [ONE], 1, [], 0, True, 10, 1000, 77, ONE, 50]
OPEN: list[Any] = [2, 6, 10, TWO, [TWO], 50, ROWS, 77, False, None, 0, 0, 0, 0]
TOPIC: list[Any] = ["default/t", 4, SETTINGS, 1, [SEALED, OPEN], 0, TWO, 1, 3]
NODES: list[Any] = [
    [number, f"{number:016x}", 1, f"node-{number}", 6001, f"node-{number}", 9091] for number in (1, 2)
]
SNAPSHOT: list[Any] = [8, "c1", [TOPIC], NODES, []]
SNAPSHOT_BYTES = bytes.fromhex(
    "9508a263319199a964656661756c742f740497ce000f4240ce1000000000a56673796e630000ce0100000001929e010400ce80"
    "00000191ce80000001019000c30acd03e84dce80000001329e02060acf000000010000000291cf000000010000000232919207"
    "9194000100054dc2c00000000000cf00000001000000020103929701b03030303030303030303030303030303101a66e6f6465"
    "2d31cd1771a66e6f64652d31cd23839702b03030303030303030303030303030303201a66e6f64652d32cd1771a66e6f64652d"
    "32cd238390"
)
SEAL: list[Any] = ["SealSegment", 4, 1, 10, 1000, TWO, [TWO], ROWS, 77, ONE, 1, 50, 0, False]
CREATE: list[Any] = ["CreateTopic", "default/t", SETTINGS, ONE, [ONE], 1]


def read(command: list[Any]) -> Command | None:
    return decode_command(msgspec.msgpack.encode(command))


def test_a_snapshot_of_before_is_read_with_the_defaults() -> None:
    assert msgspec.msgpack.encode(SNAPSHOT) == SNAPSHOT_BYTES
    state = ClusterState.from_bytes(SNAPSHOT_BYTES)
    topic = the_topic(state)
    assert chain(state) == [(1, 0, 10), (2, 10, None)]
    assert topic.settings == TopicSettings(replicas=3)
    assert topic.lost == []
    for segment in topic.segments:
        assert (segment.recovery, segment.coordinator, segment.lost_from) == (0, 0, None)
        assert segment.data_end == segment.end_offset
    assert (topic.get_owner, topic.get_epoch, topic.get_offset) == (TWO, 1, 3)
    assert (state.led_by(TWO), state.followed_by(TWO)) == ({4: "default/t:2"}, {})


def test_a_state_of_before_goes_on() -> None:
    state = ClusterState.from_bytes(SNAPSHOT_BYTES)
    assert apply(state, node(3)) is Result.APPLIED
    assert apply(state, seal(4, 2, 20, by=TWO, then=ONE, then_on=[ONE, TWO, THREE])) is Result.APPLIED
    assert apply(state, recover(4, 3)) is Result.APPLIED
    restored = ClusterState.from_bytes(state.to_bytes())
    assert restored.to_bytes() == state.to_bytes()
    assert the_topic(restored).open_segment.recovery == 11


def test_a_snapshot_that_ends_earlier_still_is_read_too() -> None:
    """Each field that was ever appended may be missing from here on, in every row."""
    short = [8, "c1", [["default/t", 4, SETTINGS[:3], 1, [SEALED[:9], OPEN[:8]]]]]
    topic = the_topic(ClusterState.from_bytes(msgspec.msgpack.encode(short)))
    assert (topic.start_offset, topic.get_owner, topic.lost) == (0, 0, [])


def test_commands_of_before_do_what_they_did() -> None:
    created, sealed = read(CREATE), read(SEAL)
    assert isinstance(created, CreateTopic) and created.settings.replicas == 3
    assert isinstance(sealed, SealSegment) and (sealed.recovery, sealed.replicas) == (0, [])
    state = ClusterState()
    for number, command in enumerate([None, node(1), node(2), created, OpenedSegment(4, 1, ONE), sealed], 1):
        state.apply(number, command)
    assert msgspec.msgpack.encode(the_topic(state).segments[0]) == msgspec.msgpack.encode(
        the_topic(ClusterState.from_bytes(SNAPSHOT_BYTES)).segments[0]
    )
    assert the_topic(state).open_segment.replicas == [TWO]


def test_an_older_build_reads_what_it_knows_of_a_newer_ones_rows() -> None:
    """Fields are appended only: the places of the old ones are the same."""
    state = ClusterState.from_bytes(SNAPSHOT_BYTES)
    ((topic,), _) = msgspec.msgpack.decode(state.to_bytes())[2:4]
    assert topic[: len(TOPIC)][:2] == TOPIC[:2]
    assert topic[2][: len(SETTINGS)] == SETTINGS
    assert topic[4][0][: len(SEALED)] == SEALED
    assert topic[4][1][: len(OPEN)] == OPEN
    assert topic[5 : len(TOPIC)] == TOPIC[5:]


def test_i2_a_replica_on_another_disk_of_before_is_another_one() -> None:
    state = ClusterState.from_bytes(SNAPSHOT_BYTES)
    assert not state.is_active(NEW_TWO)
    assert state.is_active(TWO)
