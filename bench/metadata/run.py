"""Measure the metadata of a cluster of three: `python -m bench.metadata.run --help`.

Everything runs on this machine, nodes and proposers together. Files are made under the current directory and
removed at the end: run it on the disk that you mean to use.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from bench.machine import machine_facts
from bench.metadata.cluster import open_cluster
from bench.metadata.commits import measure_lone, measure_pipelined
from bench.metadata.failover import measure_failover
from bench.metadata.scale import measure_scale
from ister.bench.target import scratch_directory

KEPT: Final = Path(__file__).resolve().parents[2] / "docs" / "bench" / "metadata.json"

Results = dict[str, Any]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def commits(directory: Path, asked: argparse.Namespace) -> Results:
    with open_cluster(directory) as cluster:
        cluster.found()
        lone = measure_lone(cluster, directory, asked.lone)
        return {**lone, **measure_pipelined(cluster, asked.pipelined, asked.repeats)}


def failover(directory: Path, asked: argparse.Namespace) -> Results:
    with open_cluster(directory) as cluster:
        cluster.found()
        return {"failover": measure_failover(cluster, asked.kills)}


def scale(directory: Path, asked: argparse.Namespace) -> Results:
    with open_cluster(directory) as cluster:
        return {"scale": measure_scale(cluster, asked.topics, asked.segments)}


PARTS: Final[dict[str, Callable[[Path, argparse.Namespace], Results]]] = {
    "commits": commits,
    "failover": failover,
    "scale": scale,
}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.metadata.run", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--lone", type=int, default=2000, help="lone proposals at each place")
    parser.add_argument("--pipelined", type=int, default=10_000, help="proposals of one repetition")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--segments", type=int, default=100_000)
    parser.add_argument("--keep", action="store_true", help="write docs/bench/metadata.json too")
    asked = parser.parse_args(arguments)
    if asked.keep and asked.only != list(PARTS):
        parser.error("--keep is for all parts: leave --only out")
    return asked


def main(arguments: Sequence[str]) -> int:
    asked = parse(arguments)
    results: Results = {
        "measured_at": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine_facts(Path.cwd()),
    }
    for part in asked.only:
        say(f"metadata: {part}")
        with scratch_directory() as directory:
            results |= PARTS[part](directory, asked)
    text = json.dumps(results, indent=2)
    print(text)
    if asked.keep:
        KEPT.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
