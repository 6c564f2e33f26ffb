"""How a request is tried again: only after errors that may pass, ever more slowly, never for ever.

The pause doubles from 20 ms to 2 s, and chance takes up to half of it off, so that clients which lost the
same broker do not all come back at one moment. Where a broker answers, and only the node that leads is lost
or not known yet, it is a quarter of a second at most: others take over in about one. When the deadline has
passed the last error is raised as what it is, with what was tried, how often and for how long. Before that,
once it takes longer than a hiccup, a warning in the log says what is waited for: a minute is long for whoever
watches.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ister.errors import IsterError, NodeUnreachable, NotLeader, OutOfSequence, Overloaded, RequestTimeout
from ister.io.clock import Clock, monotonic

log = logging.getLogger("ister.client")

_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 2.0
_LONGEST_PAUSE_IN_FAILOVER_S: Final = 0.25
_TOKEN_SPAN: Final = 1 << 63
_WORTH_A_WORD_S: Final = 2.5
_LONG_S: Final = 5.0

MAY_LAND: Final = "It may be stored yet, behind what is sent after it: read the end of the topic to see."
_KNOWN_NOT_DONE: Final = (NodeUnreachable, NotLeader, OutOfSequence, Overloaded)


def leaves_doubt(error: IsterError) -> bool:
    """Whether the request may have taken effect although it failed with this.

    A broken connection, silence, and a disk that failed in the middle all leave doubt: a record that was
    refused after a failed fsync may still be found by the recovery. An answer that refuses outright does not.
    """
    return error.retriable and not isinstance(error, _KNOWN_NOT_DONE)


def pause_s(clock: Clock, failures: int, error: IsterError) -> float:
    """How long to wait after so many failures in a row, of which this was the last."""
    in_failover = isinstance(error, NodeUnreachable | NotLeader)
    longest = _LONGEST_PAUSE_IN_FAILOVER_S if in_failover else _LONGEST_PAUSE_S
    whole = min(longest, _FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16))
    return whole * (0.5 + 0.5 * clock.token() / _TOKEN_SPAN)


def gave_up(
    error: IsterError, what: str, attempts: int, elapsed_s: float, topic: str = "", *, in_doubt: bool = False
) -> IsterError:
    """The last error, which now also says what was tried; and, where a topic waits for a node, who knows what
    can be done if that never comes back. The last attempt may be known to have had no effect, and an earlier
    one not: then nobody knows."""
    tried = f"{attempts} attempt{'s' if attempts != 1 else ''} in {elapsed_s:.1f} s"
    hint = error.hint
    if topic and isinstance(error, NodeUnreachable) and "topic recover" not in hint:
        hint = f"{hint} If it is gone for good, `ister topic recover {topic}` says what can be done."
    message = f"{what} failed after {tried}; the last error: {error.message}"
    if in_doubt:
        hint = f"{hint} {MAY_LAND}"
    if in_doubt and not leaves_doubt(error):
        unknown = f"{message} ({error.code}). An earlier attempt was not answered, and may have succeeded"
        return RequestTimeout(unknown, hint=hint)
    return type(error)(message, hint=hint)


class Word:
    """Says once, of each trouble that lasts, what is tried again and why."""

    def __init__(self) -> None:
        self._is_said = False

    def over(self) -> None:
        self._is_said = False

    def failing(self, error: IsterError, what: str, elapsed_s: float, deadline_s: float) -> None:
        left = deadline_s - elapsed_s
        if not self._is_said and elapsed_s >= _WORTH_A_WORD_S and left >= _LONG_S:
            self._is_said = True
            log.warning("still trying, for %.0f s more: %s: %s", left, what, error.message)


class Retries:
    """The attempts at one thing, until it succeeds or its time is over."""

    def __init__(self, clock: Clock, deadline_s: float, what: str, topic: str = "") -> None:
        self._clock = clock
        self._topic = topic
        self._deadline_s = deadline_s
        self._what = what
        self._began = monotonic()
        self._failures = 0
        self._word = Word()
        self.in_doubt = False
        """Whether an earlier attempt may have taken effect."""

    def succeeded(self) -> None:
        """Start counting anew: for what goes on for long, like a reader."""
        self._began = monotonic()
        self._failures = 0
        self._word.over()

    async def pause(self, error: IsterError) -> None:
        """Wait before the next attempt; raises if the error will not pass or the time is over."""
        if not error.retriable:
            raise error
        self.in_doubt = self.in_doubt or leaves_doubt(error)
        self._failures += 1
        elapsed = monotonic() - self._began
        if elapsed >= self._deadline_s:
            raise gave_up(error, self._what, self._failures, elapsed, self._topic) from error
        self._word.failing(error, self._what, elapsed, self._deadline_s)
        await asyncio.sleep(min(pause_s(self._clock, self._failures, error), self._deadline_s - elapsed))
