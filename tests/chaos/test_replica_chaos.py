"""A stated sample of the replica part of `make chaos`; and that its judgement finds what it looks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ister.protocol.messages import SegmentDescription, TopicDescription, TopicSettings
from ister.testing.checkers import Violation
from tests.chaos import replicas_planted
from tests.chaos.replicas import check_copies, run_replicas
from tests.chaos.replicas_faults import DISK


@pytest.mark.slow
def test_nodes_killed_and_disks_lost_lose_double_and_skip_nothing() -> None:
    result = run_replicas(20, seed=1)
    assert result.kills >= 3
    assert result.faults[DISK] >= 1
    assert result.acknowledged > 100


@pytest.mark.slow
def test_leaders_that_acknowledge_alone_are_found() -> None:
    """Within three runs: a leader must die in the moment between its acknowledgement and its followers'."""
    with pytest.raises(
        Violation,
        match=r"acknowledged_is_readable|reader_goes_on|what_was_read_stays|one_offset|no_duplicates",
    ):
        for seed in (1, 2, 3):
            run_replicas(15, seed=seed, command=replicas_planted.COMMAND, patience_s=5)


@pytest.fixture
def copies(tmp_path: Path) -> dict[int, Path]:
    """Three nodes with the same segment: 8 bytes, and space that was reserved behind them."""
    for node in (1, 2, 3):
        path = tmp_path / str(node) / "segments" / f"{7:016d}" / f"{1:08d}-{9:016d}.log"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"frames 8" + b"\0" * node)
    return {node: tmp_path / str(node) for node in (1, 2, 3)}


def described(size: int = 8) -> TopicDescription:
    sealed = SegmentDescription(1, 9, 0, 5, size, 1, True, 0, 0, "sealed", [1, 2, 3])
    opened = SegmentDescription(2, 11, 5, 5, 0, 2, False, 0, 0, "open", [1, 2, 3])
    return TopicDescription("default/t", 7, 0, 5, size, TopicSettings(), [sealed, opened], 0, [])


def path_of(copies: dict[int, Path], node: int) -> Path:
    return next(copies[node].rglob("*.log"))


def test_copies_that_are_the_same_bytes_up_to_the_end_are_fine(copies: dict[int, Path]) -> None:
    check_copies(described(), copies)


def test_a_copy_that_differs_is_found(copies: dict[int, Path]) -> None:
    path_of(copies, 2).write_bytes(b"frames 9")
    with pytest.raises(Violation, match="copies_are_equal"):
        check_copies(described(), copies)


def test_a_copy_that_is_short_or_missing_is_found(copies: dict[int, Path]) -> None:
    path_of(copies, 3).write_bytes(b"frames")
    with pytest.raises(Violation, match=r"copies_are_whole.*\[3\]"):
        check_copies(described(), copies)
    path_of(copies, 3).unlink()
    with pytest.raises(Violation, match=r"copies_are_whole.*\[3\]"):
        check_copies(described(), copies)
