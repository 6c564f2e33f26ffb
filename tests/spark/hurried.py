"""Brokers whose copies are let go of within a second once the history has them: tests wait for that."""

from __future__ import annotations

import sys

HURRIED = "import ister.history.releasing as releasing; releasing.LOOK_SECONDS = 0.5; "
"""What the program of a broker begins with; the product looks each 10 s."""
SERVE_HURRIED = (sys.executable, "-c", f"{HURRIED}from ister.cli.main import main; main()", "serve")
