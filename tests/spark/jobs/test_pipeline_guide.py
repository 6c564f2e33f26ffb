"""The guide's samples run as they stand, but for where the brokers and the tables are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from job_helpers import new_topic, numbered, offsets_of, read_delta

from ister import sync
from ister.cli.main import COMMANDS, run
from ister.cli.pipeline import JOBS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "pipeline.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


def test_the_program_runs(spark: SparkSession, bootstrap: str, log: sync.Log, tmp_path: Path) -> None:
    topic = new_topic("orders")
    log.append(topic, numbered(0, 100))
    (program,) = blocks("python")
    program = program.replace('"orders"', f'"{topic}"')
    program = program.replace('"/lake/orders"', f'"{tmp_path}", bootstrap="{bootstrap}"')
    exec(compile(program, "pipeline.md", "exec"), {})
    assert offsets_of(read_delta(tmp_path)) == list(range(100))


def test_every_command_in_it_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option is known, and each value taken: the help of a command is shown only if all before it
    parse."""
    said = [line for block in blocks("sh") + blocks("text") for line in block.splitlines()]
    commands = [line.removeprefix("$ ") for line in said if line.removeprefix("$ ").startswith("ister ")]
    assert len(commands) >= 5
    for command in commands:
        words = shlex.split(command)[1:]
        assert words[0] in COMMANDS
        assert words[1] in JOBS
        words = [word for word in words if word != "orders.ddl" and word != "--schema"]
        assert run([*words, "--help"], {}) == 0, capsys.readouterr().err
