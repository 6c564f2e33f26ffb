"""Requests about moves of topics, and their answers."""

from __future__ import annotations

from ister.protocol.messages import Message


class MoveTopic(Message, frozen=True):
    """Let another node lead a topic. Sent again, a move to the same node is the same move."""

    topic: str
    node_id: int = 0
    """0: the placement strategy's next one, for which `plan` asks first."""
    stays: bool = True
    """Whether the topic stays led there across rollovers."""
    plan: bool = False
    """Say what would be done, and do nothing."""
    release: bool = False
    """No move: the topic need not stay where it was moved to any more."""


class ListMoves(Message, frozen=True):
    topic: str = ""
    """Only its moves; of all topics if empty."""
    move: int = 0
    """Only this one; all for 0."""


class CancelMove(Message, frozen=True):
    move: int


class MoveDescription(Message, frozen=True):
    move: int
    """Its id; 0 of a plan."""
    topic: str
    source: int
    """The node that led the topic when the move was requested."""
    target: int
    reason: str
    """`operator`, `drain` or `balance`."""
    stage: str
    """`planned`, `requested`, `sealed`, `exported`, `released`; at last `done`, `cancelled` or `failed`."""
    is_over: bool
    stays: bool
    requested_at_us: int
    sealed_at_us: int
    """When the old leader sealed the segment; 0 before."""
    end_offset: int
    """Where it sealed it: the target goes on from here."""
    detail: str = ""
    """Why it failed, what it waits for, or what else a person should know."""
    arrived: bool = False
    """The target leads the topic: what is left, if it is not over, is about the old node's copies."""


class MoveList(Message, frozen=True):
    moves: list[MoveDescription]
    """The oldest first."""


class DrainNode(Message, frozen=True):
    """A node is to get nothing new, and what it has is to go elsewhere."""

    node_id: int
    dry_run: bool = False
    """Change nothing: say what it has, and whether it is drained."""
    max_parallel: int = 4
    """So many of its topics move at a time."""


class ActivateNode(Message, frozen=True):
    """A drained node is one like the others again."""

    node_id: int


class DrainDescription(Message, frozen=True):
    """What the metadata lists a node for."""

    node_id: int
    is_drained: bool
    leads: int
    """Topics whose open segment it leads."""
    follows: int
    """Open segments of other leaders that it has a replica of."""
    copies: int
    """Sealed segments that it has a copy of."""
    copies_bytes: int
    moves: int
    """Moves away from it that are under way."""
    detail: str = ""
    """What stands in the way."""


class LoadReport(Message, frozen=True):
    """What a node carries, as of its last look, at most 30 s ago."""

    member: int
    topics: list[tuple[int, float]]
    """Those that it leads: their uids, and how many bytes were appended to each a second."""
    bytes_in: float
    """A second, from clients."""
    bytes_out: float
    cpu: float
    """1.0 is one core that is busy all the time."""
    memory_bytes: int
    disk_free_bytes: int


class Balance(Message, frozen=True):
    """Move topics so that nodes carry alike; `dry_run` only says which."""

    dry_run: bool = False
    strategy: str = ""
    """`fair`, `balanced` or `weighted`; empty is what the node that is asked is set to, or `fair`."""


class NodeBurden(Message, frozen=True):
    node_id: int
    topics: int
    bytes_in: float
    bytes_out: float
    cpu: float
    memory_bytes: int
    disk_free_bytes: int
    burden: float
    """By the strategy."""


class BalanceAnswer(Message, frozen=True):
    strategy: str
    threshold: float
    before: float
    """The coefficient of variation of the burdens: nothing is moved unless it is above the threshold."""
    after: float
    """What it would be after the moves."""
    nodes: list[NodeBurden]
    moves: list[MoveDescription]
