"""Where a command's Spark runs: the options `--master`, `--remote` and `--conf`, and a session there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from ister.cli.common import parse_pairs
from ister.cli.terminal import Terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

F = TypeVar("F", bound=Callable[..., Any])


class SparkPlace(NamedTuple):
    """What a person said of where Spark is to run."""

    master: str | None
    remote: str | None
    conf: dict[str, str]

    def __str__(self) -> str:
        return self.remote or self.master or "local[*]"

    @contextmanager
    def session(self, terminal: Terminal, app_name: str) -> Iterator[SparkSession]:
        """The session there, which ends with the command."""
        import logging

        from ister.spark import session

        # It writes a page of JSON beside each error that Spark raises, with nothing in it that is not there.
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
        if terminal.errors_to_terminal:
            terminal.tell(terminal.paint_errors("dim", f"starting Spark at {self} ..."))
        found = session(app_name, master=self.master, remote=self.remote, **self.conf)
        try:
            yield found
        finally:
            found.stop()


def spark_options(command: F) -> F:
    """For every command that runs Spark; it gets them as one argument, `place`."""

    @click.option(
        "--master", metavar="URL", help="The Spark master, as spark://host:7077.  [default: local[*]]"
    )
    @click.option("--remote", metavar="URL", help="A Spark Connect server instead, as sc://host:15002.")
    @click.option(
        "--conf", metavar="NAME=VALUE", multiple=True, help="A setting of Spark; may be given several times."
    )
    @wraps(command)
    def with_place(
        *args: Any, master: str | None, remote: str | None, conf: tuple[str, ...], **others: Any
    ) -> Any:
        place = SparkPlace(master, remote, parse_pairs(conf, "--conf"))
        return command(*args, place=place, **others)

    return with_place  # type: ignore[return-value]
