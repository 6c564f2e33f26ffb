"""`ister pipeline lag`: how far queries and tables are behind their topics."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ister.cli.common import client_options, pass_terminal
from ister.cli.pipeline_common import SparkOptions, job_run, pipeline_options
from ister.cli.terminal import Terminal

if TYPE_CHECKING:
    from ister.cli.render_lag import LagView


@click.command()
@click.option(
    "--checkpoint",
    "checkpoints",
    metavar="DIR",
    multiple=True,
    help="Of a query; may be given several times.",
)
@click.option(
    "--table", "tables", metavar="DIR|URI", multiple=True, help="A lake table; may be given several times."
)
@click.option(
    "--report",
    metavar="FILE",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write a page with plots, for a browser; it needs no network.",
)
@pipeline_options
@client_options
@pass_terminal
def lag(
    terminal: Terminal,
    spark_options: SparkOptions,
    checkpoints: tuple[str, ...],
    tables: tuple[str, ...],
    report: Path | None,
) -> LagView:
    """How many records and how much time each follower of a topic is behind.

    Followers are queries that run, which have a pin; those that have left a checkpoint; and lake tables. Time
    is the age of the first record that a follower has not got. Spark is started only for checkpoints that are
    not on this machine.

    \b
    Examples:
      ister pipeline lag
      ister pipeline lag --checkpoint /var/lib/report/checkpoint --table /lake/orders
      ister pipeline lag --table /lake/orders --report lag.html
    """
    from ister.cli.render_lag import LagView, lag_page
    from ister.spark.jobs.checkpoints import is_local
    from ister.spark.jobs.lag import lag as lag_job

    with ExitStack() as stack:
        needs_spark = not all(map(is_local, checkpoints))
        run = stack.enter_context(job_run(terminal, "lag", spark_options)) if needs_spark else None
        found = lag_job(
            run.spark if run else None, bootstrap=terminal.bootstrap, checkpoints=checkpoints, tables=tables
        )
    if report is not None:
        report.write_text(lag_page(found))
    return LagView(found, None if report is None else str(report))
