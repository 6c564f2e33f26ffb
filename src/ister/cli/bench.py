"""`ister bench`: what a broker does on this machine, beside what the disk does for a bare loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from ister.cli.common import Whole, client_options, parse_pairs, pass_terminal
from ister.cli.lazy import LazyGroup
from ister.cli.terminal import Paint, Terminal

F = TypeVar("F", bound=Callable[..., Any])

_COUNT = Whole(min=1)


def work_options(command: F) -> F:
    """How much to do; each mode has its own defaults."""
    options = [
        click.option("--records", metavar="N", type=_COUNT, help="Records of each repetition."),
        click.option("--size", metavar="N", type=Whole(min=0), help="Bytes of a record."),
        click.option("--batch", metavar="N", type=_COUNT, help="Records of one append."),
        click.option(
            "--in-flight",
            metavar="N",
            type=_COUNT,
            help="Appends waiting for an answer (on each connection).",
        ),
        click.option(
            "--repeats", metavar="N", type=_COUNT, help="Repetitions, of which the median is reported."
        ),
        click.option(
            "--set",
            "settings",
            metavar="SETTING=VALUE",
            multiple=True,
            help="A setting of the topics, such as fsync=none.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.group(cls=LazyGroup)
@client_options
def bench() -> None:
    """Measure a broker, beside what the same disk does for a bare loop in the same run.

    Without --bootstrap on the command line, a broker is started for the bench in a new directory under
    the current one, and both are removed at the end. So the disk measured is the one you are on.

    \b
    Examples:
      ister bench append
      ister bench latency --records 5000 --size 100
      ister bench append --size 1024 --batch 1000 --output json
      ister bench append --set fsync=none
      ister bench fanin --connections 64 --in-flight 16
    """


@bench.command()
@work_options
@client_options
@pass_terminal
def append(terminal: Terminal, /, settings: tuple[str, ...], **options: int | None) -> Measured:
    """Append batches, several in flight, each acknowledged after it was synced.

    \b
    Examples:
      ister bench append
      ister bench append --records 1000000 --size 100 --batch 1000 --output json
    """
    return measure(terminal, "append", options, settings)


@bench.command()
@work_options
@client_options
@pass_terminal
def latency(terminal: Terminal, /, settings: tuple[str, ...], **options: int | None) -> Measured:
    """Append a lone record, wait for its answer, append the next.

    `raw_p50_ms` is a bare write and sync of as many bytes, done in turn with the appends.

    \b
    Examples:
      ister bench latency
      ister bench latency --records 5000 --size 1024 --output json
    """
    return measure(terminal, "latency", options, settings)


@bench.command()
@work_options
@client_options
@pass_terminal
def read(terminal: Terminal, /, settings: tuple[str, ...], **options: int | None) -> Measured:
    """Write a topic and read it from the start: as frames, as Arrow batches, record by record.

    `mb_per_s` is of frames, `records_per_s` of single records in a plain loop, `p50_ms` of a fetch of
    one record from memory; `raw_mb_per_s` is a bare read of a file.

    \b
    Examples:
      ister bench read
      ister bench read --records 100000 --size 1024 --output json
    """
    return measure(terminal, "read", options, settings)


@bench.command()
@work_options
@click.option("--connections", metavar="N", type=_COUNT, help="Connections.  [default: 64]")
@client_options
@pass_terminal
def fanin(terminal: Terminal, /, settings: tuple[str, ...], **options: int | None) -> Measured:
    """Append single records from many connections at once.

    \b
    Examples:
      ister bench fanin
      ister bench fanin --connections 200 --in-flight 4 --output json
    """
    return measure(terminal, "fanin", options, settings)


@bench.command()
@work_options
@click.option("--topics", metavar="N", type=_COUNT, help="Topics.  [default: 1000]")
@client_options
@pass_terminal
def topics(terminal: Terminal, /, settings: tuple[str, ...], **options: int | None) -> Measured:
    """Append batches to many topics in turn, and to one topic beside it.

    \b
    Examples:
      ister bench topics
      ister bench topics --topics 100 --batch 100 --output json
    """
    return measure(terminal, "topics", options, settings)


def measure(
    terminal: Terminal, mode: str, options: dict[str, int | None], settings: tuple[str, ...]
) -> Measured:
    from dataclasses import replace

    from ister.bench.figures import unsteady
    from ister.bench.modes import MODES, run_bench
    from ister.settings import validate_settings

    topic_settings = validate_settings(parse_pairs(settings, "--set"))
    given = {name: value for name, value in options.items() if value is not None}
    bootstrap = terminal.bootstrap if is_bootstrap_given(click.get_current_context()) else None
    measured = run_bench(mode, replace(MODES[mode].defaults, **given), bootstrap, topic_settings)
    warning = unsteady(measured)
    if warning:
        terminal.tell(f"{terminal.paint_errors('yellow', 'warning:')} {warning}")
    return Measured(measured)


def is_bootstrap_given(context: click.Context) -> bool:
    """On the command line, at any level: a broker from the environment is not put under load by accident."""
    at: click.Context | None = context
    while at is not None:
        if at.get_parameter_source("bootstrap") is ParameterSource.COMMANDLINE:
            return True
        at = at.parent
    return False


class Measured(NamedTuple):
    """The fields of one bench."""

    fields: dict[str, Any]

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [self.fields]

    def to_text(self, paint: Paint) -> str:
        from ister.cli.render import pairs

        facts = [(name, shown(value)) for name, value in self.fields.items() if name != "mode"]
        return "\n".join([paint("bold", f"bench {self.fields['mode']}"), *pairs(facts, paint)])


def shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
