"""`ister cluster`: how a cluster is, what is wrong with it, its figures, and who leads its metadata."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ister.cli.common import QUICK, Whole, ask_broker, client_options, duration, pass_terminal, said_of
from ister.cli.lazy import LazyCommand, LazyGroup
from ister.cli.terminal import Paint, Terminal
from ister.errors import IsterError
from ister.io.clock import monotonic

if TYPE_CHECKING:
    from ister.cli.render import Done
    from ister.cli.render_cluster import ClusterHealth, ClusterMetrics, ClusterStatus, NodeFigures
    from ister.client.log import Log
    from ister.protocol.messages import ClusterAnswer, ClusterNode


@click.group(
    cls=LazyGroup,
    lazy={
        "balance": LazyCommand("ister.cli.balance:balance", "Move topics so that nodes carry alike."),
    },
)
@client_options
def cluster() -> None:
    """How the cluster is, what is wrong with it, and who leads its metadata.

    \b
    Examples:
      ister cluster status
      ister cluster health --watch
      ister cluster metrics raft --output json
    """


@cluster.command()
@client_options
@pass_terminal
def status(terminal: Terminal) -> ClusterStatus:
    """Show the nodes, the metadata and what is wrong.

    Any node answers. One that cannot ask the metadata leader shows what it knows itself, and says so.

    \b
    Examples:
      ister cluster status
      ister cluster status --bootstrap 127.0.0.1:9092 --output json
    """
    from ister.cli.render_cluster import ClusterStatus

    return ClusterStatus(*ask_broker(terminal, cluster_and_lag))


async def cluster_and_lag(log: Log) -> tuple[ClusterAnswer, dict[int, int]]:
    """The cluster as the node that was asked sees it; and how far each node is behind, which only the
    metadata leader can say. If that one does not answer, nobody does."""
    import ister
    from ister.cli.render_cluster import client_address

    found = answer = await log.cluster()
    leader = next((node for node in found.nodes if node.node_id == found.leader), None)
    if leader is None:
        return found, {}
    if found.answered_by != found.leader:
        try:
            async with ister.connect(client_address(leader), **QUICK) as other:
                answer = await other.cluster()
        except IsterError:
            return found, {}
    if answer.answered_by != answer.leader:
        return found, {}
    return found, {node.node_id: node.behind for node in answer.nodes}


@cluster.command()
@click.option("--watch", is_flag=True, help="Look again and again, and say what changes, until Ctrl-C.")
@click.option("--exit-when-healthy", is_flag=True, help="Look again and again until all is well.")
@click.option("--nodes", metavar="N", type=Whole(min=0), default=0, help="Well only with N voters alive.")
@click.option(
    "--interval", metavar="DURATION", type=duration, default="1s", help="Between looks.  [default: 1s]"
)
@click.option(
    "--timeout", metavar="DURATION", type=duration, help="Give up then; only with --exit-when-healthy."
)
@client_options
@pass_terminal
def health(
    terminal: Terminal,
    watch: bool,
    exit_when_healthy: bool,
    nodes: int,
    interval: int,
    timeout: int | None,
) -> ClusterHealth | None:
    """Say whether all is well; if not, what is wrong and what to do. Exits with 0 or 1 accordingly.

    With --watch or --exit-when-healthy a line, or an object, comes at the first look and then at each
    change; a broker that cannot be reached is one more thing that is wrong, and not the end.

    \b
    Examples:
      ister cluster health
      ister cluster health --watch
      ister cluster health --exit-when-healthy --nodes 3 --timeout 60s
    """
    if timeout is not None and not exit_when_healthy:
        raise click.UsageError("--timeout needs --exit-when-healthy: nothing else waits")
    if watch or exit_when_healthy:
        watch_health(terminal, nodes, interval / 1000, timeout, until_healthy=exit_when_healthy)
        return None
    from ister.cli.render import render
    from ister.cli.render_cluster import ClusterHealth

    found = ClusterHealth(ask_broker(terminal, lambda log: log.cluster()), nodes)
    if found.is_healthy:
        return found
    render(found, terminal)
    raise click.exceptions.Exit(1)


class Unreachable(NamedTuple):
    """A look at which nobody answered."""

    error: IsterError

    @property
    def is_healthy(self) -> bool:
        return False

    def to_objects(self) -> list[dict[str, Any]]:
        return [{"healthy": False, "error": self.error.code, "message": self.error.message}]

    def to_text(self, paint: Paint) -> str:
        return f"{paint('red', 'nobody answers')}: {self.error.message}"


def watch_health(
    terminal: Terminal, nodes: int, interval_s: float, timeout_ms: int | None, *, until_healthy: bool
) -> None:
    began = monotonic()
    before: object = None
    while True:
        found = look(terminal, nodes)
        entry = found.to_objects()[0]
        if entry != before:
            before = entry
            if terminal.wants_json:
                terminal.write_objects([{"timestamp": _now("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **entry}])
            else:
                terminal.say(f"{terminal.paint('dim', _now('%H:%M:%S'))} {found.to_text(terminal.paint)}")
        if until_healthy and found.is_healthy:
            return
        if timeout_ms is not None and (monotonic() - began) * 1000 >= timeout_ms:
            terminal.tell(f"not healthy after {timeout_ms / 1000:g} s")
            raise click.exceptions.Exit(1)
        time.sleep(interval_s)


def _now(form: str, at: time.struct_time | None = None) -> str:
    return time.strftime(form, at or time.localtime())


def look(terminal: Terminal, nodes: int) -> ClusterHealth | Unreachable:
    from ister.cli.render_cluster import ClusterHealth

    try:
        return ClusterHealth(ask_broker(terminal, lambda log: log.cluster(), **QUICK), nodes)
    except IsterError as error:
        if not error.retriable:
            raise
        return Unreachable(error)


@cluster.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@client_options
@pass_terminal
def metrics(terminal: Terminal, names: tuple[str, ...]) -> ClusterMetrics:
    """Show the figures of all nodes side by side: all of them, or those with NAME in their name.

    Each node is asked at its own client address; one that does not answer is named. The same figures are
    on each node's metrics port in the format of Prometheus.

    \b
    Examples:
      ister cluster metrics
      ister cluster metrics raft lease
      ister cluster metrics --output json
    """
    from ister.cli.render_cluster import ClusterMetrics

    parts = tuple(name.removeprefix("ister_") for name in names)
    return ClusterMetrics(ask_broker(terminal, gather_figures), parts)


async def gather_figures(log: Log) -> list[NodeFigures]:
    import asyncio

    found = await log.cluster()
    return list(await asyncio.gather(*(figures_of(node) for node in found.nodes)))


async def figures_of(node: ClusterNode) -> NodeFigures:
    import ister
    from ister.cli.render_cluster import NodeFigures, client_address

    try:
        async with ister.connect(client_address(node), **QUICK) as log:
            return NodeFigures(node, await log.stats())
    except IsterError as error:
        return NodeFigures(node, None, error.message)


@cluster.command("transfer-leader")
@click.argument("node", type=Whole(min=1), required=False)
@client_options
@pass_terminal
def transfer_leader(terminal: Terminal, node: int | None) -> Done:
    """Let NODE lead the metadata, or whichever node is most up to date. Topics stay where they are.

    \b
    Examples:
      ister cluster transfer-leader
      ister cluster transfer-leader 2 --output json
    """
    from ister.cli.render import Done

    answer = ask_broker(terminal, lambda log: log.transfer_leader(node or 0))
    entry = {"leader": answer.node_id, "detail": answer.detail}
    return Done(entry, said_of(answer) or f"node {answer.node_id} leads the metadata")
