"""`python -m tests.chaos.run --rounds 200 [--seed S] [--report FILE]`: kill -9 under load, on real files.

The seed decides what is sent and when the broker dies; the machine decides the rest, so a seed makes a
failure likely to show again, and not certain to.
"""

from __future__ import annotations

import argparse
import random
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.rounds import Result, run_rounds


def report(result: Result) -> str:
    lines = [
        "# Chaos: the last full run",
        "",
        "Written by `python -m tests.chaos.run --report`: a real broker process under load of six producers,",
        "killed at random moments and started again on the same directory. After each round every",
        "acknowledged record was there, in order, once; at the end all of it was read again and judged by",
        "`ister.testing.checkers`.",
        "",
        "| | |",
        "|---|---|",
        f"| seed | {result.seed} |",
        *(f"| rounds of {name} | {count} |" for name, count in result.rounds.most_common()),
        f"| sends acknowledged | {result.acknowledged:,} |",
        f"| sends whose outcome nobody was told | {result.unknown:,} |",
        f"| records in the log at the end | {result.records:,} |",
        f"| wall time | {result.seconds:.0f} s |",
        "| result | nothing lost, nothing twice |",
        "",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="of kill -9; clean stops come on top")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"chaos seed {seed}, {options.rounds} rounds", flush=True)
    try:
        result = run_rounds(options.rounds, seed)
    except Exception:
        traceback.print_exc()
        print(f"FAILED; again: python -m tests.chaos.run --rounds {options.rounds} --seed {seed}")
        return 1
    print(
        f"{sum(result.rounds.values())} rounds clean in {result.seconds:.0f} s: {result.acknowledged} sends "
        f"acknowledged, {result.unknown} unknown, {result.records} records"
    )
    if options.report is not None:
        options.report.write_text(report(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
