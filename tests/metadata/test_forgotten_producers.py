"""A5: since when producers may be forgotten goes from segment to segment, and into snapshots."""

from __future__ import annotations

import msgspec

from ister.metadata.commands import Result
from ister.metadata.state import ClusterState
from tests.metadata.chains import ONE, accept_loss, apply, create, node, seal, state_after, the_topic


def forgot_at(state: ClusterState) -> list[int]:
    return [segment.forgot_at for segment in the_topic(state).segments]


def test_a5_only_a_seal_that_forgets_somebody_moves_the_mark_and_the_next_ones_bring_it_on() -> None:
    state = state_after(node(1), create())
    assert apply(state, seal(2, 1, 10)) is Result.APPLIED
    assert apply(state, msgspec.structs.replace(seal(2, 2, 20), forgets=True)) is Result.APPLIED
    assert apply(state, seal(2, 3, 30)) is Result.APPLIED
    assert forgot_at(state) == [0, 0, 4, 4]
    assert apply(state, msgspec.structs.replace(seal(2, 4, 40), forgets=True)) is Result.APPLIED
    assert forgot_at(state)[-1] == state.applied_index == 6
    assert forgot_at(ClusterState.from_bytes(state.to_bytes())) == forgot_at(state)


def test_a5_a_loss_that_is_accepted_moves_it_too() -> None:
    state = state_after(node(1), create())
    loss = msgspec.structs.replace(accept_loss(2, 1, 1000, 10, then=ONE), forgets=True)
    assert apply(state, loss) is Result.APPLIED
    assert forgot_at(state) == [0, 3]
    assert apply(state, accept_loss(2, 2, 2000, 1000)) is Result.APPLIED
    assert forgot_at(state) == [0, 3, 3]
