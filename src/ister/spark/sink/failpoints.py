"""Where a test lets a driver die: at a named step of its commit.

`ISTER_SPARK_FAILPOINT=step=FILE` in a driver's environment: the first process that reaches the step makes the
file and stands still, so that whoever waits for the file can kill it there. Steps: `before-manifest`,
`manifest`, `half-appended`, `appended`, `done`, `committed`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from ister.spark.sink.committing import nowhere

VARIABLE = "ISTER_SPARK_FAILPOINT"


def reach_of_environment() -> Callable[[str], None]:
    step, _, file = os.environ.get(VARIABLE, "").partition("=")
    if not file:
        return nowhere

    def reach(reached: str) -> None:
        if reached != step:
            return
        try:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return  # it was here before
        time.sleep(3600)

    return reach
