"""A machine without Java: Spark on the runtime from PyPI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

SESSION = """
from ister.spark import local_session
spark = local_session(**{"spark.master": "local[1]"})
print(spark.range(10).count(), spark.conf.get("spark.sql.shuffle.partitions"))
spark.stop()
"""


def path_without_java(directory: Path) -> str:
    """All commands of this machine but Java's, as links in one directory."""
    directory.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for command in Path(place).glob("*"):
            link = directory / command.name
            if not command.name.startswith("java") and not link.is_symlink():
                link.symlink_to(command)
    return str(directory)


def test_a_session_starts_where_there_is_no_other_java(tmp_path: Path) -> None:
    kept = {name: os.environ[name] for name in ("HOME", "PYTHONPATH") if name in os.environ}
    environ = {**kept, "PATH": path_without_java(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    told = subprocess.run(
        [sys.executable, "-c", SESSION], env=environ, capture_output=True, text=True, cwd=tmp_path
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.split() == ["10", "4"]
    assert list((tmp_path / "cache" / "ister").glob("java-*/bin/java"))
