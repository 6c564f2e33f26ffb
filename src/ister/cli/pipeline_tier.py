"""`ister pipeline tier`: a topic as a table outside the log, once or again and again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from ister.cli.common import QUICK, ask_broker, client_options, duration, parse_pairs, pass_terminal
from ister.cli.pipeline_common import JobRun, SparkOptions, again_and_again, job_run, pipeline_options, size
from ister.cli.terminal import Terminal

if TYPE_CHECKING:
    from ister.cli.render_pipeline import TierView

_LEAST_AGE_MS: Final = 3_600_000
"""A run that is under way has files that no commit names yet."""


@click.command()
@click.argument("topic")
@click.option(
    "--to", type=click.Choice(["parquet", "delta", "iceberg"]), required=True, help="The table's format."
)
@click.option("--path", metavar="DIR|URI", help="Where the table is, or is to be.")
@click.option("--once", is_flag=True, help="Once, up to where the topic ends now: the default.")
@click.option("--every", metavar="DURATION", type=duration, help="Again and again, until SIGTERM or Ctrl-C.")
@click.option(
    "--partition-by",
    type=click.Choice(["date", "hour", "none"]),
    default="date",
    show_default=True,
    help="Of the records' timestamps, in UTC.",
)
@click.option(
    "--decode", type=click.Choice(["json", "avro"]), help="Values as typed columns; needs --schema."
)
@click.option(
    "--schema",
    "schema_file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="For json `region string, amount bigint`, for avro the schema of a record.",
)
@click.option("--nested", is_flag=True, help="All decoded columns within one, `value`.")
@click.option(
    "--file-size",
    metavar="SIZE",
    type=size,
    default="128MiB",
    show_default=True,
    help="About how large a file may get.",
)
@click.option(
    "--skip-missing",
    is_flag=True,
    help="Go on behind offsets that are not there (trimmed, given up, damaged); the table notes them.",
)
@click.option("--catalog", metavar="NAME", help="An Iceberg catalog; else sqlite under --path.")
@click.option(
    "--catalog-property", "catalog_properties", metavar="NAME=VALUE", multiple=True, help="A property of it."
)
@click.option("--table", metavar="NAME", help="The table's name in the catalog; else that of the topic.")
@click.option("--optimize", is_flag=True, help="Then make few large files of many small ones.")
@click.option(
    "--expire", is_flag=True, help="Then forget old versions of the table, which nobody can read any more."
)
@click.option("--vacuum", is_flag=True, help="Then remove files that no commit names.")
@click.option(
    "--older-than",
    metavar="DURATION",
    type=duration,
    default="24h",
    show_default=True,
    help="How old such files and versions must be: longer than any job takes, or anybody reads; 1h at least.",
)
@pipeline_options
@client_options
@pass_terminal
def tier(
    terminal: Terminal,
    /,
    spark_options: SparkOptions,
    once: bool,
    every: int | None,
    schema_file: Path | None,
    catalog_properties: tuple[str, ...],
    expire: bool,
    vacuum: bool,
    older_than: int,
    file_size: int,
    **options: Any,
) -> TierView | None:
    """Copy the topic TOPIC to a table, from where the table ended before.

    How far the table has come is in its own commits: a run that is killed and started again neither loses nor
    repeats a record, and two runs at once don't either. Exit code 0: the table has all that the topic had
    when the run began. With --every, SIGTERM and Ctrl-C commit what is whole, and end it with 0.

    \b
    Examples:
      ister pipeline tier orders --to delta --path /lake/orders
      ister pipeline tier orders --to parquet --path /lake/orders --partition-by hour --every 1m
      ister pipeline tier orders --to iceberg --path /lake --decode json --schema orders.ddl
      ister pipeline tier orders --to delta --path s3://lake/orders --master spark://head:7077
    """
    if once and every is not None:
        raise click.UsageError("--once and --every exclude each other")
    if (schema_file is None) != (options["decode"] is None):
        raise click.UsageError("--decode and --schema go together")
    given = click.get_current_context().get_parameter_source("older_than")
    if given is not ParameterSource.DEFAULT and not (expire or vacuum):
        raise click.UsageError("--older-than is for --expire and --vacuum, and neither is given")
    if older_than < _LEAST_AGE_MS:
        raise click.UsageError(
            "--older-than is 1h at least: a run that is under way has files that no commit names yet"
        )
    keywords = {
        **options,
        "bootstrap": terminal.bootstrap,
        "schema": None if schema_file is None else schema_file.read_text(),
        "file_bytes": file_size,
        "catalog_properties": parse_pairs(catalog_properties, "--catalog-property"),
        "expire_older_than_s": older_than / 1000 if expire else None,
        "vacuum_older_than_s": older_than / 1000 if vacuum else None,
    }
    topic = keywords.pop("topic")
    _check(terminal, topic, keywords)
    with job_run(terminal, "tier", spark_options) as run:
        if every is not None:
            again_and_again(terminal, run, lambda: _news(run, topic, keywords), every / 1000)
            return None
        view = _round(run, topic, keywords)
    if not view.done.is_complete:
        from ister.cli.render import render

        render(view, terminal)
        raise KeyboardInterrupt("stopped before the end; the next run goes on from there")
    return view


def _check(terminal: Terminal, topic: str, keywords: dict[str, Any]) -> None:
    """What is plainly wrong is said at once, and not after Spark has started."""
    from ister.spark.jobs.lake.opening import Target

    Target(
        keywords["to"],
        keywords["path"],
        keywords["catalog"],
        keywords["catalog_properties"],
        keywords["table"],
    ).check()
    ask_broker(terminal, lambda log: log.describe_topic(topic), **QUICK)


def _news(run: JobRun, topic: str, keywords: dict[str, Any]) -> TierView | None:
    view = _round(run, topic, keywords)
    done = view.done
    return view if done.commits or done.vacuumed or done.expired or any(done.optimized) else None


def _round(run: JobRun, topic: str, keywords: dict[str, Any]) -> TierView:
    from ister.cli.render_pipeline import TierView
    from ister.spark.jobs.tier import tier as tier_job

    return TierView(tier_job(run.spark, topic, **keywords, watch=run.watch, stop=run.stop))
