"""Where a test lets a driver die: at a named step of its commit.

Steps: `before-manifest`, `manifest`, `half-appended`, `rebased`, `appended`, `done`, `committed`. A test that
commits by itself hands in a `Reach`, which may raise, or wait. One that starts a driver sets
`ISTER_SPARK_FAILPOINT=step=FILE` in its environment: the first process that reaches the step makes the file
and stands still, so that whoever waits for the file can kill it there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from typing import Final

VARIABLE: Final = "ISTER_SPARK_FAILPOINT"

Reach = Callable[[str], Awaitable[None]]
"""Told of each step."""


async def nowhere(step: str) -> None:
    """Of those who test nothing."""


def reach_of_environment() -> Reach:
    step, _, file = os.environ.get(VARIABLE, "").partition("=")
    if not file:
        return nowhere

    async def reach(reached: str) -> None:
        if reached != step:
            return
        try:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return  # it was here before
        time.sleep(3600)  # noqa: ASYNC251 (nothing else is to happen here, either)

    return reach
