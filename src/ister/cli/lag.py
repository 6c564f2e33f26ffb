"""`ister lag`: which readers there are that said so, and how far they are behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from ister.cli.common import QUICK, Whole, ask_broker, client_options, duration, pass_terminal
from ister.cli.terminal import Paint, Terminal

if TYPE_CHECKING:
    from ister.client.lag import Lag
    from ister.client.log import Log
    from ister.protocol.messages import PinDescription
    from ister.protocol.subscriptions import SubscriptionDescription

ASKED_AT_ONCE: Final = 16


class ReaderLag(NamedTuple):
    pin: PinDescription
    lag: Lag | None
    """None if its topic was deleted meanwhile."""
    renewed_s: float
    """How long ago."""


class SubscriptionLag(NamedTuple):
    subscription: SubscriptionDescription
    lag: Lag | None

    @property
    def records(self) -> int | None:
        """Those that are not acknowledged."""
        beyond = sum(end - start for start, end in self.subscription.beyond)
        return max(0, self.lag.records - beyond) if self.lag is not None else None

    def to_object(self) -> dict[str, Any]:
        found, lag = self.subscription, self.lag
        return {
            "subscription": found.name,
            "kind": found.kind,
            "topic": found.topic,
            "topic_uid": found.topic_uid,
            "offset": found.cursor,
            "end_offset": lag.end if lag else None,
            "records_behind": self.records,
            "records_trimmed": lag.lost if lag else None,
            "seconds_behind": lag.seconds if lag else None,
            "owner": found.owner,
            "paused": found.paused,
        }

    def to_row(self, paint: Paint) -> list[str]:
        from ister.cli.render import grouped

        found, lag = self.subscription, self.lag
        notes = ["paused"] if found.paused else []
        if lag is not None and lag.lost:
            notes.append(paint("red", f"{lag.lost:,} records that it needs are trimmed"))
        return [
            paint("bold", found.name),
            found.topic,
            found.kind,
            grouped(found.cursor),
            grouped(lag.end) if lag else "-",
            grouped(self.records) if self.records is not None else "-",
            show_seconds(lag.seconds if lag else None),
            "; ".join(notes),
        ]


class ReaderLags(NamedTuple):
    readers: list[ReaderLag]
    prefix: str = ""
    subscriptions: Sequence[SubscriptionLag] = ()

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [*self._reader_objects(), *(one.to_object() for one in self.subscriptions)]

    def to_text(self, paint: Paint) -> str:
        if not self.subscriptions:
            return self._readers_text(paint)
        from ister.cli.render import table

        headings = ["SUBSCRIPTION", "TOPIC", "KIND", "OFFSET", "END", "BEHIND", "TIME BEHIND", "NOTES"]
        shown = table(headings, "<<<>>>><", [one.to_row(paint) for one in self.subscriptions], paint)
        return f"{shown}\n\n{self._readers_text(paint)}" if self.readers else shown

    def _reader_objects(self) -> Sequence[dict[str, Any]]:
        return [
            {
                "reader": pin.name,
                "topic": pin.topic,
                "topic_uid": pin.topic_uid,
                "offset": pin.offset,
                "end_offset": lag.end if lag else None,
                "records_behind": lag.records if lag else None,
                "records_trimmed": lag.lost if lag else None,
                "seconds_behind": lag.seconds if lag else None,
                "records_per_second": round(pin.rate, 3),
                "renewed_at_us": pin.renewed_at_us,
                "expires_at_us": pin.expires_at_us,
                "is_live": pin.is_live,
                "about": pin.about,
            }
            for pin, lag, _ in self.readers
        ]

    def _readers_text(self, paint: Paint) -> str:
        from ister.cli.render import grouped, table

        if not self.readers:
            where = f" of topics that start with {self.prefix!r}" if self.prefix else ""
            return f"No reader{where} has a pin. {paint('dim', 'Stream queries of Spark have one.')}"
        headings = ["READER", "TOPIC", "OFFSET", "END", "BEHIND", "TIME BEHIND", "RATE", "RENEWED", "NOTES"]
        rows = [
            [
                paint("bold", pin.name),
                pin.topic,
                grouped(pin.offset),
                grouped(lag.end) if lag else "-",
                grouped(lag.records) if lag else "-",
                show_seconds(lag.seconds if lag else None),
                f"{pin.rate:,.0f}/s",
                f"{show_seconds(renewed_s)} ago",
                "; ".join(_notes(pin, lag, paint)),
            ]
            for pin, lag, renewed_s in self.readers
        ]
        return table(headings, "<<>>>>>><", rows, paint)


def _notes(pin: PinDescription, lag: Lag | None, paint: Paint) -> list[str]:
    notes = [pin.about] if pin.about else []
    if lag is None:
        notes.append(paint("red", "its topic was deleted"))
    elif lag.lost:
        notes.append(paint("red", f"{lag.lost:,} records that it needs are trimmed"))
    if not pin.is_live:
        notes.append(paint("yellow", "ended, or not renewed in time: holds nothing back"))
    return notes


def show_seconds(seconds: float | None) -> str:
    """`0 s`, `12.3 s`, `5 min`, `3.2 h`, `2.1 d`; `?` if nobody knows."""
    if seconds is None:
        return "?"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds else "0 s"
    for unit, size, longest in (("min", 60, 60), ("h", 3600, 48), ("d", 86_400, float("inf"))):
        if seconds / size < longest:
            return f"{seconds / size:.1f} {unit}"
    return "?"


@click.command()
@click.argument("prefix", metavar="[TOPIC]", default="")
@click.option("--watch", is_flag=True, help="Look again and again, with rates, until Ctrl-C.")
@click.option("--count", metavar="N", type=Whole(min=1), help="End after N looks; only with --watch.")
@click.option(
    "--interval", metavar="DURATION", type=duration, default="2s", help="Between looks.  [default: 2s]"
)
@client_options
@pass_terminal
def lag(terminal: Terminal, prefix: str, watch: bool, count: int | None, interval: int) -> ReaderLags | None:
    """How far subscriptions are behind, and readers that have a pin, such as stream queries of Spark.

    A subscription is shown as it is stored, which is every 5 s or 1,000 acknowledgements.

    For each: its next offset, the end of the topic, how many records and how much time lie between, how fast
    it was lately, and when it renewed its pin last. Retention waits for a pin until it runs out, within twice
    what the topic is set to keep. With TOPIC, only of topics that start so.

    With --watch also how fast each was in the last half minute, how fast its topic was written, and when it
    will have caught up: a table that is drawn anew in a terminal, a line for each in a pipe, or objects.

    `ister pipeline lag` has queries that do not run and lake tables too.

    \b
    Examples:
      ister lag
      ister lag orders
      ister lag --watch
      ister lag --output json
    """
    from ister.names import DEFAULT_NAMESPACE

    start = f"{DEFAULT_NAMESPACE}/{prefix}" if prefix and "/" not in prefix else prefix.removeprefix("/")

    async def look(log: Log) -> ReaderLags:
        return ReaderLags(await reader_lags(log, start), prefix, await subscription_lags(log, start))

    if count is not None and not watch:
        raise click.UsageError("--count needs --watch: nothing else looks twice")
    if watch:
        from ister.cli.lag_watch import watch_lag

        watch_lag(terminal, lambda: ask_broker(terminal, look, **QUICK), interval / 1000, count)
        return None
    return ask_broker(terminal, look)


async def subscription_lags(log: Log, prefix: str) -> list[SubscriptionLag]:
    import asyncio

    from ister.client.lag import lag_of
    from ister.errors import UnknownTopic
    from ister.io.clock import SystemClock

    turns, clock = asyncio.Semaphore(ASKED_AT_ONCE), SystemClock()

    async def look(found: SubscriptionDescription) -> SubscriptionLag:
        async with turns:
            try:
                return SubscriptionLag(found, await lag_of(log, found.topic, found.cursor, clock.now_us()))
            except UnknownTopic:
                return SubscriptionLag(found, None)

    return list(await asyncio.gather(*map(look, await log.subscriptions(prefix))))


async def reader_lags(log: Log, prefix: str) -> list[ReaderLag]:
    import asyncio

    from ister.client.lag import lag_of
    from ister.errors import UnknownTopic
    from ister.io.clock import SystemClock

    turns, clock = asyncio.Semaphore(ASKED_AT_ONCE), SystemClock()

    async def look(pin: PinDescription) -> ReaderLag:
        async with turns:
            now_us = clock.now_us()
            try:
                found = await lag_of(log, pin.topic, pin.offset, now_us)
            except UnknownTopic:
                found = None
            return ReaderLag(pin, found, max(0.0, (now_us - pin.renewed_at_us) / 1e6))

    return list(await asyncio.gather(*map(look, await log.pins(prefix))))
