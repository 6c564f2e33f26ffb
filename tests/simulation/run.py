"""Many seeds: `python -m tests.simulation.run --seeds 2000 --first-seed 0 --jobs 2 [--report FILE]`.

Every hundredth seed runs twice, and must give the same trace (checker 15). A seed that fails is printed with
what it broke, the end of its trace, and the command that replays it; the exit code is then 1.
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

from tests.simulation.scenario import FAULT_SECONDS, LEAST_OPERATIONS, Summary, run_seed

TWICE_EVERY = 100
LEAST_FAULTS = 5
LEAST_ROLLOVERS = 3


class Verdict(NamedTuple):
    """What came of one seed."""

    seed: int
    summary: Summary | None
    trouble: str


def try_seed(seed: int) -> Verdict:
    try:
        summary = run_seed(seed)
        check_worth(summary)
        if seed % TWICE_EVERY == 0 and run_seed(seed).digest != summary.digest:
            return Verdict(seed, None, f"seed {seed}: two runs, two traces (checker 15)")
        return Verdict(seed, summary, "")
    except Exception as error:
        return Verdict(seed, None, "".join(traceback.format_exception(error)))


def check_worth(summary: Summary) -> None:
    """A seed that hardly did anything proves nothing."""
    assert summary.seconds >= min(60, FAULT_SECONDS), summary
    assert summary.operations >= LEAST_OPERATIONS, summary
    assert summary.faults >= LEAST_FAULTS, summary
    assert summary.rollovers >= LEAST_ROLLOVERS, summary


def run_all(seeds: Sequence[int], jobs: int) -> Iterator[Verdict]:
    if jobs <= 1:
        yield from map(try_seed, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(try_seed, seed) for seed in seeds]):
            yield done.result()


def report(verdicts: Sequence[Verdict], seconds: float) -> str:
    """The result as a page for docs/results."""
    good = [verdict.summary for verdict in verdicts if verdict.summary is not None]
    bad = sorted(verdict.seed for verdict in verdicts if verdict.summary is None)
    seeds = sorted(verdict.seed for verdict in verdicts)
    faults: Counter[str] = Counter()
    for summary in good:
        faults.update(summary.kinds)
    lines = [
        "# Simulation: the last full run",
        "",
        "Written by `python -m tests.simulation.run --report`. One broker and its clients a seed; the",
        "checkers are in `ister.testing.checkers`, the faults in `tests/simulation/nemesis.py`.",
        "",
        "| | |",
        "|---|---|",
        f"| seeds | {seeds[0]} to {seeds[-1]}: {len(seeds)} |",
        f"| clean | {len(good)} |",
        f"| failed | {', '.join(map(str, bad)) or 'none'} |",
        f"| virtual time | {sum(summary.seconds for summary in good) / 3600:.1f} h |",
        f"| operations | {sum(summary.operations for summary in good):,} |",
        f"| records sent | {sum(summary.records for summary in good):,} |",
        f"| handoffs | {sum(summary.rollovers for summary in good):,} |",
        f"| deaths of the node | {sum(summary.deaths for summary in good):,} |",
        f"| rotted segments, all noticed | {sum(summary.rotted != 'nothing' for summary in good):,} |",
        f"| seeds run twice, same trace | {sum(summary.seed % TWICE_EVERY == 0 for summary in good)} |",
        f"| wall time | {seconds / 60:.1f} min |",
        "",
        "| fault | times |",
        "|---|---|",
        *(f"| {name.replace('_', ' ')} | {count:,} |" for name, count in faults.most_common()),
        "",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args(arguments)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    started = time.monotonic()
    verdicts: list[Verdict] = []
    for verdict in run_all(seeds, options.jobs):
        verdicts.append(verdict)
        if verdict.trouble:
            print(f"seed {verdict.seed} FAILED\n{verdict.trouble}", flush=True)
        elif len(verdicts) % 50 == 0:
            print(f"{len(verdicts)} of {options.seeds} seeds", flush=True)
    seconds = time.monotonic() - started
    failed = sorted(verdict.seed for verdict in verdicts if verdict.summary is None)
    print(f"{len(verdicts) - len(failed)} of {len(verdicts)} seeds clean in {seconds:.0f} s")
    if options.report is not None:
        options.report.write_text(report(verdicts, seconds), encoding="utf-8")
    if failed:
        print(f"failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
