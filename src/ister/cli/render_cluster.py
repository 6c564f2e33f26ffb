"""How a cluster looks: its nodes, its metadata, what is wrong with it, and the figures of its nodes.

A node may only say what it knows. Where the metadata leader could not be asked, the view says so; how far a
node is behind is known to that leader alone, and is null or `-` where it did not say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ister.addresses import Address
from ister.cli.common import counted
from ister.cli.render import grouped, pairs, show_bytes, table
from ister.cli.terminal import Paint
from ister.protocol.messages import ClusterAnswer, ClusterNode, Problem, StatsAnswer

_VOTERS = ("leader", "voter")


def is_alive_voter(node: ClusterNode) -> bool:
    return node.alive and node.role in _VOTERS


class Quorum(NamedTuple):
    """How many of the voters there are, and how many may still fail."""

    voters: int
    alive: int

    @property
    def needed(self) -> int:
        return self.voters // 2 + 1

    @property
    def spare(self) -> int:
        return max(0, self.alive - self.needed)


def quorum_of(cluster: ClusterAnswer) -> Quorum:
    voters = [node for node in cluster.nodes if node.role in _VOTERS]
    return Quorum(len(voters), sum(map(is_alive_voter, voters)))


def problems_of(cluster: ClusterAnswer) -> list[Problem]:
    """What the broker says is wrong; if it says nothing, what can be seen in its answer all the same."""
    if cluster.problems:
        return cluster.problems
    seen = [
        Problem(
            "node-down",
            f"node {node.node_id} is not heard from",
            f"start it again, or take it out: ister node remove {node.node_id}",
        )
        for node in cluster.nodes
        if not node.alive
    ]
    if not cluster.leader:
        seen.append(Problem("no-leader", "no node leads the metadata", "start the nodes that are down"))
    elif not cluster.is_current:
        about = f"node {cluster.answered_by} could not ask node {cluster.leader}, which leads the metadata"
        seen.append(Problem("stale-view", about, "ask another node with --bootstrap"))
    return seen


class ClusterStatus(NamedTuple):
    cluster: ClusterAnswer
    behind: Mapping[int, int] = {}
    """By node: how many metadata entries it lacks, where the metadata leader was asked."""

    def to_objects(self) -> Sequence[dict[str, Any]]:
        cluster, quorum = self.cluster, quorum_of(self.cluster)
        problems = problems_of(cluster)
        return [
            {
                "cluster_id": cluster.cluster_id,
                "healthy": not problems,
                "current": cluster.is_current,
                "answered_by": cluster.answered_by,
                "leader": cluster.leader or None,
                "term": cluster.term,
                "commit_index": cluster.commit_index,
                "applied_index": cluster.applied_index,
                "snapshot_index": cluster.snapshot_index,
                "topics": cluster.topics,
                "segments": cluster.segments,
                "voters": quorum.voters,
                "voters_alive": quorum.alive,
                "quorum": quorum.needed,
                "nodes": [node_object(node, self.behind) for node in cluster.nodes],
                "problems": [problem_object(problem) for problem in problems],
            }
        ]

    def to_text(self, paint: Paint) -> str:
        cluster = self.cluster
        problems = problems_of(cluster)
        leader = f"node {cluster.leader}, term {cluster.term}" if cluster.leader else paint("red", "none")
        facts = [
            ("health", health_shown(problems, paint)),
            ("leader", leader),
            ("voters", quorum_shown(quorum_of(cluster))),
            (
                "metadata",
                f"applied {grouped(cluster.applied_index)} of {grouped(cluster.commit_index)}, "
                f"snapshot at {grouped(cluster.snapshot_index)}",
            ),
            ("topics", f"{grouped(cluster.topics)}, in {counted(cluster.segments, 'segment')}"),
        ]
        lines = [f"{paint('bold', 'Cluster')} {cluster.cluster_id}", *pairs(facts, paint)]
        lines += own_view(cluster, paint)
        lines += ["", paint("bold", "Nodes"), nodes_table(cluster, self.behind, paint, indent="  ")]
        if problems:
            lines += ["", paint("bold", "Problems"), *problem_lines(problems, paint)]
        return "\n".join(lines)


class ClusterHealth(NamedTuple):
    """Whether all is well, in a line or two; and if not, what to do."""

    cluster: ClusterAnswer
    nodes_wanted: int = 0

    @property
    def problems(self) -> list[Problem]:
        alive = quorum_of(self.cluster).alive
        if alive >= self.nodes_wanted:
            return problems_of(self.cluster)
        missing = Problem(
            "nodes-missing",
            f"{counted(alive, 'voter')} of {self.nodes_wanted} wanted {'is' if alive == 1 else 'are'} alive",
            "wait for the others to join, or start them",
        )
        return [*problems_of(self.cluster), missing]

    @property
    def is_healthy(self) -> bool:
        return not self.problems

    def to_objects(self) -> Sequence[dict[str, Any]]:
        quorum = quorum_of(self.cluster)
        return [
            {
                "healthy": self.is_healthy,
                "current": self.cluster.is_current,
                "answered_by": self.cluster.answered_by,
                "leader": self.cluster.leader or None,
                "voters": quorum.voters,
                "voters_alive": quorum.alive,
                "nodes_down": [node.node_id for node in self.cluster.nodes if not node.alive],
                "problems": [problem_object(problem) for problem in self.problems],
            }
        ]

    def to_text(self, paint: Paint) -> str:
        cluster, problems = self.cluster, self.problems
        leader = f"node {cluster.leader} leads the metadata" if cluster.leader else "no leader"
        head = f"{health_shown(problems, paint)}: {leader}, {quorum_shown(quorum_of(cluster))}"
        return "\n".join([head, *own_view(cluster, paint), *problem_lines(problems, paint)])


class NodeListing(NamedTuple):
    cluster: ClusterAnswer
    behind: Mapping[int, int] = {}

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [node_object(node, self.behind) for node in self.cluster.nodes]

    def to_text(self, paint: Paint) -> str:
        return "\n".join([nodes_table(self.cluster, self.behind, paint), *own_view(self.cluster, paint)])


class NodeFigures(NamedTuple):
    """What one node says of itself, or why it does not."""

    node: ClusterNode
    stats: StatsAnswer | None
    error: str = ""


class ClusterMetrics(NamedTuple):
    figures: list[NodeFigures]
    names: tuple[str, ...] = ()
    """Only metrics whose name contains one of these; all if there are none."""

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [self._node_object(found) for found in self.figures]

    def _node_object(self, found: NodeFigures) -> dict[str, Any]:
        entry: dict[str, Any] = {"node_id": found.node.node_id, "client": client_address(found.node)}
        if found.stats is None:
            return {**entry, "error": found.error, "metrics": None}
        return {
            **entry,
            "rss_bytes": found.stats.rss_bytes,
            "uptime_ms": found.stats.uptime_ms,
            "metrics": {f"ister_{name}": found.stats.metrics[name] for name in self._shown(found.stats)},
        }

    def _shown(self, stats: StatsAnswer) -> list[str]:
        return [name for name in stats.metrics if not self.names or any(part in name for part in self.names)]

    def to_text(self, paint: Paint) -> str:
        answered = [found.stats for found in self.figures if found.stats is not None]
        names = list(dict.fromkeys(name for stats in answered for name in self._shown(stats)))
        rows = []
        if not self.names:
            rows.append(["memory", *self._column(lambda stats: show_bytes(stats.rss_bytes))])
            rows.append(["uptime", *self._column(lambda stats: show_uptime(stats.uptime_ms))])
        rows += [[f"ister_{name}", *self._column(partial(shown, name=name))] for name in names]
        headings = ["METRIC", *(f"NODE {found.node.node_id}" for found in self.figures)]
        if not rows:
            lines = [f"No metric has {' or '.join(map(repr, self.names))} in its name."]
        else:
            lines = [table(headings, "<" + ">" * len(self.figures), rows, paint)]
        lines += [
            paint("yellow", f"node {found.node.node_id} does not answer: {found.error}")
            for found in self.figures
            if found.stats is None
        ]
        return "\n".join(lines)

    def _column(self, cell: Callable[[StatsAnswer], str]) -> list[str]:
        return [cell(found.stats) if found.stats is not None else "-" for found in self.figures]


def shown(stats: StatsAnswer, name: str) -> str:
    value = stats.metrics.get(name)
    if value is None:
        return "-"
    return grouped(int(value)) if value == int(value) else f"{value:,.6g}"


def show_uptime(uptime_ms: int) -> str:
    minutes, seconds = divmod(uptime_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h"
    return f"{hours}h {minutes}m" if hours else f"{minutes}m {seconds}s" if minutes else f"{seconds}s"


def node_object(node: ClusterNode, behind: Mapping[int, int]) -> dict[str, Any]:
    return {
        "node_id": node.node_id,
        "role": node.role,
        "alive": node.alive,
        "drained": node.drained,
        "client_host": node.client_host,
        "client_port": node.client_port,
        "peer_host": node.peer_host,
        "peer_port": node.peer_port,
        "behind": behind.get(node.node_id),
        "open_segments": node.open_segments,
        "segments": node.segments,
        "disk_id": node.disk_id,
        "starts": node.starts,
    }


def problem_object(problem: Problem) -> dict[str, str]:
    return {"code": problem.code, "what": problem.what, "action": problem.action}


def nodes_table(cluster: ClusterAnswer, behind: Mapping[int, int], paint: Paint, *, indent: str = "") -> str:
    rows = [
        [
            str(node.node_id),
            paint("bold", node.role) if node.role == "leader" else node.role,
            state_shown(node, paint),
            client_address(node),
            str(Address(node.peer_host, node.peer_port)) if node.peer_port else "-",
            grouped(node.open_segments),
            grouped(node.segments),
            grouped(behind[node.node_id]) if node.node_id in behind else "-",
        ]
        for node in cluster.nodes
    ]
    headings = ["NODE", "ROLE", "STATE", "CLIENTS", "PEERS", "LEADS", "SEGMENTS", "BEHIND"]
    return table(headings, "><<<<>>>", rows, paint, indent=indent)


def state_shown(node: ClusterNode, paint: Paint) -> str:
    state = paint("green", "alive") if node.alive else paint("red", "down")
    return f"{state}, {paint('yellow', 'drained')}" if node.drained else state


def client_address(node: ClusterNode) -> str:
    return str(Address(node.client_host, node.client_port))


def own_view(cluster: ClusterAnswer, paint: Paint) -> list[str]:
    """A line that says so, if the answer may be old."""
    if cluster.is_current:
        return []
    said = f"node {cluster.answered_by}'s own view: it could not ask the metadata leader"
    return [f"  {paint('yellow', said)}"]


def problem_lines(problems: Sequence[Problem], paint: Paint) -> list[str]:
    lines = []
    for problem in problems:
        lines.append(f"  {paint('red', problem.code)}: {problem.what}")
        if problem.action:
            lines.append(f"    {paint('dim', 'do:')} {problem.action}")
    return lines


def health_shown(problems: Sequence[Problem], paint: Paint) -> str:
    return paint("red", counted(len(problems), "problem")) if problems else paint("green", "healthy")


def quorum_shown(quorum: Quorum) -> str:
    if not quorum.voters:
        return "voters not known"
    alive = f"{quorum.alive} of {counted(quorum.voters, 'voter')} alive"
    if quorum.alive < quorum.needed:
        return f"{alive}, {quorum.needed} needed: metadata cannot change"
    return f"{alive}, {quorum.spare} more may fail"
