"""`ister dlq`: the dead letters of subscriptions, and putting them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from ister.cli.common import Whole, ask_broker, client_options, counted, pass_terminal
from ister.cli.lazy import LazyGroup
from ister.cli.terminal import Paint, Terminal

if TYPE_CHECKING:
    from ister.cli.render import Done
    from ister.client.log import Log
    from ister.protocol.subscriptions import SubscriptionDescription

REPLAY: Final = "replay"
"""The subscription of a topic of dead letters by which they are put back."""
QUIET_S: Final = 2.0


class DeadLetters(NamedTuple):
    subscription: SubscriptionDescription
    records: int
    """All that are in its topic, whichever subscription they came from."""
    waiting: int
    """Those that were not put back."""


class DeadLetterListing(NamedTuple):
    found: list[DeadLetters]

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [
            {
                "topic": one.subscription.topic,
                "subscription": one.subscription.name,
                "dead_letter_topic": one.subscription.dead_letter_topic,
                "records": one.records,
                "not_replayed": one.waiting,
            }
            for one in self.found
        ]

    def to_text(self, paint: Paint) -> str:
        from ister.cli.render import grouped, table

        if not self.found:
            hint = paint("dim", "ister subscription create --on-failure dead-letter makes one that has.")
            return f"No subscription has a topic for dead letters. {hint}"
        rows = [
            [
                one.subscription.topic,
                paint("bold", one.subscription.name),
                one.subscription.dead_letter_topic,
                grouped(one.records),
                grouped(one.waiting),
            ]
            for one in self.found
        ]
        return table(
            ["TOPIC", "SUBSCRIPTION", "DEAD LETTERS", "RECORDS", "NOT REPLAYED"], "<<<>>", rows, paint
        )


@click.group(cls=LazyGroup)
@client_options
def dlq() -> None:
    """Dead letters: records that were delivered as often as their subscription allows.

    Each is in a topic of its own kind, with where it was and why it failed in its headers: `ister tail` shows
    them, `--format '%o %h %v'` with these.

    \b
    Examples:
      ister dlq list
      ister tail orders.billing.dead --from start --no-follow --format '%h %v\\n'
      ister dlq replay orders billing
    """


@dlq.command("list")
@click.argument("prefix", metavar="[TOPIC]", default="")
@client_options
@pass_terminal
def list_(terminal: Terminal, prefix: str) -> DeadLetterListing:
    """How many dead letters there are, for each subscription that has a topic for them.

    \b
    Examples:
      ister dlq list
      ister dlq list orders --output json
    """
    from ister.names import DEFAULT_NAMESPACE

    start = f"{DEFAULT_NAMESPACE}/{prefix}" if prefix and "/" not in prefix else prefix.removeprefix("/")

    async def work(log: Log) -> list[DeadLetters]:
        chosen = [one for one in await log.subscriptions(start) if one.dead_letter_topic]
        return [await look(log, one) for one in chosen]

    return DeadLetterListing(ask_broker(terminal, work))


async def look(log: Log, subscription: SubscriptionDescription) -> DeadLetters:
    from ister.errors import UnknownTopic

    where = subscription.dead_letter_topic
    try:
        first, end = await log.offsets_at(where, "earliest"), await log.offsets_at(where, "latest")
    except UnknownTopic:
        return DeadLetters(subscription, 0, 0)
    replays = [one for one in await log.subscriptions(where, REPLAY) if one.topic == where]
    done = max(first, replays[0].cursor) if replays else first
    return DeadLetters(subscription, end - first, max(0, end - done))


@dlq.command()
@click.argument("topic")
@click.argument("name", metavar="SUBSCRIPTION")
@click.option("--count", metavar="N", type=Whole(min=1), help="Put back so many at most.")
@client_options
@pass_terminal
def replay(terminal: Terminal, topic: str, name: str, count: int | None) -> Done:
    """Append the dead letters of SUBSCRIPTION to TOPIC again, each once, the oldest first.

    They come behind all that is in the topic now, for all of its subscriptions. How far this has come is kept
    by a subscription of the dead letters' own topic, so that it goes on where it stopped; interrupted between
    appending a record and noting that, it appends that one again.

    \b
    Examples:
      ister dlq replay orders billing
      ister dlq replay orders billing --count 1
    """
    from ister.cli.render import Done
    from ister.cli.subscription import find
    from ister.errors import BadRequest

    async def work(log: Log) -> Done:
        found = await find(log, topic, name)
        where = found.dead_letter_topic
        if not where:
            raise BadRequest(
                f"the subscription {name} of {found.topic} has no topic for dead letters",
                hint="Its policy is to block or to drop: `ister subscription describe` shows it.",
            )
        left = (await look(log, found)).waiting
        left = left if count is None else min(left, count)
        done = 0 if not left else await put_back(log, found, left)
        said = f"put {counted(done, 'record')} of {where} back into {found.topic}"
        return Done({"topic": found.topic, "dead_letter_topic": where, "replayed": done}, said)

    return ask_broker(terminal, work)


async def put_back(log: Log, found: SubscriptionDescription, count: int) -> int:
    from ister.broker.subscriptions.policy import OWN_HEADERS

    done = passed = 0
    taken = log.subscribe(found.dead_letter_topic, REPLAY, kind="exclusive", start="earliest", window=100)
    async with taken:
        while passed < count and (batch := await taken.next(QUIET_S)) is not None:
            for message in batch.messages():
                if passed == count:
                    break
                passed += 1
                headers = dict(message.headers)
                is_its_own = headers.get("x-original-subscription") == found.name.encode()
                if is_its_own and headers.get("x-original-topic") == found.topic.encode():
                    kept = [(key, value) for key, value in message.headers if key not in OWN_HEADERS]
                    await log.append(
                        found.topic,
                        [message.value],
                        keys=[message.key] if message.key is not None else None,
                        timestamps_us=[message.record.timestamp_us],
                        headers=[kept] if kept else None,
                    )
                    done += 1
                await message.ack(durable=True)
    return done
