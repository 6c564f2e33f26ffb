"""The transcripts say what happens: each is run again and compared, word for word."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.raft.transcript import FOLDER, Transcript

FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_cores_do_what_the_transcript_says(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert Transcript().replay(text) == text, "python -m tests.raft.regenerate shows the difference"


def test_the_scenarios_that_must_be_there_are_there() -> None:
    assert {path.stem for path in FILES} >= {
        "check_quorum",
        "conflict_hints",
        "figure_7",
        "figure_8",
        "membership",
        "membership_rolled_back",
        "pre_vote",
        "read_index",
        "restart_and_vote_again",
        "snapshot",
        "transfer",
    }
