"""`ister pipeline audit`: whether a topic is whole, everywhere, and whether a table is what its topic is."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ister.cli.common import QUICK, ask_broker, client_options, parse_pairs, pass_terminal
from ister.cli.pipeline_common import SparkOptions, job_run, pipeline_options
from ister.cli.terminal import Terminal

if TYPE_CHECKING:
    from ister.cli.render_audit import AuditView
    from ister.client.log import Log


@click.command()
@click.argument("topics", metavar="TOPIC...", nargs=-1)
@click.option("--all", "every_topic", is_flag=True, help="All topics but Ister's own.")
@click.option("--replicas", is_flag=True, help="Compare the replicas of each segment, byte for byte.")
@click.option("--against", metavar="DIR|URI", help="Compare this table with the topic, row by row.")
@click.option(
    "--to",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    help="The table's format, if it can't be seen.",
)
@click.option("--catalog", metavar="NAME", help="The Iceberg catalog that the table is in.")
@click.option(
    "--catalog-property", "catalog_properties", metavar="NAME=VALUE", multiple=True, help="A property of it."
)
@click.option("--table", metavar="NAME", help="The table's name in the catalog; else that of the topic.")
@click.option(
    "--report",
    metavar="FILE",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write a page with plots, for a browser; it needs no network.",
)
@pipeline_options
@client_options
@pass_terminal
def audit(
    terminal: Terminal,
    spark_options: SparkOptions,
    topics: tuple[str, ...],
    every_topic: bool,
    replicas: bool,
    against: str | None,
    to: str | None,
    catalog: str | None,
    catalog_properties: tuple[str, ...],
    table: str | None,
    report: Path | None,
) -> AuditView:
    """Check each frame of TOPIC: checksums, order without gaps, counts, sealed ends, times.

    Up to where the topics end when it starts, open segments included. Exit code 0: all of it holds. 5: it
    does not; each finding names its offsets.

    \b
    Examples:
      ister pipeline audit orders
      ister pipeline audit --all --replicas --report audit.html
      ister pipeline audit orders --against /lake/orders --output json
    """
    if every_topic == bool(topics):
        raise click.UsageError(
            "name topics, or give --all" if not topics else "give topics or --all, not both"
        )
    from ister.cli.render import render
    from ister.cli.render_audit import AuditView

    for topic in topics:  # what is plainly wrong is said at once, and not after Spark has started
        ask_broker(terminal, partial(_describe, topic), **QUICK)
    if against is not None and to is None and catalog is None:
        from ister.spark.jobs.lake.opening import format_at

        to = format_at(against)
    with job_run(terminal, "audit", spark_options) as run:
        from ister.spark.jobs.audit import audit as audit_job

        found = audit_job(
            run.spark,
            None if every_topic else topics,
            bootstrap=terminal.bootstrap,
            replicas=replicas,
            against=against,
            to=to,
            catalog=catalog,
            catalog_properties=parse_pairs(catalog_properties, "--catalog-property"),
            table=table,
            watch=run.watch,
            stop=run.stop,
        )
    view = AuditView(found, None if report is None else str(report))
    if report is not None:
        from ister.cli.audit_page import audit_page

        report.write_text(audit_page(found))
    if found.is_clean:
        return view
    from ister.cli.main import DATA_PROBLEM, INTERRUPTED

    render(view, terminal)
    raise click.exceptions.Exit(DATA_PROBLEM if found.is_complete else INTERRUPTED)


async def _describe(topic: str, log: Log) -> None:
    await log.describe_topic(topic)
