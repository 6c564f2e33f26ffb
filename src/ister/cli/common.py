"""What the commands share: the options that all of them take, and the way to a broker."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ister.cli.terminal import DEFAULT_BOOTSTRAP, Terminal

if TYPE_CHECKING:
    from ister.client.log import Log
    from ister.protocol.messages import NodeAnswer

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

HELP_WIDTH: Final = 100

QUICK: Final[dict[str, Any]] = {"connect_timeout_s": 3.0, "request_timeout_s": 3.0, "retry_deadline_s": 3.0}
"""Options of `ister.connect` for a look at how things are now, which does not wait for them to get better."""


class Whole(click.IntRange):
    """A number in a range; click would call one that is none `not a valid integer range`."""

    name = "whole number"


def duration(text: str) -> int:
    """The type of an option: `250ms`, `10s`, `5m`, as milliseconds."""
    from ister.settings import NotAllowed, parse_duration

    try:
        found = parse_duration(text)
    except NotAllowed as reason:
        raise click.BadParameter(f"{text!r} {reason}") from reason
    if found <= 0:
        raise click.BadParameter(f"{text!r} is not above 0")
    return found


pass_terminal = click.make_pass_decorator(Terminal)


def _keep_output(ctx: click.Context, _option: click.Parameter, value: str | None) -> None:
    terminal = ctx.find_object(Terminal)
    if value is not None and terminal is not None:
        terminal.output = value


def _keep_bootstrap(ctx: click.Context, _option: click.Parameter, value: str | None) -> None:
    terminal = ctx.find_object(Terminal)
    if value is not None and terminal is not None:
        terminal.bootstrap = value


# Both are eager and kept in the terminal at once: an error in a later option is then shown as asked for.
output_option = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    expose_value=False,
    is_eager=True,
    callback=_keep_output,
    help="Text for people (the default), or JSON: one object, or one object a line.",
)
bootstrap_option = click.option(
    "--bootstrap",
    metavar="HOST:PORT",
    expose_value=False,
    is_eager=True,
    callback=_keep_bootstrap,
    help=f"The broker to ask; else ISTER_BOOTSTRAP, else {DEFAULT_BOOTSTRAP}.",
)


def client_options(command: F) -> F:
    """`--bootstrap` and `--output`, for every command that talks to a broker."""
    return output_option(bootstrap_option(command))


def parse_pairs(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    """`name=value` options as a dictionary; a name twice is refused rather than overwritten."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint=option)
        if name.strip() in found:
            raise click.BadParameter(f"{name.strip()!r} is given twice", param_hint=option)
        found[name.strip()] = value
    return found


def counted(number: int, what: str) -> str:
    """`1 node`, `2,000 nodes`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def said_of(answer: NodeAnswer) -> str:
    """What the cluster said of one of its nodes; empty if it said nothing."""
    return f"node {answer.node_id}: {answer.detail}" if answer.detail else ""


def ask_broker(terminal: Terminal, work: Callable[[Log], Coroutine[Any, Any, T]], **options: Any) -> T:
    """Connect, do the work, close; a command's way to a broker. `options` are those of `ister.connect`."""
    import asyncio

    import ister

    async def conversation() -> T:
        async with ister.connect(terminal.bootstrap, **options) as log:
            return await work(log)

    with _warnings_told(terminal):
        return asyncio.run(conversation())


@contextmanager
def _warnings_told(terminal: Terminal) -> Iterator[None]:
    """What the client warns of, such as a node that it waits for, reaches a person; scripts see the end."""
    import logging

    class Teller(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not terminal.wants_json:
                terminal.tell(terminal.paint_errors("yellow", record.getMessage()))

    logger, teller = logging.getLogger("ister.client"), Teller(logging.WARNING)
    logger.addHandler(teller)
    try:
        yield
    finally:
        logger.removeHandler(teller)
