"""A log in memory in place of a broker, and `ister` run in this process."""

from __future__ import annotations

from typing import Any

import pytest
from cli_fakes import FakeLog, FakeNode, Ister, Outcome

import ister
from ister.cli.main import run


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> FakeLog:
    made = FakeLog()

    def connect(bootstrap: str, **options: Any) -> FakeLog | FakeNode:
        made.asked.append(bootstrap)
        return made.nodes.get(bootstrap, made)

    monkeypatch.setattr(ister, "connect", connect, raising=False)
    return made


@pytest.fixture
def cli(capsysbinary: pytest.CaptureFixture[bytes]) -> Ister:
    """Run `ister` in this process: `cli("topic", "list")`."""

    def call(*args: str, environ: dict[str, str] | None = None) -> Outcome:
        code = run(args, environ or {})
        captured = capsysbinary.readouterr()
        return Outcome(code, captured.out, captured.err.decode())

    return call
