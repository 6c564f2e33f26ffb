"""An operator's word about one disk, applied to another (I2)."""

from __future__ import annotations

import msgspec

from ister.metadata.commands import RemoveNode, Result, UpsertNode
from ister.metadata.state import ClusterState
from tests.metadata.chains import ONE, THREE, TWO, apply, create, member, node, seal, state_after

NEW = member(2, 9)


def removal_of(state: ClusterState, node_id: int) -> RemoveNode:
    """`ister node remove --disk-gone`, as `Members._remove` makes it of what it sees."""
    known = state.nodes[node_id]
    more = {"member": known.member} if "member" in RemoveNode.__struct_fields__ else {}
    return RemoveNode(node_id, True, known.starts, **more)


def replacement_of(state: ClusterState, node_id: int, disk_number: int) -> UpsertNode:
    """A start with --replace-disk on another disk, as `Members.let_in` makes it of what it sees."""
    known, made = state.nodes[node_id], node(node_id, disk_number, starts=0, client_port=0)
    more = {"replaced": known.member} if "replaced" in UpsertNode.__struct_fields__ else {}
    return msgspec.structs.replace(made, replaces=True, replaced_starts=known.starts, **more)


def give_it_the_only_copy(state: ClusterState, who: int) -> None:
    topic = state.applied_index + 1
    assert apply(state, create(leader=who)) is Result.CREATED
    assert apply(state, seal(topic, 1, 10, by=who, then=ONE)) is Result.APPLIED


def test_a_removal_of_a_lost_disk_that_comes_twice_does_not_remove_the_disk_after_it() -> None:
    """The proposal was repeated, as its answer was lost, and one of the two arrives late."""
    state = state_after(node(1), node(2), node(3))
    word = removal_of(state, 2)
    assert apply(state, word) is Result.APPLIED
    assert apply(state, node(2, 9, starts=0, client_port=0)) is Result.APPLIED  # joins on an empty disk
    assert apply(state, node(2, 9, starts=1)) is Result.APPLIED
    give_it_the_only_copy(state, NEW)
    assert apply(state, word) is not Result.APPLIED, "that word was of another disk"


def test_a_replacement_of_a_lost_disk_does_not_replace_the_disk_that_replaced_it() -> None:
    """Node 2 is started with --replace-disk on disk 8, which does not come through, and then on disk 9."""
    state = state_after(node(1), node(2), node(3))
    first, second = replacement_of(state, 2, 8), replacement_of(state, 2, 9)
    assert apply(state, second) is Result.APPLIED
    assert apply(state, node(2, 9, starts=1)) is Result.APPLIED
    give_it_the_only_copy(state, NEW)
    assert apply(state, first) is Result.REFUSED, "that word was of another disk"


def test_a_disk_that_was_only_let_in_when_it_was_looked_at_has_come_back_when_it_is_announced() -> None:
    """A node that was let in has start 0, and in the commands 0 means: any."""
    state = state_after(node(1), node(2, starts=0, client_port=0), node(3))
    removal, replacement = removal_of(state, 2), replacement_of(state, 2, 9)
    assert apply(state, node(2, starts=1)) is Result.APPLIED  # it is there after all
    give_it_the_only_copy(state, TWO)
    assert apply(state, removal) is Result.REFUSED
    assert apply(state, replacement) is Result.REFUSED


def test_a_second_disk_of_an_open_segment_is_not_given_away_without_a_word() -> None:
    """Two of three disks are not mounted after a power cut, say: what they acknowledged is on no other."""
    five = [node(number) for number in range(1, 6)]
    state = state_after(*five, create(leader=ONE, replicas=[ONE, TWO, THREE]))
    assert apply(state, node(1, 9, starts=0, client_port=0)) is Result.APPLIED, "two are left: enough"
    assert apply(state, node(2, 9, starts=0, client_port=0)) is Result.REFUSED, "two have to answer"
