"""`ister pipeline mirror`: a topic into another one, here or elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ister.cli.common import QUICK, ask_broker, client_options, duration, pass_terminal
from ister.cli.pipeline_common import (
    JobRun,
    SparkOptions,
    again_and_again,
    job_run,
    pipeline_options,
    size,
)
from ister.cli.terminal import Terminal

if TYPE_CHECKING:
    from ister.cli.render_copies import MapView, MirrorView


@click.command()
@click.argument("topic")
@click.option("--to", metavar="TOPIC", required=True, help="The topic that gets the records.")
@click.option("--to-bootstrap", metavar="HOST:PORT", help="A broker of the cluster that it is in.")
@click.option("--once", is_flag=True, help="Once, up to where the topic ends now: the default.")
@click.option("--every", metavar="DURATION", type=duration, help="Again and again, until SIGTERM or Ctrl-C.")
@click.option(
    "--batch-size",
    metavar="SIZE",
    type=size,
    default="1GiB",
    show_default=True,
    help="About how much becomes visible at once.",
)
@click.option("--map", "show_map", is_flag=True, help="Copy nothing: show which offset became which.")
@pipeline_options
@client_options
@pass_terminal
def mirror(
    terminal: Terminal,
    /,
    spark_options: SparkOptions,
    topic: str,
    to: str,
    to_bootstrap: str | None,
    once: bool,
    every: int | None,
    batch_size: int,
    show_map: bool,
) -> MirrorView | MapView | None:
    """Copy TOPIC to another topic, of this cluster or another, from where the copy ended before.

    Each record once and in its order, with its key, value, headers and time, however often this is killed and
    started again. The other topic is made if it is not there. Offsets there may be others: the map of them is
    kept beside it, and --map shows it.

    \b
    Examples:
      ister pipeline mirror orders --to orders-copy
      ister pipeline mirror orders --to orders --to-bootstrap 10.1.0.1:9091 --every 5s
      ister pipeline mirror orders --to orders --to-bootstrap 10.1.0.1:9091 --map --output json
    """
    if once and every is not None:
        raise click.UsageError("--once and --every exclude each other")
    ask_broker(terminal, lambda log: log.describe_topic(topic), **QUICK)
    where: dict[str, Any] = {"to": to, "bootstrap": terminal.bootstrap, "to_bootstrap": to_bootstrap}
    if show_map:
        from ister.cli.render_copies import MapView
        from ister.spark.jobs.mirror import offset_map

        return MapView(topic, to, offset_map(topic, **where))
    with job_run(terminal, "mirror", spark_options) as run:
        keywords = {**where, "batch_bytes": batch_size}
        if every is not None:
            again_and_again(terminal, run, lambda: _news(run, topic, keywords), every / 1000)
            return None
        view = _round(run, topic, keywords)
    if not view.done.is_complete:
        from ister.cli.render import render

        render(view, terminal)
        raise KeyboardInterrupt("stopped before the end; the next run goes on from there")
    return view


def _news(run: JobRun, topic: str, keywords: dict[str, Any]) -> MirrorView | None:
    view = _round(run, topic, keywords)
    return view if view.done.batches else None


def _round(run: JobRun, topic: str, keywords: dict[str, Any]) -> MirrorView:
    from ister.cli.render_copies import MirrorView
    from ister.spark.jobs.mirror import mirror as mirror_job

    return MirrorView(mirror_job(run.spark, topic, **keywords, watch=run.watch, stop=run.stop))
