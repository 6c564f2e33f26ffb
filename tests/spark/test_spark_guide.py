"""The guide's samples run as they stand, but for where the brokers and the checkpoints are."""

from __future__ import annotations

import inspect
import re
import shlex
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ister.spark
from ister import sync
from ister.cli.main import COMMANDS, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "spark.md").read_text()
ORDERS = [b"one", b"two", b"three"]
_numbers = count()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


class Page:
    """Runs the blocks one after the other, each with what those before it have made."""

    def __init__(self, spark: SparkSession, bootstrap: str, directory: Path) -> None:
        number = next(_numbers)
        self.topics = {name: f"guide-{name}-{number}" for name in ("orders", "shouted", "daily", "copied")}
        self._bootstrap = bootstrap
        self._directory = directory
        self._names: dict[str, Any] = {"spark": spark}

    def run(self, block: str) -> None:
        block = block.replace("localhost:9091", self._bootstrap)
        block = block.replace(
            '.format("ister")', f'.format("ister").option("bootstrap.servers", "{self._bootstrap}")'
        )
        for name, topic in self.topics.items():
            block = block.replace(f'"{name}"', f'"{topic}"')
        block = re.sub(r'"(/data/)?checkpoints/(\w+)"', rf'"{self._directory}/\2"', block)
        exec(compile(block, "spark.md", "exec"), self._names)
        query = self._names.pop("query", None)
        if query is not None:
            query.processAllAvailable()
            query.stop()


def test_the_programs_run_and_do_what_they_say(
    spark: SparkSession,
    bootstrap: str,
    log: sync.Log,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    asked: list[dict[str, Any]] = []
    signature = inspect.signature(ister.spark.session)

    def session(*arguments: Any, **options: Any) -> SparkSession:
        """There is no cluster at those addresses: what is asked for must make sense, no more."""
        asked.append(signature.bind(*arguments, **options).arguments)
        return spark

    monkeypatch.setattr(ister.spark, "session", session)
    monkeypatch.setattr(ister.spark, "local_session", lambda: spark)
    page = Page(spark, bootstrap, tmp_path)
    topics = page.topics
    log.append(topics["orders"], ORDERS, keys=[b"k"] * 3)
    written = blocks("python")
    assert len(written) >= 8
    for block in written:
        page.run(block)
    assert {"master", "remote"} <= {name for each in asked for name in each}
    assert "three" in capfd.readouterr().out
    for name, values in {
        "shouted": [b"ONE", b"TWO", b"THREE"],
        "daily": ORDERS,
        "copied": ORDERS,
    }.items():
        found = [(record.key, record.value) for record in log.read(topics[name])]
        assert found == [(b"k", value) for value in values], name


def test_every_command_in_it_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option is known, and each value taken: the help of a command is shown only if all before it
    parse."""
    said = [line for block in blocks("text") + blocks("sh") for line in block.splitlines()]
    said += re.findall(r"`(ister [a-z][^`]*)`", GUIDE)
    commands = [line.removeprefix("$ ") for line in said if re.match(r"(\$ )?ister [a-z]", line)]
    assert len(commands) >= 5
    for command in commands:
        words = shlex.split(command)[1:]
        assert words[0] in COMMANDS
        assert run([*words, "--help"], {}) == 0, capsys.readouterr().err
