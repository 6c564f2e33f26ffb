"""The command line of a chaos run on a cluster: a seed, some seconds of faults, a verdict, a report.

Prints the seed before anything happens, and the command that runs it again if a promise was broken; the exit
code is then 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from tests.chaos.cluster_faults import Say, quiet

T = TypeVar("T", covariant=True)


class Run(Protocol[T]):
    def __call__(self, seconds: float, seed: int, *, directory: Path | None, say: Say) -> T: ...


R = TypeVar("R")


@dataclass(frozen=True)
class Chaos(Generic[R]):
    """One kind of chaos, as its module has it."""

    module: str
    about: str | None
    name: str
    seconds: float
    """Of faults, unless told."""
    run: Run[R]
    summary: Callable[[R], str]
    """What is printed of a clean run."""
    report: Callable[[R], str]
    """The page for docs/results."""

    def main(self, arguments: Sequence[str] | None = None) -> int:
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=self.about)
        parser.add_argument(
            "--seconds", type=float, default=self.seconds, help="of faults; healing and judging come on top"
        )
        parser.add_argument("--seed", type=int)
        parser.add_argument("--report", type=Path)
        parser.add_argument(
            "--directory", type=Path, help="an empty one, to keep the nodes' files and logs in"
        )
        parser.add_argument("--verbose", action="store_true", help="tell what goes wrong when")
        options = parser.parse_args(arguments)
        seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
        print(f"{self.name} seed {seed}, {options.seconds:g} s", flush=True)
        try:
            say = tell if options.verbose else quiet
            result = self.run(options.seconds, seed, directory=options.directory, say=say)
        except Exception:
            traceback.print_exc()
            print(f"FAILED; again: python -m {self.module} --seconds {options.seconds:g} --seed {seed}")
            return 1
        print(self.summary(result))
        if options.report is not None:
            options.report.write_text(self.report(result), encoding="utf-8")
        return 0


def tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}", file=sys.stderr, flush=True)
