"""`ister node`: which nodes a cluster has, and how they come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ister.cli.common import Whole, ask_broker, client_options, pass_terminal, said_of
from ister.cli.drain import activate, drain
from ister.cli.lazy import LazyGroup
from ister.cli.terminal import Terminal

if TYPE_CHECKING:
    from ister.cli.render import Done
    from ister.cli.render_cluster import NodeListing


@click.group(cls=LazyGroup)
@client_options
def node() -> None:
    """List, add, drain, remove and promote the nodes of a cluster.

    \b
    Examples:
      ister node list
      ister node add 10.0.0.4:6001
      ister node drain 3
      ister node remove 3
    """


node.add_command(drain)
node.add_command(activate)


@node.command("list")
@client_options
@pass_terminal
def list_(terminal: Terminal) -> NodeListing:
    """List the nodes: role, address, whether they are heard from, and what they hold.

    \b
    Examples:
      ister node list
      ister node list --output json
    """
    from ister.cli.cluster import cluster_and_lag
    from ister.cli.render_cluster import NodeListing

    return NodeListing(*ask_broker(terminal, cluster_and_lag))


@node.command()
@click.argument("address", metavar="HOST:PORT")
@client_options
@pass_terminal
def add(terminal: Terminal, address: str) -> Done:
    """Add the node that waits at the peer address HOST:PORT; the port is 6001 unless it is given.

    It was started with --peer-port and neither --join nor --bootstrap-cluster, on an empty directory. It
    comes as a learner, which gets the metadata and does not vote, and is promoted once it has caught up.

    \b
    Examples:
      ister serve --node-id 4 --peer-port 6004 --client-port 9094 --data-dir node-4    on the new machine
      ister node add 127.0.0.1:6004
      ister node add 10.0.0.4:6001 --bootstrap 10.0.0.1:9091 --output json
    """
    from ister.addresses import parse_address
    from ister.cli.render import Done

    at = parse_address(address)
    answer = ask_broker(terminal, lambda log: log.add_node(at.host, at.port))
    entry = {"node_id": answer.node_id, "peer_host": at.host, "peer_port": at.port, "detail": answer.detail}
    said = f"node {answer.node_id} at {at} joins as a learner; `ister node list` shows when it votes"
    return Done(entry, said_of(answer) or said)


@node.command()
@click.argument("node_id", metavar="NODE", type=Whole(min=1))
@click.option("--disk-gone", is_flag=True, help="State that its disk is gone for good, with all it had.")
@client_options
@pass_terminal
def remove(terminal: Terminal, node_id: int, disk_gone: bool) -> Done:
    """Take NODE out of the cluster, alive or dead.

    Refused while it has a replica of an open segment or is needed for a sealed one: nothing is lost this
    way, and `ister node drain` empties it first. With --disk-gone, what only a dead node had is lost with
    it: `ister cluster health` then names the topics.

    \b
    Examples:
      ister node remove 3
      ister node remove 3 --disk-gone
      ister node remove 3 --output json
    """
    from ister.cli.render import Done

    answer = ask_broker(terminal, lambda log: log.remove_node(node_id, disk_gone=disk_gone))
    entry = {"node_id": node_id, "detail": answer.detail}
    return Done(entry, said_of(answer) or f"removed node {node_id}")


@node.command()
@click.argument("node_id", metavar="NODE", type=Whole(min=1))
@client_options
@pass_terminal
def promote(terminal: Terminal, node_id: int) -> Done:
    """Make a voter of the learner NODE. The cluster does that by itself once the node has caught up.

    \b
    Examples:
      ister node promote 4
      ister node promote 4 --output json
    """
    from ister.cli.render import Done

    answer = ask_broker(terminal, lambda log: log.promote_node(node_id))
    entry = {"node_id": node_id, "detail": answer.detail}
    return Done(entry, said_of(answer) or f"node {node_id} is a voter")
