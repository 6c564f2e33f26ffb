"""What holds of every test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# How fast a machine draws examples is nothing that a test may fail by.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(autouse=True)
def no_log_is_left_set_up() -> Iterator[None]:
    """A command that sets up the process's logs, to a stream of its own test, takes them along."""
    before = list(logging.getLogger().handlers)
    yield
    root = logging.getLogger()
    for handler in [one for one in root.handlers if type(one).__module__ == "ister.logs"]:
        if handler not in before:
            root.removeHandler(handler)
            handler.close()
