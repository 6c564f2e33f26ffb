"""`ister node drain` and `ister node activate`: a node is emptied before it is taken out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ister.cli.common import Whole, ask_broker, client_options, counted, duration, pass_terminal
from ister.cli.terminal import Terminal
from ister.io.clock import monotonic

if TYPE_CHECKING:
    from ister.cli.render import Done
    from ister.client.log import Log
    from ister.protocol.moves import DrainDescription

LOOK_SECONDS = 0.5


@click.command()
@click.argument("node_id", metavar="NODE", type=Whole(min=1))
@click.option("--dry-run", is_flag=True, help="Say what it has, and change nothing.")
@click.option(
    "--max-parallel",
    metavar="N",
    type=Whole(min=1, max=64),
    default=4,
    help="Topics that move at a time. [4]",
)
@click.option(
    "--timeout", metavar="DURATION", type=duration, help="Stop waiting then; the drain goes on. [for ever]"
)
@client_options
@pass_terminal
def drain(terminal: Terminal, node_id: int, dry_run: bool, max_parallel: int, timeout: int | None) -> Done:
    """Let all that NODE has go to other nodes, and say when it holds nothing: it can be removed then.

    It gets no new topics and no new copies from now on. Topics move away while they are written, sealed
    segments are copied to other nodes, and leave this one when those are known to be whole. `ister node
    activate` ends it at any time.

    \b
    Examples:
      ister node drain 3
      ister node drain 3 --dry-run
      ister node drain 3 --max-parallel 1 --timeout 10m
    """
    from ister.cli.render import Done, render

    async def work(log: Log) -> DrainDescription:
        if dry_run:
            return await log.drain_node(node_id, dry_run=True)
        return await _drained(terminal, log, node_id, max_parallel, timeout)

    found = ask_broker(terminal, work)
    entry = entry_of(found)
    if dry_run:
        return Done(entry, f"node {node_id} has {what(found)}; nothing was changed")
    if entry["empty"]:
        said = f"node {node_id} holds nothing: stop it and take it out, ister node remove {node_id}"
        return Done(entry, said)
    render(Done(entry, f"node {node_id} still has {what(found)}; the drain goes on"), terminal)
    raise click.exceptions.Exit(1)


async def _drained(
    terminal: Terminal, log: Log, node_id: int, max_parallel: int, timeout_ms: int | None
) -> DrainDescription:
    import asyncio

    began, said = monotonic(), ""
    while True:
        found = await log.drain_node(node_id, max_parallel=max_parallel)
        is_late = timeout_ms is not None and (monotonic() - began) * 1000 >= timeout_ms
        if entry_of(found)["empty"] or is_late:
            return found
        now = f"node {node_id} has {what(found)}{f'; {found.detail}' if found.detail else ''}"
        if now != said and not terminal.wants_json:
            terminal.tell(now)
        said = now
        await asyncio.sleep(LOOK_SECONDS)


@click.command()
@click.argument("node_id", metavar="NODE", type=Whole(min=1))
@client_options
@pass_terminal
def activate(terminal: Terminal, node_id: int) -> Done:
    """End the drain of NODE: it gets topics and copies again. What has moved stays where it is.

    \b
    Examples:
      ister node activate 3
      ister node activate 3 --output json
    """
    from ister.cli.render import Done

    found = ask_broker(terminal, lambda log: log.activate_node(node_id))
    return Done(entry_of(found), f"node {node_id} is active, and has {what(found)}")


def entry_of(found: DrainDescription) -> dict[str, object]:
    import msgspec

    return {**msgspec.structs.asdict(found), "empty": not (found.leads or found.follows or found.copies)}


def what(found: DrainDescription) -> str:
    from ister.cli.render import show_bytes

    if not (found.leads or found.follows or found.copies):
        return "nothing"
    return (
        f"{counted(found.leads, 'led topic')}, {counted(found.follows, 'open replica')}, "
        f"copies of {counted(found.copies, 'sealed segment')} ({show_bytes(found.copies_bytes)})"
    )
