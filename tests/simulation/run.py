"""Many seeds of a world: `python -m tests.simulation.run broker --seeds 2000 --first-seed 0 --jobs 2`.

`broker` is one broker, `cluster` three or five, `replicas` these with segments on several disks, and disks
that are lost and rot, `losses` with an operator who gives records up, `moves` with one who moves topics and
drains nodes, and in three seeds of five a history, `history` one whose objects are merged too,
`subscriptions` a topic that is consumed while all that goes wrong. `--seed 17` plays one alone. Every
hundredth seed is played twice, and must give the same trace (checker 15). A seed that fails is printed with
what it broke, the end of its trace, and how it is played again; the exit code is then 1.
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

from tests.simulation.seeded import Summary, play_seed
from tests.simulation.worlds import WORLDS

TWICE_EVERY = 100


class Verdict(NamedTuple):
    """What came of one seed."""

    seed: int
    summary: Summary | None
    trouble: str


def try_seed(world: str, seed: int) -> Verdict:
    kind = WORLDS[world]
    try:
        summary = play_seed(kind, seed)
        summary.check_worth()
        if seed % TWICE_EVERY == 0 and play_seed(kind, seed).digest != summary.digest:
            return Verdict(seed, None, f"seed {seed}: two runs, two traces (checker 15)")
        return Verdict(seed, summary, "")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a task that was cancelled is none of Exception's
        return Verdict(seed, None, "".join(traceback.format_exception(error)))


def run_all(world: str, seeds: Sequence[int], jobs: int) -> Iterator[Verdict]:
    if jobs <= 1:
        yield from (try_seed(world, seed) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(try_seed, world, seed) for seed in seeds]):
            yield done.result()


def report(world: str, verdicts: Sequence[Verdict], seconds: float) -> str:
    """The result as a page for docs/results."""
    good = [verdict.summary for verdict in verdicts if verdict.summary is not None]
    bad = sorted(verdict.seed for verdict in verdicts if verdict.summary is None)
    seeds = sorted(verdict.seed for verdict in verdicts)
    faults: Counter[str] = Counter()
    for summary in good:
        faults.update(summary.kinds)
    rows = {
        "seeds": f"{seeds[0]} to {seeds[-1]}: {len(seeds)}",
        "clean": f"{len(good)}",
        "failed": ", ".join(map(str, bad)) or "none",
        **(type(good[0]).rows(good) if good else {}),
        "seeds played twice, same trace": f"{sum(summary.seed % TWICE_EVERY == 0 for summary in good)}",
        "wall time": f"{seconds / 60:.1f} min",
    }
    return "\n".join(
        [
            f"# Simulation, {world}: the last full run",
            "",
            f"Written by `python -m tests.simulation.run {world} --report`. {WORLDS[world].about}",
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
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__)
    parser.add_argument("world", choices=sorted(WORLDS))
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seed", type=int, help="play this one alone")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args(arguments)
    seeds = list(range(options.first_seed, options.first_seed + options.seeds))
    if options.seed is not None:
        seeds = [options.seed]
    started = time.monotonic()
    verdicts: list[Verdict] = []
    for verdict in run_all(options.world, seeds, options.jobs):
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
        options.report.write_text(report(options.world, verdicts, seconds), encoding="utf-8")
    if failed:
        print(f"failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
