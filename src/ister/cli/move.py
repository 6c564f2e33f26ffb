"""`ister move`, `ister topic move` and `unload`: topics go to other nodes while they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from ister.cli.common import Whole, ask_broker, client_options, duration, pass_terminal
from ister.cli.lazy import LazyGroup
from ister.cli.terminal import Terminal
from ister.io.clock import monotonic

if TYPE_CHECKING:
    from ister.cli.render_moves import MoveListing, MoveView
    from ister.client.log import Log
    from ister.protocol.moves import MoveDescription

LOOK_SECONDS = 0.1
ANY = "any"

_timeout = click.option(
    "--timeout",
    metavar="DURATION",
    type=duration,
    default="60s",
    help="Wait so long for its end; the move goes on after that.  [default: 60s]",
)


@click.group(cls=LazyGroup)
@client_options
def move() -> None:
    """The moves of topics: list, look at one, cancel. `ister topic move` begins one.

    \b
    Examples:
      ister move list
      ister move status 512
      ister move cancel 512
    """


@move.command("list")
@click.argument("topic", metavar="[TOPIC]", default="")
@client_options
@pass_terminal
def list_(terminal: Terminal, topic: str) -> MoveListing:
    """List the moves that are under way and the last ones that are over, of all topics or of TOPIC.

    \b
    Examples:
      ister move list
      ister move list events --output json
    """
    from ister.cli.render_moves import MoveListing

    return MoveListing(ask_broker(terminal, lambda log: log.moves(topic)))


@move.command()
@click.argument("move_id", metavar="MOVE", type=Whole(min=1))
@client_options
@pass_terminal
def status(terminal: Terminal, move_id: int) -> MoveView:
    """Show how far the move with the number MOVE is, and what it waits for.

    \b
    Examples:
      ister move status 512
      ister move status 512 --output json
    """
    from ister.cli.render_moves import MoveView

    return MoveView(ask_broker(terminal, lambda log: log.moves(move=move_id))[0])


@move.command()
@click.argument("move_id", metavar="MOVE", type=Whole(min=1))
@client_options
@pass_terminal
def cancel(terminal: Terminal, move_id: int) -> MoveView:
    """End the move with the number MOVE. Safe at any time.

    Before the seal the topic stays where it is; after it, where it is by then.

    \b
    Examples:
      ister move cancel 512
      ister move cancel 512 --output json
    """
    from ister.cli.render_moves import MoveView

    return MoveView(ask_broker(terminal, lambda log: log.cancel_move(move_id)))


@click.command("move")
@click.argument("name")
@click.option("--to", "target", metavar="NODE", required=True, help="The node that is to lead it, or `any`.")
@click.option("--plan", is_flag=True, help="Say what would be done, and do nothing.")
@_timeout
@client_options
@pass_terminal
def move_topic(terminal: Terminal, name: str, target: str, plan: bool, timeout: int) -> MoveView:
    """Let NODE lead the topic NAME from its next segment on. Writers notice a short pause, and no error.

    The topic stays there across rollovers until it is moved again, released with `--to any`, its node is
    drained, or it fails over. What was written stays where it is, and is read from there.

    \b
    Examples:
      ister topic move events --to 3
      ister topic move events --to 3 --plan
      ister topic move events --to any
    """
    if target == ANY:
        if plan:
            raise click.UsageError("--to any moves nothing: there is no plan of it")
        return _carried_out(terminal, lambda log: log.release_topic(name), 0)
    if not target.isdecimal() or int(target) < 1:
        raise click.UsageError(f"--to {target}: a node's number, or `any`; `ister node list` shows the nodes")
    node_id = int(target)
    return _carried_out(terminal, lambda log: log.move_topic(name, node_id, plan=plan), timeout)


@click.command()
@click.argument("name")
@click.option("--plan", is_flag=True, help="Say what would be done, and do nothing.")
@_timeout
@client_options
@pass_terminal
def unload(terminal: Terminal, name: str, plan: bool, timeout: int) -> MoveView:
    """Let another node lead the topic NAME, whichever is next. It goes on round-robin from there.

    \b
    Examples:
      ister topic unload events
      ister topic unload events --plan
    """
    return _carried_out(terminal, lambda log: log.unload_topic(name, plan=plan), timeout)


def _carried_out(terminal: Terminal, begin: Callable[[Log], object], timeout_ms: int) -> MoveView:
    """Begin it, and say how it goes until it is over. Exits with 1 if it came to nothing."""
    from ister.cli.render import render
    from ister.cli.render_moves import MoveView

    async def follow(log: Log) -> MoveDescription:
        return await _follow(terminal, log, begin, timeout_ms)

    view = MoveView(ask_broker(terminal, follow))
    if view.is_fine:
        return view
    render(view, terminal)
    raise click.exceptions.Exit(1)


async def _follow(
    terminal: Terminal, log: Log, begin: Callable[[Log], object], timeout_ms: int
) -> MoveDescription:
    import asyncio

    found: MoveDescription = await begin(log)  # type: ignore[misc]
    deadline, said = monotonic() + timeout_ms / 1000, ""
    while not found.is_over and monotonic() < deadline:
        now = f"move {found.move}: {found.stage}{f', {found.detail}' if found.detail else ''}"
        if now != said and not terminal.wants_json:
            terminal.tell(now)
        said = now
        await asyncio.sleep(LOOK_SECONDS)
        found = (await log.moves(move=found.move))[0]
    return found
