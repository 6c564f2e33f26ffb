"""`ister get` and `ister tail`: records, from any place, as they come."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from ister.cli.common import Whole, ask_broker, client_options, pass_terminal
from ister.cli.terminal import Terminal
from ister.errors import CorruptSegment, OffsetOutOfRange

if TYPE_CHECKING:
    from ister.cli.outflow import Outflow
    from ister.cli.records import Writer
    from ister.client.log import Log
    from ister.protocol.messages import TopicDescription

WRITE_BYTES: Final = 1 << 20

format_option = click.option(
    "--format",
    "template",
    metavar="FORMAT",
    help=r"How a record looks: %o offset, %t time, %u time in microseconds, %k key, %v value, %h headers, "
    r"%s value size, %n topic, %%; and \n, \t, \0, \xHH.",
)
read_from_option = click.option(
    "--read-from",
    type=click.Choice(["leader", "any"]),
    default="leader",
    show_default=True,
    help="Who answers for records of the open segment: its leader, or any replica that has them committed.",
)
raw_option = click.option("--raw", is_flag=True, help="The values alone, byte for byte, one a line.")


class OffsetCommand(click.Command):
    """Takes a negative number for the offset that somebody meant, not for an option called -1."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for before, arg in pairwise(["", *args]):
            if arg[1:].isdigit() and arg.startswith("-") and not before.startswith("-"):
                raise click.BadParameter(f"{arg} is negative; offsets count from 0", ctx, param_hint="OFFSET")
        return super().parse_args(ctx, args)


@click.command(cls=OffsetCommand)
@click.argument("topic")
@click.argument("offset", type=Whole(min=0))
@click.option(
    "--count", metavar="N", type=Whole(min=1), default=1, show_default=True, help="How many records."
)
@read_from_option
@format_option
@raw_option
@client_options
@pass_terminal
def get(
    terminal: Terminal,
    topic: str,
    offset: int,
    count: int,
    read_from: str,
    template: str | None,
    raw: bool,
) -> None:
    """Read the record at OFFSET of TOPIC, or --count of them from there.

    It is an error (exit code 5) if there is no record at OFFSET. If the topic ends before --count records,
    those that are there are shown, and the standard error says how many are missing.

    \b
    Examples:
      ister get events 42
      ister get events 0 --count 100 --output json
      ister get events 42 --raw > value.bin
    """
    write = choose_writer(terminal, topic, template, raw)

    async def work(log: Log) -> int:
        found = await find_bounds(log, topic, offset + count)
        if not found.start <= offset < found.end:
            raise OffsetOutOfRange(
                f"{found.topic} has no record at offset {offset}: it holds {found.held}",
                hint="Read at an offset that is there; `ister tail` waits for new ones.",
            )
        span = Span(offset, min(offset + count, found.end), read_from=read_from)
        return await copy(terminal, log, topic, span, write)

    shown = ask_broker(terminal, work)
    if shown < count:
        terminal.tell(f"{shown} of {count} records: {topic} ends at offset {offset + shown}")


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "place",
    metavar="PLACE",
    help="start, end, an offset, a time (2030-01-31T12:00) or a while ago ('10m ago').  "
    "[default: end; with --no-follow: start]",
)
@click.option("-n", "--last", metavar="N", type=Whole(min=0), help="Start with the last N records.")
@click.option(
    "--follow/--no-follow", default=True, show_default=True, help="Wait for new records, or stop at the end."
)
@click.option("--count", metavar="N", type=Whole(min=1), help="Stop after this many records.")
@read_from_option
@format_option
@raw_option
@client_options
@pass_terminal
def tail(
    terminal: Terminal,
    topic: str,
    place: str | None,
    last: int | None,
    follow: bool,
    count: int | None,
    read_from: str,
    template: str | None,
    raw: bool,
) -> None:
    """Show the records of TOPIC as they come, until Ctrl-C.

    On a terminal each record has its offset, time and key before it, and what a terminal would obey is
    escaped; in a pipe there are the values alone, one a line, byte for byte. Times without a zone are local.

    \b
    Examples:
      ister tail events                                what comes from now on
      ister tail events -n 10                          the last ten, then what comes
      ister tail events --from start --no-follow       all that is there
      ister tail events --from '10m ago' --output json
      ister tail events --format '%o %t %k %v\\n'
      ister tail events --raw | gzip > events.gz
    """
    from ister.cli.records import parse_place

    if place is not None and last is not None:
        raise click.UsageError("--from and -n are two places to start from; give one of them")
    write = choose_writer(terminal, topic, template, raw)
    if place is None:
        place = "end" if follow else "start"
    start = parse_place(place, datetime.now(UTC))

    async def work(log: Log) -> int:
        span = await resolve(log, topic, start, last, follow=follow, count=count, read_from=read_from)
        if span.lost:
            terminal.tell(f"{span.lost}: what lies behind them is shown, from offset {span.start} on")
        if count is not None:
            end = span.start + count
            span = span._replace(end=end if span.end is None else min(end, span.end))
        if follow and terminal.is_terminal and not terminal.wants_json:
            terminal.tell(terminal.paint_errors("dim", f"{topic} from offset {span.start}; Ctrl-C ends"))
        return await copy(terminal, log, topic, span, write)

    ask_broker(terminal, work)


class Span(NamedTuple):
    """The offsets to show: from `start` up to `end`, or for ever. With `follow`, those to come too."""

    start: int
    end: int | None
    follow: bool = False
    read_from: str = "leader"
    lost: str = ""
    """Why it starts later than it was asked for: offsets that were given up."""


def choose_writer(terminal: Terminal, topic: str, template: str | None, raw: bool) -> Writer:
    from ister.cli.records import compile_format, json_lines, painted_lines, raw_lines

    if sum((raw, template is not None, terminal.wants_json)) > 1:
        raise click.UsageError(
            "--raw, --format and --output json are three ways to show a record; choose one"
        )
    if terminal.wants_json:
        from ister.names import normalise_topic

        return json_lines(normalise_topic(topic))
    if template is not None:
        return compile_format(template, topic, escaped=terminal.is_terminal)
    return painted_lines(terminal.paint) if terminal.is_terminal and not raw else raw_lines


async def resolve(
    log: Log,
    topic: str,
    start: str | int | datetime,
    last: int | None,
    *,
    follow: bool,
    count: int | None,
    read_from: str,
) -> Span:
    """Where to start and to end, as offsets. A start that is not there is the broker's to refuse."""
    wanted: int | None = None
    if isinstance(start, int) and (follow or count is not None):
        wanted = start + (0 if follow or count is None else count)
    elif follow and last is None and start == "earliest":
        wanted = 0
    # Any replica can say whether it has what is asked for, though nobody can say where the topic ends.
    needs_no_end = follow and isinstance(start, int) and read_from == "any"
    found = await find_bounds(log, topic, wanted, needs_end=not needs_no_end)
    span = Span(found.start, None if follow else found.end, follow, read_from)
    if last is not None:
        return _behind_losses(found, span._replace(start=max(found.start, found.end - last)))
    if isinstance(start, datetime):
        return span._replace(start=await log.offsets_at(topic, start))
    if start == "earliest":
        return span
    if start == "latest":
        return span._replace(start=found.end)
    assert isinstance(start, int)
    if start < found.start or (start > found.end and not needs_no_end):
        raise OffsetOutOfRange(
            f"{found.topic} has no offset {start}: it holds {found.held}",
            hint="Give an offset that is there, or start or end.",
        )
    return span._replace(start=start)


def _behind_losses(found: Bounds, span: Span) -> Span:
    """Of the last records, those behind the last ones that were given up: nobody has named a lost offset."""
    lost = [segment for segment in found.described.segments if segment.lost]
    if not lost or lost[-1].end_offset <= span.start:
        return span
    count, start = lost[-1].lost, lost[-1].end_offset
    offsets = f"offset {start - 1} is" if count == 1 else f"offsets {start - count} to {start - 1} are"
    return span._replace(start=start, lost=f"{offsets} lost in {found.topic}")


class Bounds(NamedTuple):
    """Where a topic begins and ends."""

    topic: str
    start: int
    end: int
    described: TopicDescription

    @property
    def held(self) -> str:
        if self.start == self.end:
            return f"no records, and the next one gets offset {self.end}"
        return f"{self.start} to {self.end - 1}"


async def find_bounds(log: Log, topic: str, wanted: int | None = None, *, needs_end: bool = True) -> Bounds:
    """A description is what one node knows. Where the topic ends, only the node that leads it can say: if
    that one cannot be asked, it is an error, and never an earlier end (promise 5). Nobody has to say it if
    the topic is known to reach up to `wanted`, or where an earlier end does no harm (not `needs_end`)."""
    found = await log.describe_topic(topic)
    if not needs_end or (wanted is not None and wanted <= found.end_offset):
        return Bounds(found.topic, found.start_offset, found.end_offset, found)
    try:
        end = await log.offsets_at(topic, "latest")
    except CorruptSegment:
        end = found.end_offset  # what lies before the damage is shown, and then comes its error
    return Bounds(found.topic, found.start_offset, max(end, found.start_offset), found)


async def copy(terminal: Terminal, log: Log, topic: str, span: Span, write: Writer) -> int:
    """Write the records of a span as they come; returns how many there were.

    Raises BrokenPipeError once nobody reads the output, even if there is nothing to write.
    """
    import asyncio

    from ister.cli.outflow import Outflow

    if span.end is not None and span.end <= span.start:
        return 0
    out = Outflow(terminal)
    copying = asyncio.create_task(_copy_to(out, log, topic, span, write))
    leaving = asyncio.create_task(out.closed())
    try:
        await asyncio.wait({copying, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not copying.done():
            raise BrokenPipeError
        return copying.result()
    finally:
        copying.cancel()
        leaving.cancel()
        await asyncio.gather(copying, leaving, return_exceptions=True)


async def _copy_to(out: Outflow, log: Log, topic: str, span: Span, write: Writer) -> int:
    from ister.client.reader import clipped

    shown = 0
    reader = log.read(topic, start=span.start, end=span.end, follow=span.follow, read_from=span.read_from)
    async with aclosing(reader.chunks()) as chunks:
        async for chunk in chunks:
            ready: list[bytes] = []
            size = 0
            for frame in chunk.frames:
                records = clipped(frame, chunk)
                shown += len(records)
                ready.append(write(records))
                size += len(ready[-1])
                # Small frames go out together, for speed; large ones, as compressed ones may become, do not.
                if size >= WRITE_BYTES:
                    await out.write(b"".join(ready))
                    ready, size = [], 0
            await out.write(b"".join(ready))
    return shown
