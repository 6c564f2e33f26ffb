"""Commands about the cluster and its nodes."""

from __future__ import annotations

import msgspec

from ister.metadata.commands.base import Command


class FoundCluster(Command, frozen=True):
    """The first command of a cluster's life: whose metadata this is (I1)."""

    cluster_id: str


class UpsertNode(Command, frozen=True):
    """A node tells of itself at every start (I2): where it is, on which disk, and which start this is."""

    node_id: int
    disk_id: str
    starts: int
    peer_host: str
    peer_port: int
    client_host: str
    client_port: int
    replaces: bool = False
    """An operator states that the disk whose place this one takes is gone for good, and with it whatever only
    that one had."""
    replaced_starts: int = 0
    """The last start of that disk when it was found silent: one that came back since keeps its place, however
    long this was on its way. 0: not looked at."""
    replaced: int = 0
    """The member that this is: not whoever else has taken its place since. 0: not looked at."""
    by_name: bool = False
    """Whether a disk may be taken for gone goes by who is known to have all of what it has (C3)."""
    knows: dict[str, int] = msgspec.field(default_factory=dict)
    """The shapes that its build knows (`metadata.shapes`); empty from builds that did not tell."""


class RemoveNode(Command, frozen=True):
    node_id: int
    disk_gone: bool = False
    """An operator states that its disk is gone for good, and with it whatever only that one had."""
    starts: int = 0
    """Its last start then, as in `UpsertNode`."""
    member: int = 0
    """Which disk of the node is meant. 0: whichever it has."""
    keeps_whole: bool = False
    """Refused also while the others that have a sealed segment may all end short of it, by how many were
    counted (R2). What was proposed before there was this goes by the rule of then, whenever it is applied
    (R3)."""
    by_name: bool = False
    """The same by who is known to have all of it (C3)."""


class DrainNode(Command, frozen=True):
    """A node is to get nothing new, and what it has is to go elsewhere (`metadata.drains`)."""

    member: int
    max_parallel: int
    """So many of its topics move at a time."""
    at_us: int


class ActivateNode(Command, frozen=True):
    """A drained node is one like the others again."""

    member: int
