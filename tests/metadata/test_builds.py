"""Builds side by side: nodes that know different commands neither stop nor come to differ."""

from __future__ import annotations

from typing import Any
from unittest import mock

import msgspec
import pytest

from ister.errors import BuildTooOld, JoinFailed
from ister.metadata import applying
from ister.metadata import commands as all_commands
from ister.metadata.codec import COMMANDS, CommandSet, encode_command
from ister.metadata.commands import (
    AlterTopic,
    Command,
    CreateSubscription,
    CreateTopic,
    FailMove,
    FlushRow,
    FlushSubscriptions,
    Outcome,
    PinRow,
    Result,
    SetPins,
    TopicCommand,
    UpsertNode,
)
from ister.metadata.state import ClusterState
from ister.protocol.messages import TopicSettings
from ister.protocol.subscriptions import FailurePolicy
from ister.testing import VirtualLoop, simulate
from tests.metadata.chains import ONE, node
from tests.metadata.nodes import Cluster
from tests.metadata.test_membership import told_to_stop

KINDS: tuple[type[Command], ...] = (*applying.TO_ALL, *applying.TO_TOPICS)


def build_without(*kinds: type[Command]) -> CommandSet:
    return CommandSet(kind for kind in KINDS if kind not in kinds)


OLD = build_without(SetPins)


def pin(uid: int) -> SetPins:
    return SetPins(1_000, [PinRow(uid, "q", 0, 60_000_000)])


class ReleaseTopic(TopicCommand, frozen=True):
    """What a later build might make of it."""

    to: int = 0


def release_to(state: ClusterState, index: int, topic: Any, command: ReleaseTopic) -> Outcome:
    topic.home = command.to
    return Outcome(Result.APPLIED, index, topic_uid=topic.uid)


LATER = CommandSet((*(kind for kind in KINDS if kind.__name__ != "ReleaseTopic"), ReleaseTopic))


async def of_two_builds(cluster: Cluster, old: CommandSet) -> int:
    """Three nodes, the second with an older build, and a topic; its uid."""
    await cluster.make(1).start(found=True)
    for number in (2, 3):
        made = cluster.make(number)
        made.build = old if number == 2 else COMMANDS
        await made.start(join=[1])
    await cluster.voters({1, 2, 3})
    await cluster.announced()
    return (await cluster.store(1).propose(cluster.topic("t"))).topic_uid


async def restart(cluster: Cluster, number: int, build: CommandSet) -> None:
    there = cluster.nodes[number]
    there.kill()
    there.build = build
    await there.start()


def pins_of(cluster: Cluster) -> list[int]:
    return [len(store.state.topics["default/t"].pins) for store in cluster.running]


# What is known and what is needed.


def test_every_command_has_a_row_and_every_row_a_command() -> None:
    defined = {
        kind
        for kind in vars(all_commands).values()
        if isinstance(kind, type) and issubclass(kind, Command) and kind not in (Command, TopicCommand)
    }
    assert set(KINDS) == defined
    assert all(issubclass(kind, TopicCommand) for kind in applying.TO_TOPICS)
    assert not any(issubclass(kind, TopicCommand) for kind in applying.TO_ALL)


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        (pin(1), {"SetPins": 2, "PinRow": 4}),
        (SetPins(1, [PinRow(1, "q", 0, 1), PinRow(1, "r", 0, 1, "about")]), {"SetPins": 2, "PinRow": 5}),
        (SetPins(1, []), {"SetPins": 2}),
        (CreateSubscription(1, "s", "shared", 0, 1), {"CreateSubscription": 5}),
        (
            CreateSubscription(1, "s", "shared", 0, 1, FailurePolicy(max_redeliveries=1)),
            {"CreateSubscription": 6, "FailurePolicy": 2},
        ),
        (
            CreateTopic("default/t", TopicSettings(segment_bytes=1), ONE, [ONE], 1),
            {"CreateTopic": 5, "TopicSettings": 2},
        ),
        (AlterTopic(1, {"fsync": "none"}), {"AlterTopic": 2, "setting fsync": 1}),
        (FlushSubscriptions(1, [FlushRow(1, 2, 3, 4, [], [])]), {"FlushSubscriptions": 2, "FlushRow": 6}),
        (node(1), {"UpsertNode": 7}),
        (msgspec.structs.replace(node(1), by_name=True), {"UpsertNode": 11}),
    ],
)
def test_a_command_needs_what_it_uses(command: Command, needed: dict[str, int]) -> None:
    found = COMMANDS.read(encode_command(command))
    assert (found.command, found.needed, found.lacks) == (command, needed, "")


def test_an_older_build_reads_a_command_whose_new_field_is_not_used() -> None:
    kept, used = LATER.read(encode_command(ReleaseTopic(5))), encode_command(ReleaseTopic(5, to=7))
    assert kept.needed == {"ReleaseTopic": 1}
    assert COMMANDS.read(encode_command(ReleaseTopic(5))).lacks == ""
    assert COMMANDS.read(used).lacks == "ReleaseTopic with 2 fields"
    assert LATER.read(used).lacks == ""


def test_a_setting_of_a_later_build_is_lacked_by_name() -> None:
    assert COMMANDS.read(encode_command(AlterTopic(5, {"colour": 1}))).lacks == "setting colour"


DEFAULTS = {
    FailurePolicy: [60_000, 5, 1_000, 60_000, "block", ""],
    TopicSettings: [1_000_000, 268_435_456, 0, "fsync", 0, 0, 16_777_216, 3, 172_800_000, 21_474_836_480],
    UpsertNode: [False, 0, 0, False, {}],
    PinRow: [""],
}


@pytest.mark.parametrize("kind", DEFAULTS, ids=lambda kind: kind.__name__)
def test_defaults_that_are_written_by_leaving_them_out_stay(kind: type[msgspec.Struct]) -> None:
    """Another default is another command for those who have the old one: only append."""
    fields = [field for field in msgspec.structs.fields(kind) if not field.required]
    now = [f.default if f.default_factory is msgspec.NODEFAULT else f.default_factory() for f in fields]
    assert now[: len(DEFAULTS[kind])] == DEFAULTS[kind]


# Two builds in one cluster.


def test_a_command_that_a_node_does_not_know_is_not_proposed_until_it_is_upgraded() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        uid = await of_two_builds(cluster, OLD)
        for proposer in (1, 2, 3):
            with pytest.raises(BuildTooOld, match="node 2 runs a build that does not know SetPins") as error:
                await cluster.store(proposer).propose(pin(uid))
            assert error.value.hint == "Upgrade node 2 to the version of the others, or remove it for good."
        assert (await cluster.store(2).propose(cluster.topic("u", 2))).result is Result.CREATED
        await cluster.agree()

        await restart(cluster, 2, COMMANDS)
        await cluster.announced()
        assert (await cluster.store(2).propose(pin(uid))).result is Result.APPLIED
        await cluster.agree()
        assert pins_of(cluster) == [1, 1, 1]
        assert not any(there.fatal for there in cluster.nodes.values())

    simulate(main, seed=1, limit_seconds=300)


def test_a_node_that_is_down_stands_in_the_way_too() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        uid = await of_two_builds(cluster, OLD)
        cluster.nodes[2].kill()
        with pytest.raises(BuildTooOld, match="node 2"):
            await cluster.store(1).propose(pin(uid))

    simulate(main, seed=2, limit_seconds=300)


@pytest.mark.parametrize("seed", range(3))
def test_a_proposer_that_has_not_heard_of_an_older_node_changes_nothing_anywhere(seed: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        uid = await of_two_builds(cluster, OLD)
        outcome = await cluster.store(1).proposals.propose(encode_command(pin(uid)), 10)
        assert outcome.result is Result.REFUSED
        assert outcome.detail == "the build of node 2 does not know SetPins"
        await cluster.agree()
        assert pins_of(cluster) == [0, 0, 0]
        assert not any(there.fatal for there in cluster.nodes.values())
        await restart(cluster, 2, COMMANDS)  # it reads the same entry again, and knows it now
        await cluster.announced()
        assert pins_of(cluster) == [0, 0, 0]

    simulate(main, seed=seed, limit_seconds=300)


def test_a_field_that_a_node_does_not_know_is_not_used_and_the_rest_of_the_command_goes_on() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        uid = await of_two_builds(cluster, COMMANDS)
        for number in (1, 3):
            await restart(cluster, number, LATER)
        await cluster.announced()
        later = cluster.store(1)
        assert (await later.propose(ReleaseTopic(uid))).result is Result.APPLIED
        with pytest.raises(BuildTooOld, match=r"node 2 .* does not know ReleaseTopic with 2 fields"):
            await later.propose(ReleaseTopic(uid, to=7))
        data = encode_command(ReleaseTopic(uid, to=7))
        assert (await later.proposals.propose(data, 10)).result is Result.REFUSED
        await cluster.agree()

        await restart(cluster, 2, LATER)
        await cluster.announced()
        assert (await cluster.store(2).propose(ReleaseTopic(uid, to=7))).result is Result.APPLIED
        await cluster.agree()
        assert [store.state.topics["default/t"].home for store in cluster.running] == [7, 7, 7]

    with mock.patch.dict(applying.TO_TOPICS, {ReleaseTopic: release_to}):
        simulate(main, seed=3, limit_seconds=300)


# Back to an older build, and late.


def test_a_node_goes_back_to_an_older_build_as_long_as_nothing_new_was_used() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        uid = (await cluster.store(1).propose(cluster.topic("t"))).topic_uid
        await restart(cluster, 3, OLD)
        await cluster.announced()
        with pytest.raises(BuildTooOld, match="node 3"):
            await cluster.store(1).propose(pin(uid))

    simulate(main, seed=4, limit_seconds=300)


@pytest.mark.parametrize("commands_since", [0, 60], ids=["from the log", "from a snapshot"])
def test_an_older_build_does_not_start_on_what_it_cannot_read(commands_since: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        store = cluster.store(1)
        uid = (await store.propose(cluster.topic("t"))).topic_uid
        await store.propose(pin(uid))
        for _ in range(commands_since):
            await store.propose(FailMove(1, "no such move"))
        await cluster.agree()
        there = cluster.nodes[3]
        with pytest.raises(BuildTooOld, match="node 3 has SetPins, which this build does not know"):
            await restart(cluster, 3, OLD)
            raise await told_to_stop(there)
        await restart(cluster, 3, COMMANDS)
        await cluster.announced()
        assert pins_of(cluster) == [1, 1, 1]

    simulate(main, seed=5, limit_seconds=300)


def test_an_older_build_is_not_let_in_where_something_new_was_used() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        uid = (await cluster.store(1).propose(cluster.topic("t"))).topic_uid
        await cluster.store(1).propose(pin(uid))
        late = cluster.make(4)
        late.build = OLD
        with pytest.raises(JoinFailed, match="build of node 4 does not know SetPins, which this cluster has"):
            await late.start(join=[1, 2])
        late.kill()
        late.build = COMMANDS
        await late.start(join=[1, 2])
        await cluster.voters({1, 2, 3, 4})

    simulate(main, seed=6, limit_seconds=300)


def test_a_state_from_before_there_were_shapes_is_read_and_looks_at_nobody() -> None:
    state = ClusterState()
    state.apply(1, node(1))
    before = msgspec.msgpack.decode(state.to_bytes())
    rows = [row[:7] for row in before[3]]
    opened = ClusterState.from_bytes(msgspec.msgpack.encode([*before[:3], rows, *before[4:8]]))
    assert (opened.used, opened.nodes[1].knows) == ({}, {})
    assert opened.who_lacks({"Anything": 1}) == (0, "")
    assert not opened.all_know({"Anything": 1})
