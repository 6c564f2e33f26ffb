"""The simulator: the four seams without the world, from one seed.

A program that takes its clock, network, disk and object store through `ister.io` runs here unchanged,
in one process, on virtual time, against faults that a real machine shows once a year:

    async def main(loop: VirtualLoop) -> None:
        disk = SimDisk(loop.fork("disk"), trace=loop.trace)
        network = SimNetwork(loop.fork("network"), trace=loop.trace)
        ...

    simulate(main, seed=1, limit_seconds=60)

The same seed gives the same run, in every process; a failure names its seed.

What clients saw goes into a `History`; `check_history` says what of it must not be: a lost or doubled record,
a gap, an offset with two values.
"""

from ister.testing.checkers import CHECKERS, Violation, check_history
from ister.testing.clock import SimClock
from ister.testing.disk import SimDisk
from ister.testing.faults import DeadProcess, Faults, Rule, Trace
from ister.testing.history import History
from ister.testing.image import Loss
from ister.testing.loop import (
    Deadlock,
    Livelock,
    SimulationError,
    TimeLimit,
    UnhandledErrors,
    VirtualLoop,
    simulate,
)
from ister.testing.mount import Mount
from ister.testing.network import SimHost, SimNetwork
from ister.testing.object_store import MemoryStore
from ister.testing.process import SimProcess

__all__ = [
    "CHECKERS",
    "DeadProcess",
    "Deadlock",
    "Faults",
    "History",
    "Livelock",
    "Loss",
    "MemoryStore",
    "Mount",
    "Rule",
    "SimClock",
    "SimDisk",
    "SimHost",
    "SimNetwork",
    "SimProcess",
    "SimulationError",
    "TimeLimit",
    "Trace",
    "UnhandledErrors",
    "Violation",
    "VirtualLoop",
    "check_history",
    "simulate",
]
