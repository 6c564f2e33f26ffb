"""`ister subscription`: durable places in topics, made, listed, described and deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ister.cli.common import Whole, ask_broker, client_options, counted, duration, pass_terminal
from ister.cli.lazy import LazyGroup
from ister.cli.terminal import Terminal

if TYPE_CHECKING:
    from ister.cli.render import Done
    from ister.cli.render_subscriptions import SubscriptionDetail, SubscriptionListing
    from ister.client.log import Log
    from ister.protocol.subscriptions import FailurePolicy, SubscriptionDescription

KINDS = click.Choice(["exclusive", "failover", "shared", "key-shared"])


@click.group(cls=LazyGroup)
@client_options
def subscription() -> None:
    """Durable places in a topic, for one consumer or many: create, list, describe, move, pause and delete
    them.

    \b
    Examples:
      ister subscription create orders billing --kind shared --from start
      ister subscription list
      ister consume orders billing
    """


@subscription.command()
@click.argument("topic")
@click.argument("name")
@click.option("--kind", type=KINDS, default="exclusive", show_default=True, help="One consumer, or many.")
@click.option(
    "--from",
    "place",
    metavar="PLACE",
    default="end",
    show_default=True,
    help="Where it begins: start, end, an offset, a time (2030-01-31T12:00) or a while ago ('10m ago').",
)
@click.option("--if-absent", is_flag=True, help="No error if it is already there; it stays where it is.")
@click.option(
    "--ack-timeout", metavar="TIME", help="What is not acknowledged for so long goes to others; 0: never."
)
@click.option(
    "--max-redeliveries", metavar="N", type=Whole(min=0), help="How often a record is delivered again."
)
@click.option("--backoff", metavar="TIME", help="The pause before that; twice as long each time.")
@click.option("--backoff-max", metavar="TIME", help="The longest pause.")
@click.option(
    "--on-failure",
    type=click.Choice(["block", "drop", "dead-letter"]),
    help="And then: deliver it again for ever, pass it over, or put it into another topic.",
)
@click.option("--dead-letter-topic", metavar="TOPIC", help="Which one; else TOPIC.NAME.dead.")
@client_options
@pass_terminal
def create(
    terminal: Terminal,
    /,
    topic: str,
    name: str,
    kind: str,
    place: str,
    if_absent: bool,
    **failure: str | int | None,
) -> Done:
    """Make the subscription NAME of TOPIC. What it has not acknowledged is remembered from now on.

    \b
    Examples:
      ister subscription create orders billing
      ister subscription create orders billing --kind shared --from start
      ister subscription create orders mail --kind shared --on-failure dead-letter --ack-timeout 30s
      ister subscription create orders audit --from '1h ago' --output json

    The defaults: 60 s to acknowledge, 5 redeliveries, pauses of 1 s to 60 s, and then `block`.
    """
    from datetime import UTC, datetime

    from ister.cli.records import parse_place
    from ister.cli.render import Done
    from ister.cli.render_subscriptions import subscription_object

    start, policy = parse_place(place, datetime.now(UTC)), policy_of(failure)
    made = ask_broker(
        terminal,
        lambda log: log.create_subscription(
            topic, name, kind=kind, start=start, if_absent=if_absent, policy=policy
        ),
    )
    said = f"subscription {made.name} of {made.topic} ({made.kind}) goes on at offset {made.cursor:,}"
    return Done(subscription_object(made), said)


def policy_of(options: dict[str, str | int | None]) -> FailurePolicy:
    from ister.protocol.subscriptions import FailurePolicy

    times = {"ack_timeout": "ack_timeout_ms", "backoff": "backoff_ms", "backoff_max": "backoff_max_ms"}
    chosen: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in times:
            chosen[times[name]] = 0 if value in ("0", "0s") else duration(str(value))
        else:
            chosen[name] = value
    return FailurePolicy(**chosen)


@subscription.command("list")
@click.argument("prefix", metavar="[TOPIC]", default="")
@client_options
@pass_terminal
def list_(terminal: Terminal, prefix: str) -> SubscriptionListing:
    """List the subscriptions, or those of topics that start with TOPIC.

    \b
    Examples:
      ister subscription list
      ister subscription list orders --output json
    """
    from ister.cli.render_subscriptions import SubscriptionListing
    from ister.names import DEFAULT_NAMESPACE

    start = f"{DEFAULT_NAMESPACE}/{prefix}" if prefix and "/" not in prefix else prefix.removeprefix("/")
    return SubscriptionListing(ask_broker(terminal, lambda log: log.subscriptions(start)), prefix)


@subscription.command()
@click.argument("topic")
@click.argument("name")
@client_options
@pass_terminal
def describe(terminal: Terminal, topic: str, name: str) -> SubscriptionDetail:
    """Show where the subscription NAME of TOPIC is, who hands out its records, and how far it is behind.

    \b
    Examples:
      ister subscription describe orders billing
      ister subscription describe orders billing --output json
    """
    from ister.cli.render_subscriptions import SubscriptionDetail

    async def work(log: Log) -> SubscriptionDetail:
        found = await find(log, topic, name)
        return SubscriptionDetail(found, await log.offsets_at(found.topic, "latest"))

    return ask_broker(terminal, work)


@subscription.command()
@click.argument("topic")
@click.argument("name")
@click.argument("place")
@client_options
@pass_terminal
def seek(terminal: Terminal, topic: str, name: str, place: str) -> Done:
    """Let NAME of TOPIC go on at PLACE: start, end, an offset, a time, or a while ago ('10m ago').

    For all of its consumers, at once. What was acknowledged before counts no more.

    \b
    Examples:
      ister subscription seek orders billing start
      ister subscription seek orders billing 4200
      ister subscription seek orders billing '1h ago'
    """
    from datetime import UTC, datetime

    from ister.cli.records import parse_place
    from ister.cli.render import Done
    from ister.cli.render_subscriptions import subscription_object

    at = parse_place(place, datetime.now(UTC))
    moved = ask_broker(terminal, lambda log: log.seek_subscription(topic, name, at))
    return Done(
        subscription_object(moved), f"{moved.name} of {moved.topic} goes on at offset {moved.cursor:,}"
    )


@subscription.command()
@click.argument("topic")
@click.argument("name")
@client_options
@pass_terminal
def pause(terminal: Terminal, topic: str, name: str) -> Done:
    """Hand out no more records of NAME of TOPIC, until it is resumed. What is handed out can be acknowledged.

    \b
    Examples:
      ister subscription pause orders billing
    """
    from ister.cli.render import Done
    from ister.cli.render_subscriptions import subscription_object

    found = ask_broker(terminal, lambda log: log.pause_subscription(topic, name))
    return Done(subscription_object(found), f"{name} of {found.topic} is paused at offset {found.cursor:,}")


@subscription.command()
@click.argument("topic")
@click.argument("name")
@client_options
@pass_terminal
def resume(terminal: Terminal, topic: str, name: str) -> Done:
    """Hand out records of NAME of TOPIC again.

    \b
    Examples:
      ister subscription resume orders billing
    """
    from ister.cli.render import Done
    from ister.cli.render_subscriptions import subscription_object

    found = ask_broker(terminal, lambda log: log.resume_subscription(topic, name))
    return Done(subscription_object(found), f"{name} of {found.topic} goes on at offset {found.cursor:,}")


@subscription.command()
@click.argument("topic")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_options
@pass_terminal
def delete(terminal: Terminal, topic: str, name: str, yes: bool) -> Done:
    """Forget the subscription NAME of TOPIC, and with it what was acknowledged. The records stay.

    \b
    Examples:
      ister subscription delete orders billing
      ister subscription delete orders billing --yes
    """
    from ister.cli.render import Done

    if not yes:
        found = ask_broker(terminal, lambda log: find(log, topic, name))
        click.confirm(
            f"forget {found.name} of {found.topic}, which is at offset {found.cursor:,}?",
            abort=True,
            err=True,
        )
    ask_broker(terminal, lambda log: log.delete_subscription(topic, name))
    return Done({"topic": topic, "subscription": name}, f"deleted subscription {name} of {topic}")


async def find(log: Log, topic: str, name: str) -> SubscriptionDescription:
    from ister.errors import UnknownSubscription
    from ister.names import normalise_topic

    full = normalise_topic(topic)
    for found in await log.subscriptions(full, name):
        if found.topic == full:
            return found
    others = sorted(one.name for one in await log.subscriptions(full) if one.topic == full)
    there = f"it has {', '.join(others)}" if others else f"it has {counted(0, 'subscription')}"
    raise UnknownSubscription(f"{full} has no subscription {name}; {there}")
