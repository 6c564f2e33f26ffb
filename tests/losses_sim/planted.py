"""Bugs put into accepting a loss on purpose, one at a time, to see that its simulation finds them (F6)."""

from __future__ import annotations

from typing import Any
from unittest import mock

import msgspec

from ister.broker.losses import losses
from ister.io.disk import Disk
from ister.metadata import applying
from ister.metadata.commands import AcceptLoss
from ister.replication.copies import sealed_copies
from ister.wal.opening import SegmentIdentity
from ister.wal.set_aside import TailAside, find_aside
from tests.cluster.planted import Plant
from tests.replicas_sim.planted import Planted


def a_loss_ends_where_somebody_knew_of_an_end() -> Planted:
    """What was acknowledged behind that is given out again."""
    make_loss = losses.make_loss

    def short(storage: Any, topic: Any, reached: Any, known_end: int, *rest: Any) -> AcceptLoss:
        made = make_loss(storage, topic, reached, known_end, *rest)
        return msgspec.structs.replace(made, end_offset=max(reached.end_offset, known_end))

    return mock.patch.object(losses, "make_loss", short)


def a_tail_that_comes_back_is_cut() -> Planted:
    """It is given up, so why keep it."""

    def nothing(disk: Disk, identity: SegmentIdentity, lost_from: int) -> list[TailAside]:
        return find_aside(disk, identity.path)

    return mock.patch.object(sealed_copies, "set_aside", nothing)


def a_loss_forgets_the_producers() -> Planted:
    """Of what is kept: a repeat of it is taken for something new (A5)."""
    accept_loss = applying.accept_loss

    def forgetful(index: int, topic: Any, nodes: Any, command: AcceptLoss) -> Any:
        return accept_loss(index, topic, nodes, msgspec.structs.replace(command, producers=[]))

    return mock.patch.object(applying, "accept_loss", forgetful)


FOUND_BY_SEEDS: dict[Plant, int] = {
    a_loss_ends_where_somebody_knew_of_an_end: 8,
    a_tail_that_comes_back_is_cut: 5,
    a_loss_forgets_the_producers: 5,
}
