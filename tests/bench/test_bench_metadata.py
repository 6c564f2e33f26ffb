"""The bench of the metadata, small: three real processes, killed and started again. No figure is judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_bench(directory: Path, *args: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.metadata.run", *args],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0
    assert list(directory.iterdir()) == [], "nothing is left behind"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_commits_are_measured_at_the_leader_and_at_a_follower(tmp_path: Path) -> None:
    found = run_bench(tmp_path, "--only", "commits", "--lone", "10", "--pipelined", "30", "--repeats", "1")
    for place in ("leader", "follower"):
        assert found[f"lone_at_{place}"]["count"] == 10
        assert found[f"lone_at_{place}"]["p50_ms"] > 0
        assert found[f"pipelined_at_{place}"]["proposals_per_s"] > 0
    assert found["raw"]["count"] == 10


@pytest.mark.slow
def test_a_killed_leader_is_replaced_and_comes_back(tmp_path: Path) -> None:
    found = run_bench(tmp_path, "--only", "failover", "--kills", "2")
    assert found["failover"]["runs"] == 2
    assert found["failover"]["max_s"] >= found["failover"]["p50_s"] > 0


@pytest.mark.slow
def test_a_large_state_is_snapshotted_restarted_and_described(tmp_path: Path) -> None:
    found = run_bench(tmp_path, "--only", "scale", "--topics", "20", "--segments", "100")["scale"]
    assert (found["topics"], found["segments"]) == (20, 100)
    assert found["snapshots"] >= 3, "each node took one"
    for name in ("snapshot_bytes", "write_s", "restart_s", "status_s", "snapshot_s", "rss_mb"):
        assert found[name] > 0
