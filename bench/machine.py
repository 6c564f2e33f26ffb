"""What a figure was measured on: enough to compare two runs, and nothing that says whose machine it is."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


def machine_facts(directory: Path) -> dict[str, str | int | float]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "processor": processor(),
        "kernel": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "uvloop": installed("uvloop"),
        "filesystem": filesystem(directory),
        "load_before": round(os.getloadavg()[0], 2),
    }


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def filesystem(directory: Path) -> str:
    """The kind of the mount that holds the directory: the longest mount point that leads to it."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        point, found = line.split()[1:3]
        if directory.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, found
    return kind


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def processor_seconds(process_id: int) -> float:
    """User and system time of a process and all its threads."""
    fields = Path(f"/proc/{process_id}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2]
    user, system = fields.split()[11:13]
    return (int(user) + int(system)) / _TICKS_PER_SECOND


def busy_seconds() -> float:
    """Of all processors together since the machine began: what anybody took, or the host did not give."""
    return busy_of(Path("/proc/stat").read_text(encoding="ascii"))


def busy_of(stat: str) -> float:
    user, nice, system, _idle, _waiting, interrupts, soft, stolen = map(int, stat.split()[1:9])
    return (user + nice + system + interrupts + soft + stolen) / _TICKS_PER_SECOND
