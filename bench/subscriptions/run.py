"""Subscriptions of Ister, and what others have for them, in one run: python -m bench.subscriptions.run

Prints an object: `ister`, `nats`, `kafka`, each with what it was measured at. The others are left out with
`--no-peers`, and reported as missing where they are not installed.
"""

from __future__ import annotations

import argparse
import json
import sys

from bench.subscriptions.asked import Job
from bench.subscriptions.kafka import KafkaShares
from bench.subscriptions.measure import MODES, measure_subscriptions
from bench.subscriptions.nats import NatsPulls

RECORDS = 1_000_000
"""For a peer to hand out, in each repetition."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.subscriptions.run", description=__doc__)
    parser.add_argument("--part", type=int, default=1, help="only one so many-th of the work")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--only", nargs="+", choices=MODES, default=MODES, help="these modes, of each of them"
    )
    parser.add_argument("--no-peers", action="store_true")
    asked = parser.parse_args()
    results = {"ister": measure_subscriptions(asked.only, asked.part, asked.repeats)}
    modes = tuple(mode for mode in Job.modes if mode in asked.only)
    job = Job(RECORDS // asked.part, max(20 // asked.part, 2), asked.repeats, modes=modes)
    for peer in () if asked.no_peers or not modes else (NatsPulls(), KafkaShares()):
        print(f"subscriptions: {peer.name}", file=sys.stderr, flush=True)
        results[peer.name] = peer.run(job)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
