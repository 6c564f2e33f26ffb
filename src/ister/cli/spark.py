"""`ister spark`: the way of Spark to the brokers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from ister.cli.common import Whole, client_options, counted, pass_terminal
from ister.cli.lazy import LazyGroup
from ister.cli.spark_options import SparkPlace, spark_options
from ister.cli.terminal import Paint, Terminal

if TYPE_CHECKING:
    from ister.spark.sessions.checking import Line

FAILED: Final = 1
SOON: Final = {
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "10",
}
"""A cluster that has less room than it says is to be told of within seconds, not within ten minutes."""


class Checked(NamedTuple):
    """What was looked at, line by line."""

    lines: Sequence[Line]

    @property
    def failed(self) -> int:
        return sum(not line.ok for line in self.lines)

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [line._asdict() for line in self.lines]

    def to_text(self, paint: Paint) -> str:
        from ister.cli.render import table

        rows = []
        for line in self.lines:
            shown = paint("green", "ok") if line.ok else paint("red", "FAILED")
            rows.append([shown, line.where, line.what, line.detail])
            if line.hint:
                rows.append(["", "", "", paint("yellow", f"-> {line.hint}")])
        places = len({line.where for line in self.lines if line.where.startswith("executor ")})
        end = f"{counted(self.failed, 'thing')} to mend" if self.failed else "all right: a job can start"
        listed = table(["", "WHERE", "WHAT", ""], "<<<<", rows, paint)
        return f"{listed}\n{counted(places, 'executor')} asked; {end}"


@click.group(cls=LazyGroup)
@client_options
def spark() -> None:
    """Spark and the brokers: see `ister spark-shell` for a prompt.

    \b
    Examples:
      ister spark check
      ister spark check --master spark://10.0.0.1:7077
    """


@spark.command()
@click.option(
    "--executors", metavar="N", type=Whole(min=1), help="Fail unless at least so many executors answer."
)
@spark_options
@client_options
@pass_terminal
def check(terminal: Terminal, executors: int | None, place: SparkPlace) -> Checked:
    """Prove, before a job starts, that the driver and each executor can do it.

    Asked of each of them: its Python, the versions of pyspark, pyarrow and ister, and whether it reaches
    every broker of the cluster by its address. Each line that failed says what to do, and the exit code is 1.

    \b
    Examples:
      ister spark check
      ister spark check --master spark://10.0.0.1:7077 --executors 4
      ister spark check --remote sc://10.0.0.1:15002 --output json
    """
    from ister.errors import IsterError
    from ister.spark.sessions.checking import (
        Line,
        check_brokers,
        check_driver,
        check_executors,
        check_session,
    )

    addresses, lines = check_brokers(terminal.bootstrap)
    driver, found = check_driver(addresses)
    lines += found
    place = place if place.remote else place._replace(conf={**SOON, **place.conf})
    try:
        with place.session(terminal, "ister spark check") as session:
            lines += check_session(session)
            lines += check_executors(session, driver, addresses, expected=executors or 0)
    except IsterError as error:
        lines.append(Line(False, "driver", "session", error.message, error.hint))
    checked = Checked(lines)
    if checked.failed:
        from ister.cli.render import render

        render(checked, terminal)
        click.get_current_context().exit(FAILED)
    return checked
