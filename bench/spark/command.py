"""The command line of a bench of Spark: how many rows, how often, where; and one JSON object."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.machine import machine_facts
from bench.spark.formats import Rows
from ister.bench.target import scratch_directory

Measure = Callable[[Path, Rows, int, str], dict[str, Any]]
"""In this directory, these rows, so many times, on this master."""


def run_command(
    name: str, about: str, measure: Measure, arguments: Sequence[str] | None, *, rows: int
) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m bench.spark.{name}", description=about.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=rows)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args(arguments)
    machine = machine_facts(Path.cwd())  # before there is any load of our own
    with scratch_directory() as directory:
        asked = Rows(options.rows, options.value_bytes)
        found = measure(directory, asked, options.repeats, options.master)
    print(json.dumps({"machine": machine, **found}, indent=2))
    return 0
