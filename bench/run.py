"""Measure everything once and keep it: `make bench`, or `python -m bench.run --help`.

Each mode runs as the command that a person would type, on a broker of its own. The results go to
docs/bench/results.json; the README's table and the pictures are made from that file and from nothing else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.asked import Results
from bench.cluster.election import measure_election
from bench.cluster.rollover import measure_rollover
from bench.machine import machine_facts
from bench.peers.kafka import Kafka
from bench.peers.kafka_cluster import KafkaCluster
from bench.peers.nats import Nats
from bench.peers.peer import LARGE_BYTES, Missing, Peer
from bench.peers.redis import Redis
from bench.replication.failover import measure_failover
from bench.replication.measure import measure_replicated
from bench.report import draw, figures, fill_figures
from ister.bench.figures import Fields, rounded, unsteady
from ister.bench.target import scratch_directory
from ister.bench.workload import Workload

ROOT: Final = Path(__file__).resolve().parent.parent
ISTER: Final = (sys.executable, "-c", "from ister.cli.main import main; main()")
PEERS: Final[tuple[Peer, ...]] = (Redis(), Nats(), Kafka())
PEERS_OF_THREE: Final[tuple[Peer, ...]] = (KafkaCluster(),)
"""What has three nodes, too."""
RECORDS: Final = 5_000_000
"""Of 100 B, in each run of batches, Ister's and the peers': some segments full."""

SCENARIOS: Final = {
    "append": ("append", {"size": 100, "batch": 1000, "records": RECORDS}),
    "append_1k": ("append", {"size": LARGE_BYTES, "batch": 1000, "records": RECORDS // 5}),
    "latency": ("latency", {"size": 100, "records": 3000}),
    "fanin": ("fanin", {"size": 100, "connections": 64, "in-flight": 16, "records": 200_000}),
    "read": ("read", {"size": 1024, "batch": 1000, "records": 300_000}),
    "topics": ("topics", {"size": 100, "batch": 1000, "topics": 1000, "records": 2_000_000}),
}
"""By name in the results: the mode, and its options."""
CLUSTER: Final[dict[str, tuple[Callable[[Path, int], dict[str, Any]], int]]] = {
    "rollover": (measure_rollover, 1000),
    "election": (measure_election, 20),
    "failover": (measure_failover, 20),
}
"""What takes three nodes: by name in the results, how it is measured, and how many times."""
SPARK: Final[dict[str, tuple[str, dict[str, int]]]] = {
    "spark_scan": ("scan", {"rows": 10_000_000}),
    "spark_history": ("history", {"rows": 10_000_000}),
    "spark_growth": ("growth", {"gigabytes": 100, "segments": 10_000}),
    "spark_compact": ("compact", {"megabytes": 2000}),
    "spark_writes": ("writes", {"rows": 2_000_000}),
}
"""By name in the results: which bench of Spark, and how much of what."""
HISTORY: Final[dict[str, tuple[str, dict[str, int | str]]]] = {
    "history": ("history", {"mib": 1024}),
    "history_s3": ("history", {"mib": 1024, "store": "s3"}),
    "moves": ("cluster.move", {"moves": 500, "history": 0}),
    "moves_1g": ("cluster.move", {"moves": 500, "history": 1 << 30}),
    "moves_5g": ("cluster.move", {"moves": 500, "history": 5 << 30}),
}
"""By name in the results: which bench of the history and of moves, and how much of what."""
SUBSCRIPTIONS: Final = "subscriptions"
REPLICATED: Final = "replicated"
REPLICATED_RECORDS: Final = 4_000_000
"""Of 100 B, in each run on three nodes."""
QUICK_PART: Final = 20
HELP_RUNS: Final = 11
PEER_REPEATS: Final = 3
LONE_RECORDS: Final = 3000


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def ister_bench(mode: str, options: dict[str, int]) -> Fields:
    """`ister bench`, in a process of its own, as a person would run it."""
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [*ISTER, "bench", mode, *given, "--output", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(f"`ister bench {mode} {' '.join(given)}` failed, as it said above; nothing is kept")
    fields: Fields = json.loads(done.stdout)
    return fields


def measure_spark(quick: bool, repeats: int | None, only: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Each in a process of its own: what a session keeps is no part of the next one."""
    results: dict[str, dict[str, Any]] = {}
    for name, (bench, sizes) in SPARK.items():
        if only and name not in only:
            continue
        say(f"Spark: {name}")
        command = [sys.executable, "-m", f"bench.spark.{bench}"]
        for option, size in sizes.items():
            command += [f"--{option}", str(size // QUICK_PART if quick else size)]
        command += ["--repeats", str(repeats)] if repeats is not None else []
        done = subprocess.run(command, stdout=subprocess.PIPE)
        if done.returncode != 0:
            say(f"{' '.join(command[1:])} failed, as it said above: it is left out")
            continue
        results[name] = {key: value for key, value in json.loads(done.stdout).items() if key != "machine"}
    return results


def measure_history(quick: bool, only: Sequence[str]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, (bench, options) in HISTORY.items():
        if only and name not in only:
            continue
        say(f"history and moves: {name}")
        command = [sys.executable, "-m", f"bench.{bench}"]
        for option, value in options.items():
            asked = value // QUICK_PART if quick and isinstance(value, int) else value
            command += [f"--{option}", str(asked)]
        done = subprocess.run(command, stdout=subprocess.PIPE)
        if done.returncode != 0:
            say(f"{' '.join(command[1:])} failed, as it said above: it is left out")
            continue
        results[name] = json.loads(done.stdout)
    return results


def measure_subscriptions(quick: bool, repeats: int | None, peers: bool) -> dict[str, Any]:
    """In a process of its own, beside what others have for them."""
    say("subscriptions")
    command = [sys.executable, "-m", "bench.subscriptions.run", "--part", str(QUICK_PART if quick else 1)]
    command += ["--repeats", str(repeats)] if repeats is not None else []
    command += [] if peers else ["--no-peers"]
    done = subprocess.run(command, stdout=subprocess.PIPE)
    if done.returncode != 0:
        say(f"{' '.join(command[1:])} failed, as it said above: it is left out")
        return {}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure_help() -> Fields:
    """From the start of the process to its end: what a person waits for."""
    seconds = []
    for _ in range(HELP_RUNS):
        began = time.perf_counter()
        subprocess.run([*ISTER, "--help"], stdout=subprocess.DEVNULL, check=True)
        seconds.append(time.perf_counter() - began)
    return {"p50_ms": rounded(median(seconds) * 1000), "repeats": HELP_RUNS}


def measure_ister(quick: bool, repeats: int | None, only: Sequence[str]) -> dict[str, Fields]:
    results: dict[str, Fields] = {}
    for name, (mode, options) in SCENARIOS.items():
        if only and name not in only:
            continue
        say(f"ister bench {mode}: {name}")
        asked = dict(options)
        if quick:
            asked["records"] = max(asked["records"] // QUICK_PART, 1)
        if repeats is not None:
            asked["repeats"] = repeats
        results[name] = ister_bench(mode, asked)
    if not only:
        results["all"] = {"rss_mb": max(float(found["rss_mb"]) for found in results.values())}
        results["help"] = measure_help()
    return results


def measure_cluster(quick: bool, only: Sequence[str]) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    for name, (measure, times) in CLUSTER.items():
        if not only or name in only:
            say(f"three nodes: {name}")
            with scratch_directory() as directory:
                results[name] = measure(directory, max(times // QUICK_PART, 1) if quick else times)
    if not only or REPLICATED in only:
        say(f"three nodes: {REPLICATED}")
        with scratch_directory() as directory:
            part = QUICK_PART if quick else 1
            results |= measure_replicated(directory, REPLICATED_RECORDS // 1000 // part)
    return results


def measure_peer(peer: Peer, work: Workload, lone: Workload) -> dict[str, Any]:
    """Its fields; or that it is missing, and how to get it. Never a guess."""
    found = peer.find()
    if isinstance(found, Missing):
        say(f"{peer.name}: missing")
        return {"status": "missing", "how": found.how}
    say(f"{peer.name} {found.version}")
    with scratch_directory() as directory:
        try:
            results = peer.run(work, lone, directory)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            return {
                "status": "failed",
                "version": found.version,
                "how": str(error).replace(str(directory), ""),
            }
    facts = {"status": "measured", "version": found.version, "how": found.how, "synced": found.synced}
    return {**facts, **results}


def measure_peers(quick: bool, repeats: int | None, only: Sequence[str]) -> dict[str, Any]:
    part, repeats = QUICK_PART if quick else 1, repeats or PEER_REPEATS
    lone = Workload(records=LONE_RECORDS // part, size=100, batch=1, in_flight=1, repeats=repeats)
    results: dict[str, Any] = {}
    for peers, records in ((PEERS_OF_THREE, REPLICATED_RECORDS), (PEERS, RECORDS)):
        work = Workload(records=records // part, size=100, batch=1000, in_flight=8, repeats=repeats)
        for peer in peers:
            if not only or peer.name in only:
                results[peer.name] = measure_peer(peer, work, lone)
    return results


def tell_of_unsteady(results: dict[str, Any], path: str = "") -> None:
    """Name every part beside which the bare loop was much faster once than another time."""
    warning = unsteady(results)
    if warning:
        say(f"warning: {path.strip('.')}: {warning}")
    for name, value in results.items():
        if isinstance(value, dict):
            tell_of_unsteady(value, f"{path}.{name}")


def keep(results: Results, root: Path) -> None:
    """The file, the pictures and the README's table: all from the same results."""
    kept = root / "docs" / "bench" / "results.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    for name, picture in draw(results).items():
        path = root / "docs" / "pictures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(picture, encoding="utf-8")
    readme = root / "README.md"
    readme.write_text(fill_figures(readme.read_text(encoding="utf-8"), results), encoding="utf-8")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"a {QUICK_PART}th of the records")
    parser.add_argument("--repeats", type=int, help="repetitions of each phase (else each mode's own)")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[
            *SCENARIOS,
            *CLUSTER,
            REPLICATED,
            SUBSCRIPTIONS,
            *HISTORY,
            *SPARK,
            *(peer.name for peer in (*PEERS, *PEERS_OF_THREE)),
        ],
        default=[],
        help="print these, keep nothing",
    )
    parser.add_argument("--no-peers", action="store_true", help="leave the peers out")
    parser.add_argument("--peers", action="store_true", help="the peers alone; print them, keep nothing")
    parser.add_argument("--dry-run", action="store_true", help="measure and print, keep nothing")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    asked = parse(arguments)
    machine = machine_facts(Path.cwd())  # before there is any load of our own
    own: dict[str, Any] = {}
    if not asked.peers:
        own |= measure_ister(asked.quick, asked.repeats, asked.only)
        own |= measure_cluster(asked.quick, asked.only)
    peers = {} if asked.no_peers else measure_peers(asked.quick, asked.repeats, asked.only)
    spark = {} if asked.peers else measure_spark(asked.quick, asked.repeats, asked.only)
    history = {} if asked.peers else measure_history(asked.quick, asked.only)
    subscriptions = {}
    if not asked.peers and (not asked.only or SUBSCRIPTIONS in asked.only):
        subscriptions = measure_subscriptions(asked.quick, asked.repeats, not asked.no_peers)
    results: Results = {
        "measured_at": time.strftime("%Y-%m-%d", time.gmtime()),
        "quick": asked.quick,
        "machine": machine,
        "ister": own,
        "peers": peers,
        "spark": spark,
        "history": history,
        "subscriptions": subscriptions,
    }
    tell_of_unsteady({"ister": own, "peers": peers})
    partial = asked.only or asked.peers
    if partial or asked.dry_run:
        print(json.dumps(results, indent=2))
        return 0
    keep(results, ROOT)
    print(figures(results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
