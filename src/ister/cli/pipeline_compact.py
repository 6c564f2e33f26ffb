"""`ister pipeline compact`: few large objects instead of many small ones, or each key's latest record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ister.cli.common import QUICK, ask_broker, client_options, pass_terminal
from ister.cli.pipeline_common import SparkOptions, job_run, pipeline_options, size
from ister.cli.terminal import Terminal
from ister.errors import CorruptSegment

if TYPE_CHECKING:
    from ister.cli.render_compact import CompactView, LatestView


@click.command()
@click.argument("topic")
@click.option(
    "--object-size",
    "object_bytes",
    type=size,
    default="512MiB",
    show_default=True,
    help="What a merged object has at most; one that has half of it is left as it is.",
)
@click.option("--latest-by-key", is_flag=True, help="Keep each key's latest record, in another topic.")
@click.option("--to", metavar="TOPIC", help="That topic, for --latest-by-key.")
@click.option(
    "--skip-missing",
    is_flag=True,
    help="For --latest-by-key: go on behind offsets that are not there (trimmed, given up, damaged).",
)
@pipeline_options
@client_options
@pass_terminal
def compact(
    terminal: Terminal,
    /,
    spark_options: SparkOptions,
    topic: str,
    object_bytes: int,
    latest_by_key: bool,
    to: str | None,
    skip_missing: bool,
) -> CompactView | LatestView:
    """Make few large objects of the many small ones in TOPIC's history. Records, offsets and times stay, and
    readers notice nothing; what was replaced can be read for another hour. It needs the store's credentials
    where it runs.

    With --latest-by-key, keep each key's latest record in the topic --to instead, from where the last run
    ended. A record without a value deletes its key. Offsets there are its own.

    \b
    Examples:
      ister pipeline compact orders
      ister pipeline compact orders --object-size 1GiB
      ister pipeline compact customers --latest-by-key --to customers-now
    """
    if latest_by_key != (to is not None):
        raise click.UsageError("--latest-by-key and --to TOPIC go together")
    if skip_missing and not latest_by_key:
        raise click.UsageError("--skip-missing is for --latest-by-key")
    from ister.cli.render_compact import CompactView, LatestView

    ask_broker(terminal, lambda log: log.describe_topic(topic), **QUICK)
    with job_run(terminal, "compact", spark_options) as run:
        from ister.spark.jobs.compact import Compacted
        from ister.spark.jobs.compact import compact as compact_job
        from ister.spark.jobs.latest import Latest
        from ister.spark.jobs.latest import latest_by_key as latest_job

        told: dict[str, Any] = {"bootstrap": terminal.bootstrap, "watch": run.watch, "stop": run.stop}
        done: Compacted | Latest
        if to is not None:
            done = latest_job(run.spark, topic, to=to, skip_missing=skip_missing, **told)
        else:
            done = compact_job(run.spark, topic, object_bytes=object_bytes, **told)
    if not done.is_complete:
        raise KeyboardInterrupt("stopped before the end; the same command goes on")
    if isinstance(done, Latest):
        return LatestView(done)
    damaged = [one for one in done.left if one.damaged]
    if damaged:
        raise CorruptSegment(
            f"{len(done.merged)} merged objects were made of {done.topic}, and {len(damaged)} were not: "
            f"{damaged[0].why}",
            hint=f"`ister history verify {done.topic}` looks at each object; the ones told stay as they are.",
            offsets=(damaged[0].start_offset, damaged[0].end_offset),
        )
    return CompactView(done)
