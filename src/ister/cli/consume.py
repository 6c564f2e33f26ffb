"""`ister consume`: the records of a subscription, acknowledged as they are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ister.cli.common import Whole, ask_broker, client_options, duration, pass_terminal
from ister.cli.read import choose_writer, format_option, raw_option
from ister.cli.subscription import KINDS
from ister.cli.terminal import Terminal

if TYPE_CHECKING:
    from ister.client.log import Log


@click.command()
@click.argument("topic")
@click.argument("name", metavar="SUBSCRIPTION")
@click.option("--kind", type=KINDS, help="Make it, of this kind, if it is not there; else it must be of it.")
@click.option("--count", metavar="N", type=Whole(min=1), help="Stop after this many records.")
@click.option("--idle", metavar="TIME", help="Stop when nothing came for so long, such as 5s.")
@click.option(
    "--window",
    metavar="N",
    type=Whole(min=1),
    default=1000,
    show_default=True,
    help="How many records to take that are not acknowledged yet.",
)
@format_option
@raw_option
@client_options
@pass_terminal
def consume(
    terminal: Terminal,
    topic: str,
    name: str,
    kind: str | None,
    count: int | None,
    idle: str | None,
    window: int,
    template: str | None,
    raw: bool,
) -> None:
    """Show the records of SUBSCRIPTION of TOPIC as they come, and acknowledge each once it is written.

    What was written when this ends, however it ends, is acknowledged but for the last few milliseconds; the
    rest is delivered to the next consumer. The subscription must be there, unless --kind is given.

    \b
    Examples:
      ister consume orders billing
      ister consume orders billing --count 10 --output json
      ister consume orders billing --kind shared --idle 5s | sort
    """
    from ister.cli.outflow import Outflow
    from ister.cli.subscription import find

    write = choose_writer(terminal, topic, template, raw)
    idle_s = duration(idle) / 1000 if idle is not None else None

    async def work(log: Log) -> None:
        if kind is None:
            await find(log, topic, name)
        out, left = Outflow(terminal), count
        async with log.subscribe(topic, name, kind=kind, window=window) as subscription:
            while left is None or left > 0:
                batch = await subscription.next(idle_s)
                if batch is None:
                    break
                records = batch.records()[:left]
                await out.write(write(records))
                await batch.ack(end=batch.start + len(records))
                left = left - len(records) if left is not None else None

    ask_broker(terminal, work)
