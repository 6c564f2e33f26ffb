"""Which Spark this works with. Others have another API for Python sources, or none."""

from __future__ import annotations

import re
from typing import Final

from ister.errors import DependencyMissing, UnsupportedVersion

SUPPORTED: Final = (4, 3)
SHOWN: Final = "4.3.x"
INSTALL: Final = "pip install 'ister[spark]'"


def installed_version() -> str:
    try:
        from pyspark import __version__
    except ImportError as error:
        raise DependencyMissing(
            "Spark is not installed: there is no package pyspark", hint=INSTALL
        ) from error
    return str(__version__)


def check_version(version: str) -> None:
    """Raises `UnsupportedVersion` unless Ister is tested with this Spark."""
    found = re.match(r"(\d+)\.(\d+)(?!\d)", version)
    if found is None or (int(found[1]), int(found[2])) != SUPPORTED:
        raise UnsupportedVersion(
            f"this is Spark {version}; Ister works with Spark {SHOWN}",
            hint=f"Install a supported one, on the driver and every worker: {INSTALL}",
        )
