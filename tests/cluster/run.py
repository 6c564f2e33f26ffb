"""Many seeds: `python -m tests.cluster.run --seeds 2000 --first-seed 0 --jobs 2 [--report FILE]`.

`--seed 17` runs one alone. With `--replicas 3` segments are on several disks, and disks are lost and rot:
that is `tests.replicas_sim`. Every hundredth seed runs twice, and must give the same trace (checker 15). A
seed that fails is printed with what it broke, the end of its trace, and the command that replays it; the exit
code is then 1.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from tests.cluster import scenario
from tests.cluster.scenario import Summary
from tests.replicas_sim import scenario as replicated

TWICE_EVERY = 100


class Verdict(NamedTuple):
    """What came of one seed."""

    seed: int
    summary: Summary | None
    trouble: str


def try_seed(seed: int, replicas: int = 1) -> Verdict:
    kind = scenario if replicas == 1 else replicated
    try:
        summary = kind.run_seed(seed)
        kind.check_worth(summary)
        if seed % TWICE_EVERY == 0 and kind.run_seed(seed).digest != summary.digest:
            return Verdict(seed, None, f"seed {seed}: two runs, two traces (checker 15)")
        return Verdict(seed, summary, "")
    except Exception as error:
        return Verdict(seed, None, "".join(traceback.format_exception(error)))


def run_all(seeds: Sequence[int], jobs: int, replicas: int = 1) -> Iterator[Verdict]:
    if jobs <= 1:
        yield from (try_seed(seed, replicas) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(try_seed, seed, replicas) for seed in seeds]):
            yield done.result()


def report(verdicts: Sequence[Verdict], seconds: float, replicas: int = 1) -> str:
    """The result as a page for docs/results."""
    good = [verdict.summary for verdict in verdicts if verdict.summary is not None]
    bad = sorted(verdict.seed for verdict in verdicts if verdict.summary is None)
    seeds = sorted(verdict.seed for verdict in verdicts)
    faults: Counter[str] = Counter()
    for summary in good:
        faults.update(summary.kinds)

    def total(name: str) -> int:
        return sum(getattr(summary, name) for summary in good)

    rows = {
        "seeds": f"{seeds[0]} to {seeds[-1]}: {len(seeds)}",
        "clean": f"{len(good)}",
        "failed": ", ".join(map(str, bad)) or "none",
        "clusters of 3 nodes, of 5": " and ".join(
            f"{sum(summary.nodes == size for summary in good):,}" for size in (3, 5)
        ),
        "virtual time": f"{sum(summary.seconds for summary in good) / 3600:.1f} h",
        "operations": f"{total('operations'):,}",
        "records sent": f"{total('records'):,}",
        "handoffs": f"{total('handoffs'):,}",
        "of these to another node": f"{total('moves'):,}",
        "deaths of nodes": f"{total('deaths'):,}",
        "leaders of the metadata": f"{total('terms'):,}",
        "states restored from a snapshot": f"{total('restores'):,}",
        "nodes that joined in the middle": f"{total('joined'):,}",
        "seeds run twice, same trace": f"{sum(summary.seed % TWICE_EVERY == 0 for summary in good)}",
        "wall time": f"{seconds / 60:.1f} min",
    }
    if replicas > 1:
        failed_over = sum(summary.failovers > 0 for summary in good)
        rows["failovers"] = f"{total('failovers'):,}, in {failed_over:,} of the seeds"
        rows["disks lost"] = f"{total('wiped'):,}"
        rows["copies that rotted"] = f"{total('rotted'):,}"
    title = "clusters" if replicas == 1 else "replicated clusters"
    folder = "cluster" if replicas == 1 else "replicas_sim"
    return "\n".join(
        [
            f"# Simulation of {title}: the last full run",
            "",
            "Written by `python -m tests.cluster.run --report`. Three or five brokers and their clients a",
            "seed; the checkers are in `ister.testing.checkers` and `watch.py`, the faults in",
            f"`nemesis.py`, of `tests/{folder}`.",
            "",
            "| | |",
            "|---|---|",
            *(f"| {name} | {value} |" for name, value in rows.items()),
            "",
            "| fault | times |",
            "|---|---|",
            *(f"| {name.replace('_', ' ')} | {count:,} |" for name, count in faults.most_common()),
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--begin", type=int, default=0, help="how many of them to leave for the end")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--replicas", type=int, default=1, choices=(1, 3), help="of a topic, mostly")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args(arguments)
    seeds = list(range(options.first_seed, options.first_seed + options.seeds))
    seeds = seeds[options.begin :] + seeds[: options.begin]
    if options.seed is not None:
        seeds = [options.seed]
    started = time.monotonic()
    verdicts: list[Verdict] = []
    for verdict in run_all(seeds, options.jobs, options.replicas):
        verdicts.append(verdict)
        if verdict.trouble:
            print(f"seed {verdict.seed} FAILED\n{verdict.trouble}", flush=True)
        elif len(seeds) == 1:
            print(verdict.summary)
        elif len(verdicts) % 50 == 0:
            print(f"{len(verdicts)} of {len(seeds)} seeds", flush=True)
    seconds = time.monotonic() - started
    failed = sorted(verdict.seed for verdict in verdicts if verdict.summary is None)
    print(f"{len(verdicts) - len(failed)} of {len(verdicts)} seeds clean in {seconds:.0f} s")
    if options.report is not None:
        options.report.write_text(report(verdicts, seconds, options.replicas), encoding="utf-8")
    if failed:
        print(f"failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
