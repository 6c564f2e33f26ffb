"""The check of our checks: a planted bug counts only if it is the bug that shows."""

from __future__ import annotations

import pytest

from ister.testing.checkers import Violation
from ister.testing.loop import UnhandledErrors
from tests.planting import shows


def fail_with(error: Exception) -> None:
    raise error


def test_a_violation_shows_and_a_clean_run_does_not() -> None:
    assert shows(lambda: fail_with(Violation("invariant 1", "lost")))
    assert not shows(lambda: None)


@pytest.mark.parametrize(
    "error", [TypeError("two arguments, not four"), UnhandledErrors([AttributeError("no such method")])]
)
def test_a_plant_that_no_longer_fits_the_code_is_not_taken_for_found(error: Exception) -> None:
    with pytest.raises(AssertionError, match="does not fit"):
        shows(lambda: fail_with(error))
