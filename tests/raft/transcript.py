"""Transcripts: a scenario as a person would tell it, and what the cores did, in one text file.

A line that starts with `>` is a command; the lines after it are what came of it. Everything else that starts
with `#` is prose. `python -m tests.raft.regenerate` writes the outcomes anew; read the difference before you
keep it.

    > cluster 1 2 3 [setting=value ...]   founding members, all running, nothing sent yet
    > node 1 term=8 log=1,1,4,4           in place of a node's disk: its term, and the terms of its entries
    > join 4                              a node with an empty disk
    > campaign 1, tick 1 [count], propose 1 text, read 1, transfer 1 2
    > add 1 4, promote 1 4, remove 1 4    asked of leader 1
    > deliver 1 2, deliver all            every message that is on that way now; `all`: on any way
    > drop 1 2, drop all                  lose them
    > delay 1 2, copy 1 2                 set them, or copies of them, aside
    > arrive                              put all that were set aside on their way
    > settle                              deliver and sync until nothing moves; shows only who applied what
    > hold 1, sync 1                      node 1's disk gets slow; its writes become durable
    > crash 1, start 1                    loses what is not durable; comes back
    > part 1 | 2 3, heal                  cut connections; mend them
    > snapshot 1 keep=0                   save the state machine, compact the log
    > show, logs                          every node's state, every node's log
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from random import Random

from ister.raft import (
    AnyMessage,
    AppendAnswer,
    AppendRequest,
    ChangeKind,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatAnswer,
    MembershipChange,
    PreVoteAnswer,
    PreVoteRequest,
    RaftCore,
    Refused,
    SnapshotAnswer,
    SnapshotChunk,
    StoredState,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
    bootstrap_state,
)
from tests.raft.cluster import Cluster, Faults, Node

FOLDER = Path(__file__).with_name("transcripts")


def describe(message: AnyMessage) -> str:
    """One message on one line."""
    way = f"{message.sender} -> {message.to} term {message.term}"
    match message:
        case PreVoteRequest():
            return f"{way}: would you vote for me? my log ends at {message.last_index}@{message.last_term}"
        case VoteRequest():
            why = ", the leader asked me to" if message.by_transfer else ""
            return f"{way}: vote for me{why}; my log ends at {message.last_index}@{message.last_term}"
        case PreVoteAnswer():
            return f"{way}: {'I would' if message.granted else 'I would not'}"
        case VoteAnswer():
            return f"{way}: {'my vote is yours' if message.granted else 'no vote'}"
        case AppendRequest():
            return (
                f"{way}: after {message.prev_index}@{message.prev_term} append "
                f"{describe_entries(message.entries)}; commit {message.commit}"
            )
        case AppendAnswer(refused=True):
            return (
                f"{way}: not after {message.index}; "
                f"my term there is {message.hint_term}, first at {message.hint_index}"
            )
        case AppendAnswer():
            return f"{way}: I hold {message.index}"
        case Heartbeat():
            return f"{way}: heartbeat {message.round}; commit {message.commit}"
        case HeartbeatAnswer():
            return f"{way}: heartbeat {message.round} heard"
        case SnapshotChunk():
            end = message.position + len(message.data)
            last = ", the last" if message.done else ""
            return f"{way}: snapshot {message.metadata.index} bytes {message.position} to {end}{last}"
        case SnapshotAnswer():
            return f"{way}: of snapshot {message.index} I want {message.position}"
        case TimeoutNow():
            return f"{way}: campaign now"


def describe_entries(entries: tuple[Entry, ...]) -> str:
    return " ".join(f"{entry.index}@{entry.term}" for entry in entries) or "nothing"


class Told(Cluster):
    """A cluster that tells what happens."""

    def __post_init__(self) -> None:
        self.lines: list[str] = []
        self.quiet = False
        super().__post_init__()

    def note(self, event: str) -> None:
        self.lines.append(f"  {event}")

    def send(self, messages: tuple[AnyMessage, ...]) -> None:
        super().send(messages)
        if not self.quiet:
            for message in messages:
                lost = " (lost)" if (message.sender, message.to) in self.blocked else ""
                self.lines.append(f"  {describe(message)}{lost}")


class Transcript:
    """Runs the commands of one file."""

    def __init__(self, core_class: type[RaftCore] = RaftCore, faults: Faults | None = None) -> None:
        self.core_class = core_class
        self.faults = faults or Faults()
        self.delayed: list[tuple[int, int, bytes]] = []
        self.cluster: Told
        self.held: set[int] = set()
        self.seen: dict[int, str] = {}

    def replay(self, text: str) -> str:
        """The file again, with what happens now in place of what it says happened."""
        kept: list[str] = []
        for line in text.splitlines():
            if line.startswith("> "):
                kept.append(line)
                kept.extend(self.run(line[2:]))
            elif not line.strip() or line.startswith("#"):
                kept.append(line)
        return "\n".join(kept) + "\n"

    def run(self, command: str) -> list[str]:
        name, *words = command.split()
        if name == "cluster":
            self._cluster(words)
            self._changes()
            return []
        self.cluster.lines = []
        handler: Callable[[list[str]], None] = getattr(self, f"_do_{name}")
        handler(words)
        self._sync_all()
        return self.cluster.lines + self._changes()

    def _cluster(self, words: list[str]) -> None:
        settings = {key: int(value) for key, value in (word.split("=") for word in words if "=" in word)}
        voters = tuple(int(word) for word in words if "=" not in word)
        self.held.clear()
        self.seen.clear()
        self.cluster = Told(voters, Random(1), self.core_class, settings, self.faults)

    def _node(self, word: str) -> Node:
        return self.cluster.nodes[int(word)]

    def _sync_all(self) -> None:
        for node in self.cluster.running:
            while node.pending and node.id not in self.held:
                node.sync()
                node.work()

    def _changes(self) -> list[str]:
        """Who became what, and who applied how much, since the last command."""
        told = []
        for node in self.cluster.nodes.values():
            core = node.core
            leader = f" of {core.leader}" if core.leader not in (0, node.id) else ""
            state = f"{node.id} is {core.role.value}{leader} in term {core.term}" if node.running else ""
            if state and self.seen.get(node.id) != state:
                told.append(f"  {state}")
            self.seen[node.id] = state
            key = -node.id
            applied = f"  {node.id} has applied up to {core.applied_index}"
            if node.running and self.seen.get(key) != applied:
                told.append(applied)
            self.seen[key] = applied
        return told

    def _answer(self, answer: object) -> None:
        if isinstance(answer, Refused):
            self.cluster.note(f"refused: {answer.reason.value}")

    # The commands.

    def _do_node(self, words: list[str]) -> None:
        values = dict(word.split("=") for word in words[1:])
        terms = [int(term) for term in values["log"].split(",")]
        first = bootstrap_state(self.cluster.voters).entries
        rest = [Entry(term, 2 + place, EntryKind.COMMAND, b"x") for place, term in enumerate(terms[1:])]
        state = StoredState(
            HardState(int(values["term"]), 0, int(values.get("commit", "1"))), (*first, *rest)
        )
        self.cluster.add(int(words[0]), state)

    def _do_join(self, words: list[str]) -> None:
        self.cluster.add(int(words[0]))

    def _do_campaign(self, words: list[str]) -> None:
        self._node(words[0]).core.campaign()
        self._node(words[0]).work()

    def _do_tick(self, words: list[str]) -> None:
        for _ in range(int(words[1]) if len(words) > 1 else 1):
            self._node(words[0]).core.tick()
        self._node(words[0]).work()

    def _do_propose(self, words: list[str]) -> None:
        node = self._node(words[0])
        for text in words[1:]:
            self._answer(node.core.propose(text.encode()))
        node.work()

    def _do_read(self, words: list[str]) -> None:
        node = self._node(words[0])
        self._answer(node.core.read_index(self.cluster.properties.committed_to))
        node.work()

    def _do_transfer(self, words: list[str]) -> None:
        node = self._node(words[0])
        self._answer(node.core.transfer_leadership(int(words[1])))
        node.work()

    def _change(self, kind: ChangeKind, words: list[str]) -> None:
        node = self._node(words[0])
        self._answer(node.core.propose_membership(MembershipChange(kind, int(words[1]))))
        node.work()

    def _do_add(self, words: list[str]) -> None:
        self._change(ChangeKind.ADD_LEARNER, words)

    def _do_promote(self, words: list[str]) -> None:
        self._change(ChangeKind.PROMOTE, words)

    def _do_remove(self, words: list[str]) -> None:
        self._change(ChangeKind.REMOVE, words)

    def _take(self, words: list[str]) -> list[tuple[int, int, bytes]]:
        way = None if words == ["all"] else (int(words[0]), int(words[1]))
        taken = [item for item in self.cluster.bag if way in (None, item[:2])]
        self.cluster.bag = [item for item in self.cluster.bag if item not in taken]
        return taken

    def _do_deliver(self, words: list[str]) -> None:
        for item in self._take(words):
            self.cluster.bag.append(item)
            self.cluster.deliver(len(self.cluster.bag) - 1)
            self._sync_all()

    def _do_drop(self, words: list[str]) -> None:
        self._take(words)

    def _do_delay(self, words: list[str]) -> None:
        self.delayed += self._take(words)

    def _do_copy(self, words: list[str]) -> None:
        taken = self._take(words)
        self.delayed += taken
        self.cluster.bag += taken

    def _do_arrive(self, words: list[str]) -> None:
        self.cluster.bag += self.delayed
        self.delayed = []

    def _do_settle(self, words: list[str]) -> None:
        self.cluster.quiet = True
        self.cluster.drain()
        self.cluster.quiet = False

    def _do_hold(self, words: list[str]) -> None:
        self.held.add(int(words[0]))

    def _do_sync(self, words: list[str]) -> None:
        self.held.discard(int(words[0]))

    def _do_crash(self, words: list[str]) -> None:
        self._node(words[0]).crash()
        self.held.discard(int(words[0]))

    def _do_start(self, words: list[str]) -> None:
        self._node(words[0]).start()
        self._node(words[0]).work()

    def _do_part(self, words: list[str]) -> None:
        groups = [set(map(int, group)) for bar, group in groupby(words, lambda word: word == "|") if not bar]
        self.cluster.part(*groups)

    def _do_heal(self, words: list[str]) -> None:
        self.cluster.heal()

    def _do_snapshot(self, words: list[str]) -> None:
        self._node(words[0]).take_snapshot(int(words[1].removeprefix("keep=")))

    def _do_show(self, words: list[str]) -> None:
        for node in self.cluster.running:
            core = node.core
            voters = " ".join(map(str, core.membership.voters)) or "none"
            learners = "".join(f", learner {learner}" for learner in core.membership.learners)
            self.cluster.note(
                f"{node.id}: {core.role.value}, term {core.term}, vote {core.vote}, leader {core.leader}, "
                f"commit {core.log.commit}, voters {voters}{learners}"
            )

    def _do_logs(self, words: list[str]) -> None:
        for node in self.cluster.running:
            log = node.core.log
            entries = [str(log.term_at(index)) for index in range(log.first_index, log.last_index + 1)]
            start = f"after {log.base_index}@{log.base_term}: " if log.base_index else ""
            self.cluster.note(f"{node.id}: {start}{' '.join(entries) or 'nothing'}")
