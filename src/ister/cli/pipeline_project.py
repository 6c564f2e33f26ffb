"""`ister pipeline init` and `run`: a project of Spark Declarative Pipelines over a topic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ister.cli.common import client_options, pass_terminal
from ister.cli.pipeline_common import SparkOptions, pipeline_options
from ister.cli.terminal import Terminal

if TYPE_CHECKING:
    from ister.cli.render import Done


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--topic", required=True, metavar="TOPIC", help="The topic that the project reads.")
@click.option(
    "--to", metavar="TOPIC", help="The topic that it writes.  [default: TOPIC with -changed behind it]"
)
@client_options
@pass_terminal
def init(terminal: Terminal, /, directory: Path, topic: str, to: str | None) -> Done:
    """Write a project of Spark Declarative Pipelines into DIRECTORY: TOPIC becomes a table, and what is made
    of the table goes into another topic, each record once. It runs as it is; edit what it makes.

    \b
    Examples:
      ister pipeline init shop --topic orders
      ister pipeline init shop --topic orders --to orders-changed --bootstrap 10.0.0.1:9091
    """
    from ister.cli.render import Done
    from ister.spark.projects import make_project

    made = make_project(directory, topic, to or f"{topic}-changed", terminal.bootstrap)
    files = [str(path) for path in made]
    return Done(
        {"directory": str(directory), "files": files},
        "\n".join([*files, f"Run it: ister pipeline run {directory}"]),
    )


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".")
@click.option("--dry-run", is_flag=True, help="Check the project, and run nothing.")
@click.option("--full-refresh", is_flag=True, help="Make all tables anew; topics get all of it once more.")
@pipeline_options
@client_options
@pass_terminal
def run(
    terminal: Terminal,
    /,
    spark_options: SparkOptions,
    directory: Path,
    dry_run: bool,
    full_refresh: bool,
) -> Done:
    """Run the project in DIRECTORY once, to where its topics end now. The next run goes on from there.

    Spark says how far it is. Tables are in the project's `warehouse`, or with --master sc://HOST:PORT in the
    catalog of that Connect server.

    \b
    Examples:
      ister pipeline run shop
      ister pipeline run shop --dry-run
      ister pipeline run shop --master sc://10.0.0.1:15002
    """
    from ister.cli.render import Done
    from ister.spark.projects import run_project

    master, conf = spark_options
    run_project(directory, master=master, conf=conf, dry=dry_run, full_refresh=full_refresh)
    return Done(
        {"directory": str(directory), "dry_run": dry_run},
        f"{directory} is all right" if dry_run else f"{directory} is up to date",
    )
