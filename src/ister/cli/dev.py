"""`ister dev`: a cluster on this machine in one command, to try things out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ister.cli.common import Whole, counted, output_option, parse_pairs, pass_terminal
from ister.cli.dev_plan import (
    HOST,
    MAX_NODES,
    DevNode,
    environment_of_nodes,
    keep_plan,
    plan_nodes,
    settings_of_nodes,
)
from ister.cli.terminal import Terminal

if TYPE_CHECKING:
    from ister.cli.dev_cluster import DevCluster, Ended, NodeProcess
    from ister.protocol.messages import ClusterAnswer


_PORT = Whole(min=0, max=65_535)


@click.command()
@click.option(
    "--nodes", metavar="N", type=Whole(min=1, max=MAX_NODES), help="How many brokers.  [default: 3]"
)
@click.option(
    "--data-dir",
    metavar="DIRECTORY",
    help="Where the nodes keep their logs; the same one brings the same cluster back.  "
    "[default: a temporary one, removed at the end]",
)
@click.option("--client-port", metavar="PORT", type=_PORT, help="The first one for clients.  [default: 9091]")
@click.option("--peer-port", metavar="PORT", type=_PORT, help="The first one for brokers.  [default: 6001]")
@click.option(
    "--admin-port",
    metavar="PORT",
    type=Whole(min=-1, max=65_535),
    help="The first one for metrics; -1 is off.  [default: 9190]",
)
@click.option("--log-level", metavar="LEVEL", help="Of all nodes.  [default: info]")
@click.option(
    "--set", "settings", metavar="SETTING=VALUE", multiple=True, help="Any other setting, of all nodes."
)
@output_option
@pass_terminal
def dev(
    terminal: Terminal,
    /,
    nodes: int | None,
    data_dir: str | None,
    log_level: str | None,
    settings: tuple[str, ...],
    **first_ports: int | None,
) -> None:
    """Run a cluster of brokers on this machine until SIGTERM or Ctrl-C.

    Each is a process of its own, with its directory and its log in DIRECTORY: kill one and see what happens.
    Node 1 has the first port of each kind, node 2 the next; 0 takes any free ones.

    With --output json, an object {"event": "ready", "nodes": [...]} says that all are in, and one
    {"event": "ended", ...} each node that is gone.

    \b
    Examples:
      ister dev
      ister dev --nodes 5 --data-dir my-cluster
      ister dev --set segment_records=1000 --set heartbeat_ms=50
      ister dev --client-port 0 --peer-port 0 --admin-port -1 --output json
    """
    import shutil
    import tempfile

    environ = environment_of_nodes(terminal.environ)
    extra = settings_of_nodes(parse_pairs(settings, "--set"), log_level, environ)
    directory = Path(data_dir or tempfile.mkdtemp(prefix="ister-dev-")).absolute()
    try:
        planned = plan_nodes(directory, nodes, first_ports)
        keep_plan(directory, planned)
        terminal.tell(f"starting {counted(len(planned), 'node')} in {directory}")
        run_cluster(Show(terminal, directory, is_temporary=data_dir is None), planned, extra, environ)
        again = "its data is removed" if data_dir is None else "the same command brings it back"
        terminal.tell(f"the cluster has stopped; {again}")
    finally:
        if data_dir is None:
            shutil.rmtree(directory, ignore_errors=True)


def run_cluster(
    show: Show, planned: Sequence[DevNode], extra: Sequence[str], environ: Mapping[str, str]
) -> None:
    import asyncio
    import signal

    from ister.cli.dev_cluster import DevCluster

    async def main() -> None:
        cluster = DevCluster(planned, show.directory, extra, environ)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, cluster.stop)
        await cluster.run(lambda found: show.ready(cluster, found), show.ended)

    asyncio.run(main())


class Show:
    """What a person, or a script, is told."""

    def __init__(self, terminal: Terminal, directory: Path, *, is_temporary: bool) -> None:
        self.terminal = terminal
        self.directory = directory
        self._is_temporary = is_temporary

    def ready(self, cluster: DevCluster, found: ClusterAnswer) -> None:
        if self.terminal.wants_json:
            self.terminal.write_objects([self._ready_object(cluster, found)])
        else:
            self.terminal.say(self._banner(cluster, found))

    def ended(self, ended: Ended, process: NodeProcess) -> None:
        if self.terminal.wants_json:
            entry = {"event": "ended", "node_id": ended.node.node_id, "pid": ended.pid, "code": ended.code}
            self.terminal.write_objects([{**entry, "log_lines": ended.log_lines}])
            return
        paint = self.terminal.paint
        again = f"{self.terminal.own_command} {shlex.join(['serve', *process.options])}"
        lines = [
            paint("yellow", f"node {ended.node.node_id} (pid {ended.pid}) {ended.how}; the others go on."),
            paint("dim", f"The last lines of {process.log}:"),
            *(f"  {line}" for line in ended.log_lines),
            paint("dim", "To bring it back, in another terminal:"),
            f"  {again}",
        ]
        self.terminal.say("\n".join(lines))

    def _ready_object(self, cluster: DevCluster, found: ClusterAnswer) -> dict[str, Any]:
        return {
            "event": "ready",
            "cluster_id": found.cluster_id,
            "leader": found.leader or None,
            "bootstrap": cluster.bootstrap,
            "data_dir": str(self.directory),
            "nodes": [
                {
                    **process.node._asdict(),
                    "pid": process.pid,
                    "data_dir": str(self.directory / f"node-{process.node.node_id}"),
                    "log": str(process.log),
                }
                for process in cluster.nodes
            ],
        }

    def _banner(self, cluster: DevCluster, found: ClusterAnswer) -> str:
        from ister.cli.render import pairs, table

        paint = self.terminal.paint
        kept = " (removed at the end; --data-dir keeps it)" if self._is_temporary else ""
        facts = [
            ("cluster", found.cluster_id),
            ("data", f"{self.directory}{kept}"),
            ("logs", f"{self.directory}/node-N.log"),
        ]
        rows = [
            [
                str(process.node.node_id),
                "leader" if process.node.node_id == found.leader else "voter",
                str(process.pid),
                paint("green", process.node.client),
                process.node.peer,
                f"http://{HOST}:{process.node.admin_port}/metrics" if process.node.admin_port > 0 else "",
            ]
            for process in cluster.nodes
        ]
        victim = next(
            (p for p in reversed(cluster.nodes) if p.node.node_id != found.leader), cluster.nodes[0]
        )
        ister = self.terminal.own_command
        tries = [
            f"export ISTER_BOOTSTRAP={cluster.bootstrap}",
            f"{ister} put events 'hello'",
            f"{ister} tail events --from start",
            f"{ister} topic describe events",
            f"{ister} cluster status",
            f"kill -9 {victim.pid} && {ister} cluster health --watch",
        ]
        title = f"A cluster of {counted(len(cluster.nodes), 'node')} is ready."
        lines = [
            "",
            f"  {paint('bold', title)} {paint('dim', 'Ctrl-C stops it.')}",
            "",
            *pairs(facts, paint),
            "",
        ]
        headings = ["NODE", "ROLE", "PID", "CLIENTS", "PEERS", "METRICS"]
        lines += [table(headings, "><><<<", rows, paint, indent="  "), ""]
        lines += [f"  {paint('dim', 'In another terminal, try:')}", *(f"    {line}" for line in tries), ""]
        return "\n".join(lines)
