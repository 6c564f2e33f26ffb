"""`ister pipeline replay`: a range of a topic once more, with a receipt."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ister.cli.common import QUICK, ask_broker, client_options, parse_pairs, pass_terminal
from ister.cli.pipeline_common import SparkOptions, job_run, pipeline_options
from ister.cli.terminal import Terminal

if TYPE_CHECKING:
    from ister.cli.render_copies import ReplayView


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    metavar="PLACE",
    help="start, an offset, a time (2030-01-31T12:00) or a while ago ('10m ago').  [default: start]",
)
@click.option("--until", metavar="PLACE", help="The same; what is there is not replayed.  [default: end]")
@click.option("--to", metavar="TOPIC", help="The topic that gets the records.")
@click.option("--to-bootstrap", metavar="HOST:PORT", help="A broker of the cluster that it is in.")
@click.option("--to-table", type=click.Choice(["parquet", "delta", "iceberg"]), help="A table instead.")
@click.option("--path", metavar="DIR|URI", help="Where the table is to be.")
@click.option("--catalog", metavar="NAME", help="An Iceberg catalog; else sqlite under --path.")
@click.option(
    "--catalog-property", "catalog_properties", metavar="NAME=VALUE", multiple=True, help="A property of it."
)
@click.option("--table", metavar="NAME", help="The table's name in the catalog; else that of the topic.")
@click.option(
    "--receipt",
    "receipt_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a receipt there; if there is one, replay what it says, or refuse.",
)
@click.option("--again", is_flag=True, help="Even if this very replay is in the topic already.")
@pipeline_options
@client_options
@pass_terminal
def replay(
    terminal: Terminal,
    /,
    spark_options: SparkOptions,
    topic: str,
    start: str | None,
    until: str | None,
    to: str | None,
    to_bootstrap: str | None,
    to_table: str | None,
    path: str | None,
    catalog: str | None,
    catalog_properties: tuple[str, ...],
    table: str | None,
    receipt_file: Path | None,
    again: bool,
) -> ReplayView:
    """Copy a range of TOPIC to another topic, all of it or nothing, or to a table of its own.

    The receipt has the topic's uid, the offsets, and checksums of what the records say. With the same
    receipt, another replay is the same to the last bit, or is refused. A replay that was killed is finished
    by the same command; one that is done is not done twice.

    \b
    Examples:
      ister pipeline replay orders --from 1000 --until 2000 --to orders-again
      ister pipeline replay orders --from '2h ago' --to orders-again --receipt orders.receipt
      ister pipeline replay orders --receipt orders.receipt --to-table delta --path /lake/evidence
    """
    if (to is None) == (to_table is None):
        raise click.UsageError("give --to TOPIC, or --to-table with --path")
    from ister.cli.records import parse_place
    from ister.cli.render_copies import ReplayView
    from ister.spark.jobs.copying.receipts import read_receipt, write_receipt

    known = read_receipt(receipt_file) if receipt_file is not None and receipt_file.exists() else None
    if known is not None and (start, until) != (None, None):
        raise click.UsageError(f"{receipt_file} says which range; leave out --from and --until")
    ask_broker(terminal, lambda log: log.describe_topic(topic), **QUICK)
    now = datetime.now(UTC)
    with job_run(terminal, "replay", spark_options) as run:
        from ister.spark.jobs.replay import replay as replay_job

        done = replay_job(
            run.spark,
            topic,
            to=to,
            to_table=to_table,
            path=path,
            start=parse_place(start or "start", now),
            until=parse_place(until or "end", now),
            receipt=known,
            again=again,
            bootstrap=terminal.bootstrap,
            to_bootstrap=to_bootstrap,
            table_options={
                "catalog": catalog,
                "catalog_properties": parse_pairs(catalog_properties, "--catalog-property"),
                "table": table,
            },
            watch=run.watch,
            stop=run.stop,
        )
    if done.receipt is None:
        raise KeyboardInterrupt("stopped before the end; the same command goes on")
    if receipt_file is not None and known is None:
        write_receipt(receipt_file, done.receipt)
    return ReplayView(
        done, None if receipt_file is None else str(receipt_file), is_compared=known is not None
    )
