"""What the commands of `ister pipeline` share: options, session, progress, and how a signal ends them.

@click.command()
@pipeline_options
@client_options
@pass_terminal
def mirror(terminal: Terminal, spark_options: SparkOptions, ...) -> Result:
    with job_run(terminal, "mirror", spark_options) as run:
        return MirrorView(ister.spark.mirror(run.spark, ..., watch=run.watch, stop=run.stop))
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from ister.cli.common import parse_pairs
from ister.cli.terminal import Terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ister.cli.render import Result
    from ister.spark.jobs.running import Stop
    from ister.spark.jobs.watching import Watch

F = TypeVar("F", bound=Callable[..., Any])


class SparkOptions(NamedTuple):
    """Where a job runs."""

    master: str
    conf: dict[str, str]


def pipeline_options(command: F) -> F:
    """`--master` and `--conf`, which arrive as one argument `spark_options`."""

    @wraps(command)
    def with_options(*args: Any, master: str, conf: tuple[str, ...], **kwargs: Any) -> Any:
        return command(*args, spark_options=SparkOptions(master, parse_pairs(conf, "--conf")), **kwargs)

    for option in (
        click.option(
            "--conf",
            metavar="NAME=VALUE",
            multiple=True,
            help="A setting of Spark; may be given several times.",
        ),
        click.option(
            "--master",
            default="local[*]",
            show_default=True,
            metavar="URL",
            help="Where to run: local[*], spark://HOST:PORT, or sc://HOST:PORT for Spark Connect.",
        ),
    ):
        with_options = option(with_options)
    return with_options  # type: ignore[return-value]


def size(text: str) -> int:
    """The type of an option: `64KiB`, `128MiB`, as bytes."""
    from ister.settings import NotAllowed, parse_size

    try:
        found = parse_size(text)
    except NotAllowed as reason:
        raise click.BadParameter(f"{text!r} {reason}") from reason
    if found <= 0:
        raise click.BadParameter(f"{text!r} is not above 0")
    return found


class JobRun(NamedTuple):
    """What a job gets from the command line."""

    spark: SparkSession
    watch: Watch
    stop: Stop


def again_and_again(
    terminal: Terminal, run: JobRun, work: Callable[[], Result | None], pause_s: float
) -> None:
    """Until it is stopped; `work` returns what there is to say, if anything. What may pass, such as a broker
    that is away, is told and tried again."""
    from ister.cli.render import render
    from ister.errors import IsterError

    while not run.stop.is_asked:
        try:
            result = work()
        except IsterError as error:
            if not error.retriable:
                raise
            run.watch.tells(f"{error.message}; trying again in {pause_s:g} s")
        else:
            if result is not None:
                run.watch.ends()
                render(result, terminal)
        run.stop.wait(pause_s)


@contextmanager
def job_run(terminal: Terminal, name: str, options: SparkOptions) -> Iterator[JobRun]:
    """A session and a progress display for one job. SIGTERM and Ctrl-C ask it to end cleanly: see `Stop`. A
    second Ctrl-C ends it at once."""
    from ister.cli.progress import show_progress
    from ister.spark.jobs.running import Stop
    from ister.spark.jobs.session import job_session

    stop = Stop()
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: stop.ask())
    try:
        with show_progress(terminal) as watch:
            watch.begins("starting Spark", 0, 0)
            with job_session(f"ister pipeline {name}", options.master, options.conf) as spark:
                watch.ends()
                with _stop_at_interrupt(watch, stop):
                    yield JobRun(spark, watch, stop)
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _stop_at_interrupt(watch: Watch, stop: Stop) -> Iterator[None]:
    def interrupted(_number: int, _frame: object) -> None:
        if stop.is_asked:
            raise KeyboardInterrupt
        stop.ask()
        watch.tells("stopping once the tasks that run have ended; Ctrl-C again stops at once")

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
