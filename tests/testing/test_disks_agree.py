"""Without crashes and faults, the simulated disk and a real one cannot be told apart."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ister.io.disk import Disk, File, LocalDisk, read_whole
from ister.testing import SimDisk

PATHS = st.sampled_from(["a", "b", "d", "d/a", "d/b", "e", "e/d", "e/d/a", "a/x", "a/x/y"])
SIZES = st.integers(min_value=0, max_value=3_000)

STEPS = st.one_of(
    st.tuples(st.just("open"), PATHS, st.booleans()),
    st.tuples(st.just("write"), st.integers(0, 3), st.lists(st.binary(max_size=40), max_size=3), SIZES),
    st.tuples(st.just("read"), st.integers(0, 3), SIZES, SIZES),
    st.tuples(st.just("truncate"), st.integers(0, 3), SIZES),
    st.tuples(st.just("allocate"), st.integers(0, 3), SIZES),
    st.tuples(st.just("sync"), st.integers(0, 3)),
    st.tuples(st.just("size"), st.integers(0, 3)),
    st.tuples(st.just("close"), st.integers(0, 3)),
    st.tuples(st.just("exists"), PATHS),
    st.tuples(st.just("list"), PATHS),
    st.tuples(st.just("make_directory"), PATHS),
    st.tuples(st.just("rename"), PATHS, PATHS),
    st.tuples(st.just("remove"), PATHS),
    st.tuples(st.just("sync_directory"), PATHS),
    st.tuples(st.just("whole"), PATHS),
    st.tuples(st.just("lock"), PATHS),
)


class Driver:
    """Carries out steps on one disk and says how each ended, errors by their number."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.files: list[File] = []
        self.closed: set[int] = set()

    def step(self, what: str, *arguments: Any) -> object:
        try:
            return self._act(what, *arguments)
        except OSError as error:
            return type(error).__name__, error.errno

    def _act(self, what: str, *arguments: Any) -> object:
        if what == "open":
            path, create = arguments
            self.files.append(self.disk.open(path, create=create))
            return "opened"
        if what == "whole":
            return read_whole(self.disk, *arguments)
        if what in ("write", "read", "truncate", "allocate", "sync", "size", "close"):
            return self._act_on_file(what, *arguments)
        action: Callable[..., object] = getattr(self.disk, what)
        return action(*arguments)

    def _act_on_file(self, what: str, index: int, *arguments: Any) -> object:
        # A real descriptor is given again after its close, so a closed file is not touched here.
        if index >= len(self.files) or index in self.closed:
            return "no such file"
        if what == "close":
            self.closed.add(index)
        action: Callable[..., object] = getattr(self.files[index], what)
        return action(*arguments)

    def close(self) -> None:
        for index in range(len(self.files)):
            self._act_on_file("close", index)
        self.disk.close()


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_a_simulated_and_a_real_disk_end_every_step_alike(steps: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        real, simulated = Driver(LocalDisk(Path(root), threads=1)), Driver(SimDisk(Random(0)))
        try:
            for number, step in enumerate(steps):
                assert simulated.step(*step) == real.step(*step), f"step {number}: {step}"
        finally:
            real.close()
            simulated.close()
