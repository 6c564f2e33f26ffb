"""The simulated disk: in memory, faster than a real one, and worse than any.

It implements `ister.io.disk.Disk` and plays out the fault model stated there. `SimDisk` is the device;
it outlives the processes that use it. `mount()` is what a process is given: it dies with its process,
so that code which is still running after the crash of its node (a zombie of the simulation) can neither
open nor write anything. A `SimDisk` may also be used directly, as a disk that is always mounted.

- `crash()`: power is lost. What was not synced is lost by dice (`ister.testing.image`).
- `kill()`: the process dies and the machine lives: un-synced bytes are still there to be read, and are
  lost by a later `crash` unless somebody syncs them (P2).
- `crash_after(n)`: power is lost in the middle of some work, before its n-th coming change.
- Rules in `faults`, by path: `open`, `read`, `write`, `sync`, `allocate`, `truncate`, `rename`,
  `remove`, `sync_directory`, and `run` with a delay. A failed `sync` loses what it was to make durable,
  and no later one brings it back (P1). A failed `write` has written a part.
- `capacity`: writing past it is ENOSPC, after the part that fitted.
- `rot`, `tear`: stored bytes change, or are cut off, behind everybody's back.

`run(work)` does the work inline, a little virtual time later, and answers a little later still. If the
process dies in between, the work is not done, or not answered: the waiting coroutine gets
`asyncio.CancelledError`, as a task that is being stopped does. If the waiting coroutine is cancelled,
the work may be done all the same, as in a thread.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from ister.io.disk import File
from ister.testing.faults import DeadProcess, Faults, Rule, Trace, os_error
from ister.testing.image import Directory, FileImage, Loss, Node, Tree, roll_loss
from ister.testing.mount import Mount, OpenFile

T = TypeVar("T")


class SimDisk:
    """A disk of one simulated machine."""

    def __init__(
        self,
        random: Random,
        *,
        name: str = "disk",
        capacity: int = 1 << 40,
        latency: tuple[float, float] = (0.00005, 0.002),
        trace: Trace | None = None,
    ) -> None:
        self.name = name
        self.capacity = capacity
        self.latency = latency
        self.faults = Faults(random)
        self.generation = 0  # counts the deaths of processes on this disk
        self.roll_loss: Callable[[Random], Loss] = roll_loss
        """How a crash treats what was not synced, where nobody says; a harness may load the dice."""
        self._random = random
        self._trace = trace
        self._tree = Tree()
        self._used = 0
        self._locks: list[FileImage] = []
        self._fuse: int | None = None
        self._notify: Callable[[], None] | None = None

    # What the harness and the checkers use.

    def mount(self) -> Mount:
        """The disk as one process sees it, until that process dies."""
        return Mount(self)

    def crash(self, loss: Loss | None = None) -> None:
        """Power is lost: every process on this disk dies, and what was not synced is lost by dice.

        `loss` takes the dice away: all of it is lost, or none.
        """
        self.kill()
        if loss is None:
            loss = self.roll_loss(self._random)
        self._tree.crash(self._random, loss)
        files = self._tree.files()
        for _, image in files:
            image.crash(self._random, loss)
            image.linked = True  # its removal may have been undone
        self._used = sum(len(image.volatile) for _, image in files)
        self._note(f"crash {loss.name} {len(files)} files {self._used} bytes")

    def kill(self) -> None:
        """The process dies; the machine, and with it the page cache, lives on."""
        self.generation += 1
        self._locks.clear()
        self._fuse = None
        self._note("kill")

    def crash_after(self, count: int, notify: Callable[[], None] | None = None) -> None:
        """Let `count` changes pass and crash before the next, wherever in a piece of work it is.

        `notify` is called right after, by the dead process's own call: let it schedule the rest.
        """
        self._fuse, self._notify = count, notify

    def slow(self, seconds: float, *, count: int | None = None, probability: float = 1.0) -> Rule:
        """Make work on this disk take so much longer."""
        return self.faults.add("run", delay=seconds, count=count, probability=probability)

    def rot(self, path: str, position: int, bit: int = 0) -> None:
        """Flip a stored bit."""
        self._image(path).rot(position, bit)
        self._note(f"rot {path} {position} {bit}")

    def tear(self, path: str, size: int) -> None:
        """Cut a file off, on the platter too."""
        image = self._image(path)
        self._resized(image, min(size, len(image.volatile)) - len(image.volatile))
        image.cut(size)
        self._note(f"tear {path} {size}")

    def durable_bytes(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """What a crash right now could not take: the synced bytes under a synced name."""
        node = self._tree.find(_parts(path), durable=True)
        if not isinstance(node, FileImage):
            raise os_error(errno.ENOENT, path)
        return bytes(node.durable[start:end])

    def cached_bytes(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """What a running process reads there, durable or not; nothing fails."""
        return bytes(self._image(path).volatile[start:end])

    # The disk seam.

    @property
    def location(self) -> str:
        return f"simulated:{self.name}"

    def open(self, path: str, *, create: bool = False) -> File:
        parts = _parts(path)
        self.strike("open", path)
        node = self._tree.find(parts)
        if isinstance(node, Directory):
            raise os_error(errno.EISDIR, path)
        if node is None:
            parent = self._directory(parts[:-1], path)
            if not create:
                raise os_error(errno.ENOENT, path)
            self._burn(f"create {path}")
            node = FileImage()
            self._tree.change((parent, parts[-1], node))
        return OpenFile(self, path, node)

    def exists(self, path: str) -> bool:
        return self._tree.find(_parts(path)) is not None

    def list(self, path: str) -> list[str]:
        parts = _parts(path)
        node = self._tree.find(parts)
        if node is None:
            self._check_way(parts, path)
            return []
        if isinstance(node, FileImage):
            raise os_error(errno.ENOTDIR, path)
        return sorted(node.entries)

    def make_directory(self, path: str) -> None:
        node: Node = self._tree.root
        for name in _parts(path):
            if not isinstance(node, Directory):
                raise os_error(errno.ENOTDIR, path)
            following = node.entries.get(name)
            if following is None:
                self._burn(f"make_directory {path}")
                following = self._tree.add_directory(node, name)
            node = following

    def rename(self, source: str, target: str) -> None:
        source_parts, target_parts = _parts(source), _parts(target)
        self.strike("rename", source)
        source_directory = self._directory(source_parts[:-1], source)
        target_directory = self._directory(target_parts[:-1], target)
        moved, replaced = self._tree.find(source_parts), self._tree.find(target_parts)
        if moved is None:
            raise os_error(errno.ENOENT, source)
        if moved is replaced:
            return
        if target_parts[: len(source_parts)] == source_parts:
            raise os_error(errno.EINVAL, target)
        if source_parts[: len(target_parts)] == target_parts:
            raise os_error(errno.ENOTEMPTY, target)
        _check_replaceable(moved, replaced, target)
        self._burn(f"rename {source} {target}")
        self._unlink(replaced)
        self._tree.change(
            (source_directory, source_parts[-1], None), (target_directory, target_parts[-1], moved)
        )

    def remove(self, path: str) -> None:
        parts = _parts(path)
        if not parts:
            raise ValueError("the root of a disk cannot be removed")
        self.strike("remove", path)
        node = self._tree.find(parts)
        if node is None:
            self._check_way(parts, path)
            return
        if isinstance(node, Directory):
            for name in sorted(node.entries):
                self.remove(f"{path}/{name}")
        self._burn(f"remove {path}")
        self._unlink(node)
        self._tree.change((self._directory(parts[:-1], path), parts[-1], None))

    def sync_directory(self, path: str) -> None:
        self.strike("sync_directory", path)
        directory = self._directory(_parts(path), path)
        self._burn(f"sync_directory {path}")
        self._tree.sync(directory)

    def free_bytes(self) -> int:
        return max(0, self.capacity - self._used)

    def lock(self, path: str) -> bool:
        return self.take_lock(path) is not None

    def take_lock(self, path: str) -> FileImage | None:
        """The locked file itself: as with flock, a lock is on the file and not on its name."""
        self.open(path, create=True).close()
        image = self._image(path)
        if image in self._locks:
            return None
        self._locks.append(image)
        return image

    def release_lock(self, image: FileImage) -> None:
        if image in self._locks:
            self._locks.remove(image)

    async def run(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        delay = self._random.uniform(*self.latency) + self.faults.delay("run", self.name)
        loop.call_later(delay, self._perform, loop, work, answer, self.generation)
        return await answer

    def _perform(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[], T],
        answer: asyncio.Future[T],
        generation: int,
    ) -> None:
        if generation != self.generation:
            answer.cancel()
            return
        if answer.cancelled() and self._random.random() < 0.5:
            return  # a thread that had not begun; else it was at work, and goes on
        result: Any = None
        failure: Exception | None = None
        try:
            result = work()
        except Exception as error:
            failure = error
        delay = self._random.uniform(*self.latency) / 4
        loop.call_later(delay, self._answer, answer, result, failure, generation)

    def _answer(
        self, answer: asyncio.Future[T], result: T, failure: Exception | None, generation: int
    ) -> None:
        if answer.done():
            return
        if generation != self.generation:
            answer.cancel()
        elif failure is not None:
            answer.set_exception(failure)
        else:
            answer.set_result(result)

    def close(self) -> None:
        self._locks.clear()

    # What open files ask of their disk.

    def write(self, path: str, image: FileImage, data: bytes, position: int) -> None:
        self._burn(f"write {path} {position} {len(data)}")
        rule = self.faults.strike("write", path)
        if rule is not None:
            self._put(image, data[: self._random.randrange(len(data) + 1)], position)
            raise os_error(rule.error, path)
        room = max(0, len(image.volatile) - position) + max(
            0, self.free_bytes() - self._hole(image, position)
        )
        if len(data) > room:
            self._put(image, data[:room], position)
            raise os_error(errno.ENOSPC, path)
        self._put(image, data, position)

    def sync(self, path: str, image: FileImage) -> None:
        self._burn(f"sync {path}")
        rule = self.faults.strike("sync", path)
        if rule is not None:
            image.fail_sync(self._random)
            raise os_error(rule.error, path)
        image.sync()

    def allocate(self, path: str, image: FileImage, size: int) -> None:
        self._burn(f"allocate {path} {size}")
        self.strike("allocate", path)
        growth = size - len(image.volatile)
        if growth > self.free_bytes():
            raise os_error(errno.ENOSPC, path)
        image.allocate(size)
        self._resized(image, growth)

    def truncate(self, path: str, image: FileImage, size: int) -> None:
        self._burn(f"truncate {path} {size}")
        self.strike("truncate", path)
        self._resized(image, size - len(image.volatile))
        image.truncate(size)

    def strike(self, operation: str, path: str) -> None:
        """Fail here if a rule says so."""
        rule = self.faults.strike(operation, path)
        if rule is not None:
            self._note(f"fault {operation} {path} {rule.error}")
            raise os_error(rule.error, path)

    def _put(self, image: FileImage, data: bytes, position: int) -> None:
        if data:  # an empty write does not even move the end of the file
            before = len(image.volatile)
            image.write(data, position)
            self._resized(image, len(image.volatile) - before)

    def _hole(self, image: FileImage, position: int) -> int:
        return max(0, position - len(image.volatile))

    def _resized(self, image: FileImage, growth: int) -> None:
        if image.linked:
            self._used += growth

    def _unlink(self, node: Node | None) -> None:
        if isinstance(node, FileImage):
            self._used -= len(node.volatile)
            node.linked = False

    def _burn(self, what: str) -> None:
        """One change more; the fuse of `crash_after` may end here."""
        if self._fuse is not None:
            self._fuse -= 1
            if self._fuse < 0:
                self.crash()
                if self._notify is not None:
                    self._notify()
                raise DeadProcess(what)
        self._note(what)

    def _note(self, what: str) -> None:
        if self._trace is not None:
            self._trace.note(f"{self.name} {what}")

    def _directory(self, parts: tuple[str, ...], path: str) -> Directory:
        for depth in range(len(parts) + 1):
            node = self._tree.find(parts[:depth])
            if node is None:
                raise os_error(errno.ENOENT, path)
            if isinstance(node, FileImage):
                raise os_error(errno.ENOTDIR, path)
        assert isinstance(node, Directory)
        return node

    def _check_way(self, parts: tuple[str, ...], path: str) -> None:
        """Nothing is there: because it is absent, or because a file stands in the way?"""
        if any(isinstance(self._tree.find(parts[:depth]), FileImage) for depth in range(len(parts))):
            raise os_error(errno.ENOTDIR, path)

    def _image(self, path: str) -> FileImage:
        node = self._tree.find(_parts(path))
        if not isinstance(node, FileImage):
            raise os_error(errno.ENOENT, path)
        return node


def _check_replaceable(moved: Node, replaced: Node | None, target: str) -> None:
    if isinstance(replaced, Directory):
        if isinstance(moved, FileImage):
            raise os_error(errno.EISDIR, target)
        if replaced.entries:
            raise os_error(errno.ENOTEMPTY, target)
    elif isinstance(replaced, FileImage) and isinstance(moved, Directory):
        raise os_error(errno.ENOTDIR, target)


def _parts(path: str) -> tuple[str, ...]:
    parts = path.split("/")
    if path.startswith("/") or ".." in parts:
        raise ValueError(f"path {path!r} would leave the data directory")
    return tuple(part for part in parts if part not in ("", "."))
