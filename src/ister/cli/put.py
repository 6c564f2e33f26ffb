"""`ister put`: records from an argument, a file or a pipe into a topic."""

from __future__ import annotations

import os
import stat
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from ister.cli.common import Whole, ask_broker, client_options, pass_terminal
from ister.cli.terminal import Terminal
from ister.errors import BadRequest, IsterError
from ister.io.clock import monotonic

if TYPE_CHECKING:
    import asyncio

    from ister.cli.render import Done
    from ister.client.log import Log
    from ister.client.producer import Producer
    from ister.columns import RecordHeaders

BUFFER_BYTES: Final = 32 << 20
"""What may be on its way to the broker at once."""
MAX_LINE_BYTES: Final = 64 << 20

_RECORD_COST: Final = 32
_PROGRESS_EACH_S: Final = 0.2


@click.command()
@click.argument("topic")
@click.argument("value", required=False)
@click.option("--lines", is_flag=True, help="Take the records from the standard input or --file, one a line.")
@click.option(
    "--file",
    "path",
    metavar="FILE",
    help="Take the value, or with --lines the lines, from FILE (- is stdin).",
)
@click.option("--key", metavar="KEY", help="The key of every record.")
@click.option(
    "--key-separator", metavar="TEXT", help="With --lines: what stands between key and value in each line."
)
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of every record.")
@click.option(
    "--compression",
    type=click.Choice(["none", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="How batches are packed, for the network and the disk.",
)
@click.option(
    "--batch",
    metavar="N",
    type=Whole(1, 1_000_000),
    default=10_000,
    show_default=True,
    help="Records in a batch.",
)
@client_options
@pass_terminal
def put(
    terminal: Terminal,
    topic: str,
    value: str | None,
    lines: bool,
    path: str | None,
    key: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    compression: str,
    batch: int,
) -> Done:
    """Append VALUE to TOPIC, or records from a file or a pipe.

    It returns when all is acknowledged, which means on disk unless the topic's fsync setting is weaker.

    A line is taken as it is, byte for byte, without its newline; an empty line is an empty record. Prints how
    many records there were and their offsets. If it fails midway, the error says what was acknowledged.

    \b
    Examples:
      ister put events 'hello'
      ister put events 'hello' --key user-1 --header source=web
      cat app.log | ister put events --lines
      ister put events --lines --file people.tsv --key-separator '\\t' --compression zstd
      ister put images --file photo.jpg --output json
    """
    check_source(value, lines, path, key, key_separator)
    shape = Shape(
        key=_encoded(key) if key is not None else None,
        separator=_unescaped(key_separator) if key_separator is not None else None,
        headers=_parse_headers(headers),
    )
    descriptor = open_source(path) if value is None else -1
    tally = Tally(terminal, shows_progress=lines)

    async def work(log: Log) -> None:
        async with log.producer(
            topic, compression=compression, batch_records=batch, linger_ms=0, buffer_bytes=BUFFER_BYTES
        ) as producer:
            if lines:
                await put_lines(producer, descriptor, shape, tally)
            else:
                data = _encoded(value) if value is not None else await read_whole(descriptor)
                await put_one(producer, data, shape, tally)

    try:
        ask_broker(terminal, work)
    except IsterError as error:
        raise tally.explain(error) from error
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(*tally.told()) from interrupt
    finally:
        tally.finish()
    return tally.done(topic)


class Shape(NamedTuple):
    """What the records have besides their values."""

    key: bytes | None
    separator: bytes | None
    headers: RecordHeaders

    def split(self, rows: list[bytes], first_line: int) -> tuple[Sequence[bytes], Sequence[bytes] | None]:
        """Values, and keys if there are any."""
        if self.key is not None:
            return rows, [self.key] * len(rows)
        if self.separator is None:
            return rows, None
        cut = [row.partition(self.separator) for row in rows]
        for place, (_, found, _) in enumerate(cut):
            if not found:
                raise BadRequest(
                    f"line {first_line + place} has no separator {self.separator!r}: {rows[place][:60]!r}",
                    hint="Correct the line, or choose another --key-separator.",
                )
        return [value for _, _, value in cut], [key for key, _, _ in cut]

    def cost(self, rows: list[bytes]) -> int:
        """No less than what the producer will count for these rows."""
        each = _RECORD_COST + len(self.key or b"") + sum(len(n) * 4 + len(v) + 8 for n, v in self.headers)
        return sum(map(len, rows)) + each * len(rows)


class Tally:
    """What has been acknowledged so far."""

    def __init__(self, terminal: Terminal, *, shows_progress: bool) -> None:
        self.records = 0
        self.bytes = 0
        self.first_offset: int | None = None
        self.last_offset: int | None = None
        self._terminal = terminal
        self._shows = (
            shows_progress
            and terminal.errors_to_terminal
            and not terminal.input_is_terminal
            and not terminal.wants_json
        )
        self._started = self._shown_at = monotonic()
        self._has_shown = False

    def add(self, offsets: Sequence[int], size: int) -> None:
        self.records += len(offsets)
        self.bytes += size
        if self.first_offset is None:
            self.first_offset = offsets[0]
        self.last_offset = offsets[-1]
        now = monotonic()
        if self._shows and now - self._shown_at > _PROGRESS_EACH_S:
            self._shown_at, self._has_shown = now, True
            rate = self.records / (now - self._started)
            self._overwrite(f"{self.records:,} records, {rate:,.0f} records/s")

    def finish(self) -> None:
        if self._has_shown:
            self._overwrite("")

    def _overwrite(self, text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{self._terminal.paint_errors('dim', text)}")
        sys.stderr.flush()

    def explain(self, error: IsterError) -> IsterError:
        """The error, which now also says what was acknowledged before it."""
        if not self.records:
            return error
        told = f"{error.message}; acknowledged before that: {self._sentence()}"
        return type(error)(told, hint=error.hint)

    def told(self) -> list[str]:
        """For whoever interrupts it: what is in the log already."""
        return [f"interrupted; acknowledged before that: {self._sentence()}"] if self.records else []

    def done(self, topic: str) -> Done:
        from ister.cli.render import Done
        from ister.names import normalise_topic

        entry: dict[str, Any] = {
            "topic": normalise_topic(topic),
            "records": self.records,
            "bytes": self.bytes,
            "first_offset": self.first_offset,
            "last_offset": self.last_offset,
        }
        return Done(entry, self._sentence())

    def _sentence(self) -> str:
        from ister.cli.render import grouped, show_bytes

        if self.records == 0:
            return "no records"
        if self.records == 1:
            return f"1 record, {show_bytes(self.bytes)}, offset {self.first_offset}"
        offsets = f"offsets {self.first_offset} to {self.last_offset}"
        return f"{grouped(self.records)} records, {show_bytes(self.bytes)}, {offsets}"


def check_source(
    value: str | None, lines: bool, path: str | None, key: str | None, separator: str | None
) -> None:
    if value is not None and (lines or path is not None):
        raise click.UsageError("give a VALUE, or --lines, or --file; not both")
    if value is None and not lines and path is None:
        raise click.UsageError("nothing to append: give a VALUE, or --lines, or --file")
    if separator is not None and not lines:
        raise click.UsageError("--key-separator needs --lines; a single record takes --key")
    if separator == "":
        raise click.UsageError("--key-separator is empty")
    if separator is not None and key is not None:
        raise click.UsageError("--key and --key-separator are two ways to give a key; choose one")


def open_source(path: str | None) -> int:
    if path is None or path == "-":
        if sys.stdin is None:
            raise click.UsageError("the standard input is closed: there is nothing to read from")
        return 0
    try:
        descriptor = os.open(Path(path), os.O_RDONLY)
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}", param_hint="--file") from error
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise click.BadParameter(f"{path} is a directory", param_hint="--file")
    return descriptor


async def put_one(producer: Producer, data: bytes, shape: Shape, tally: Tally) -> None:
    offset = await producer.send(data, key=shape.key, headers=shape.headers)
    tally.add([offset], len(data))


async def read_whole(descriptor: int) -> bytes:
    from ister.cli.lines import read_chunks

    pieces = [chunk async for chunk in read_chunks(descriptor)]
    return b"".join(pieces)


async def put_lines(producer: Producer, descriptor: int, shape: Shape, tally: Tally) -> None:
    """Send lines as they come, several batches at once, in their order.

    What is on its way never exceeds the producer's buffer, so no batch ever waits there for room while a
    later one overtakes it; a chunk that is larger than the buffer goes alone.
    """
    import asyncio

    from ister.cli.lines import read_lines

    on_their_way: deque[tuple[asyncio.Task[Sequence[int]], int, int]] = deque()
    held = 0
    line = 1

    async def settle() -> int:
        task, size, cost = on_their_way.popleft()
        tally.add(await task, size)
        return cost

    try:
        async for rows in read_lines(descriptor, MAX_LINE_BYTES):
            values, keys = shape.split(rows, line)
            line += len(rows)
            cost = shape.cost(rows)
            while on_their_way and (held + cost > BUFFER_BYTES or on_their_way[0][0].done()):
                held -= await settle()
            headers = [shape.headers] * len(rows) if shape.headers else None
            task = asyncio.create_task(_send(producer, values, keys, headers))
            on_their_way.append((task, sum(map(len, values)), cost))
            held += cost
        while on_their_way:
            held -= await settle()
    except asyncio.CancelledError:
        while on_their_way and _is_acknowledged(on_their_way[0][0]):
            await settle()  # answered while we waited for more lines: they count
        raise
    finally:
        for task, _, _ in on_their_way:
            task.cancel()
        await asyncio.gather(*(task for task, _, _ in on_their_way), return_exceptions=True)


def _is_acknowledged(task: asyncio.Task[Sequence[int]]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def _send(
    producer: Producer,
    values: Sequence[bytes],
    keys: Sequence[bytes] | None,
    headers: Sequence[RecordHeaders] | None,
) -> Sequence[int]:
    return await producer.send_many(values, keys=keys, headers=headers)


def _encoded(text: str) -> bytes:
    """What was typed, byte for byte, even where it is no UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def _unescaped(text: str) -> bytes:
    return _encoded(text.replace("\\t", "\t").replace("\\0", "\0"))


def _parse_headers(headers: tuple[str, ...]) -> RecordHeaders:
    found = []
    for header in headers:
        name, equals, value = header.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{header!r} is not NAME=VALUE", param_hint="--header")
        found.append((name, _encoded(value)))
    return found
