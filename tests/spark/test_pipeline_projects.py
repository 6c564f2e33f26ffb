"""`ister pipeline init` and `run`: the guide's project runs as it is written, and again, each record once."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ister import sync
from ister.cli.main import run
from ister.errors import ConfigError
from ister.spark.projects import make_project

if TYPE_CHECKING:
    from spark_cluster import ConnectServer

pytestmark = pytest.mark.spark

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "pipeline.md").read_text()


def of_the_guide(verb: str) -> list[str]:
    (command,) = re.findall(rf"^ister pipeline {verb} .*$", GUIDE, re.MULTILINE)
    return shlex.split(command)[1:]


def values(log: sync.Log, topic: str) -> list[bytes | None]:
    return [record.value for record in log.read(topic)]


@pytest.mark.slow
def test_the_guides_project_runs_and_a_second_run_goes_on_where_the_first_one_ended(
    bootstrap: str, log: sync.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ISTER_BOOTSTRAP", bootstrap)
    log.append("orders", [b"one", b"two"], keys=[b"a", b"b"])
    assert run([*of_the_guide("init"), "--bootstrap", bootstrap], {}) == 0
    command = [*of_the_guide("run"), "--master", "local[2]"]
    assert run(command, {}) == 0
    assert values(log, "orders-changed") == [b"ONE", b"TWO"]
    log.append("orders", [b"three"])
    assert run(command, {}) == 0
    assert values(log, "orders-changed") == [b"ONE", b"TWO", b"THREE"]


@pytest.mark.slow
def test_a_project_runs_on_a_connect_server(
    bootstrap: str, log: sync.Log, tmp_path: Path, connect_server: ConnectServer
) -> None:
    log.append("remote-orders", [b"one", b"two"])
    make_project(tmp_path / "shop", "remote-orders", "remote-changed", bootstrap)
    assert run(["pipeline", "run", str(tmp_path / "shop"), "--master", connect_server.remote], {}) == 0
    assert values(log, "remote-changed") == [b"ONE", b"TWO"]


def test_a_directory_that_is_taken_and_a_topic_that_is_its_own_target_are_refused(tmp_path: Path) -> None:
    made = make_project(tmp_path / "new", "shop/2024-orders", "shop/out", "127.0.0.1:9091")
    assert [path.name for path in made] == ["spark-pipeline.yml", "shop_2024_orders.py"]
    compile(made[1].read_text(), "project", "exec")
    with pytest.raises(ConfigError, match="is not empty"):
        make_project(tmp_path / "new", "orders", "out", "127.0.0.1:9091")
    with pytest.raises(ConfigError, match="its own target"):
        make_project(tmp_path / "other", "orders", "default/orders", "127.0.0.1:9091")
