"""`ister pipeline`: jobs over whole topics, on Spark. Each of them is a file of its own beside this one.

What they share is in `pipeline_common`: the options, the session, the progress, how they end.
"""

from __future__ import annotations

from typing import Final

import click

from ister.cli.common import client_options
from ister.cli.lazy import LazyCommand, LazyGroup

JOBS: Final = {
    "tier": LazyCommand("ister.cli.pipeline_tier:tier", "Copy a topic to a Parquet, Delta or Iceberg table."),
    "audit": LazyCommand("ister.cli.pipeline_audit:audit", "Check each frame of a topic, and tables."),
    "compact": LazyCommand(
        "ister.cli.pipeline_compact:compact", "Make few large objects of a history, or keep latest records."
    ),
    "replay": LazyCommand("ister.cli.pipeline_replay:replay", "Copy a range to a topic or table, provably."),
    "mirror": LazyCommand("ister.cli.pipeline_mirror:mirror", "Keep a topic the same as another one."),
    "init": LazyCommand("ister.cli.pipeline_project:init", "Write a project of Spark's pipelines."),
    "run": LazyCommand("ister.cli.pipeline_project:run", "Run such a project, to where its topics end."),
    "lag": LazyCommand("ister.cli.pipeline_lag:lag", "How far queries and tables are behind."),
}


@click.group(cls=LazyGroup, lazy=JOBS)
@client_options
def pipeline() -> None:
    """Jobs over whole topics, on Spark: this machine's cores, or a cluster's with --master.

    Each shows how far it is on a terminal, says it in plain lines where the standard error is a pipe, and
    ends with a summary; --output json makes that one object.

    \b
    Examples:
      ister pipeline tier orders --to delta --path /lake/orders
      ister pipeline tier orders --to iceberg --path /lake --every 1m
      ister pipeline audit orders --replicas --against /lake/orders
      ister pipeline compact orders
      ister pipeline replay orders --from 2030-01-31T12:00 --to orders-again --receipt orders.receipt
      ister pipeline mirror orders --to orders --to-bootstrap 10.1.0.1:9091 --every 5s
      ister pipeline lag --table /lake/orders
    """
