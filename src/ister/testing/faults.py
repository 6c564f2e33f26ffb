"""What goes wrong, when, and how a run remembers it: shared by all the simulated seams.

`Faults` is a list of rules, each "this operation, on these names, so often, fails like this". The seams
ask it before each operation. `Trace` is the memory of a run: a running hash of everything that the
seams did, so that two runs can be compared by one line of text, and the last lines of it for a person.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random


class DeadProcess(OSError):
    """Raised into code of a process that the simulation has killed. Nothing it does reaches the world.

    A run does not fail over one of these that nobody handled: the dead handle nothing.
    """

    def __init__(self, what: str) -> None:
        super().__init__(errno.EIO, f"{what}: its process is dead")


def os_error(number: int, path: str) -> OSError:
    """The error that the system would raise: OSError picks the subclass by the number."""
    return OSError(number, os.strerror(number), path)


def died_with_its_process(error: BaseException | None) -> bool:
    """Is this error, or one that it was raised from, the death of a simulated process?"""
    seen = 0
    while error is not None and seen < 32:
        if isinstance(error, DeadProcess):
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False


@dataclass
class Rule:
    """One fault. It strikes matching operations until `count` is used up (None: for ever)."""

    operation: str
    prefix: str = ""
    suffix: str = ""
    count: int | None = None
    probability: float = 1.0
    after: int = 0  # let this many matching operations pass first
    error: int = errno.EIO
    applied: bool = False  # the operation takes effect, and fails all the same
    delay: float = 0.0  # virtual seconds; with a delay nothing fails, it is only late
    struck: int = 0

    def matches(self, operation: str, name: str) -> bool:
        return (
            operation == self.operation
            and self.count != 0
            and name.startswith(self.prefix)
            and name.endswith(self.suffix)
        )


class Faults:
    """The rules of one seam. With no rules it costs one attribute check."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._rules: list[Rule] = []

    def add(
        self,
        operation: str,
        *,
        prefix: str = "",
        suffix: str = "",
        count: int | None = None,
        probability: float = 1.0,
        after: int = 0,
        error: int = errno.EIO,
        applied: bool = False,
        delay: float = 0.0,
    ) -> Rule:
        """Switch a fault on. The rule returned says later how often it `struck`."""
        rule = Rule(operation, prefix, suffix, count, probability, after, error, applied, delay)
        self._rules.append(rule)
        return rule

    def remove(self, rule: Rule) -> None:
        """Switch one fault off. Not an error if it is off."""
        self._rules = [kept for kept in self._rules if kept is not rule]

    def clear(self) -> None:
        """The world is well again."""
        self._rules.clear()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing can go wrong here now; what is only late is not wrong."""
        return all(rule.delay or rule.count == 0 for rule in self._rules)

    def strike(self, operation: str, name: str) -> Rule | None:
        """The first failing rule that applies to this operation now."""
        if not self._rules:
            return None
        for rule in self._rules:
            if not rule.delay and rule.matches(operation, name) and self._fires(rule):
                return rule
        return None

    def delay(self, operation: str, name: str) -> float:
        """How much later than usual: the sum over the rules that only delay."""
        if not self._rules:
            return 0.0
        return sum(
            rule.delay
            for rule in self._rules
            if rule.delay and rule.matches(operation, name) and self._fires(rule)
        )

    def _fires(self, rule: Rule) -> bool:
        if rule.after > 0:
            rule.after -= 1
            return False
        if rule.probability < 1.0 and self._random.random() >= rule.probability:
            return False
        if rule.count is not None:
            rule.count -= 1
        rule.struck += 1
        return True


class Trace:
    """A running hash of all that happened, and the last lines of it in words."""

    def __init__(self, time: Callable[[], float], *, keep: int = 50) -> None:
        self._time = time
        self._hash = hashlib.blake2b(digest_size=16)
        self._tail: deque[str] = deque(maxlen=keep)

    def note(self, what: str) -> None:
        """Add one event. `what` may hold names, numbers and times; never an id() or a hash()."""
        line = f"{self._time():.9f} {what}"
        self._hash.update(line.encode() + b"\n")
        self._tail.append(line)

    def digest(self) -> str:
        return self._hash.hexdigest()

    def tail(self) -> list[str]:
        return list(self._tail)
