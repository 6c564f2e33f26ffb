"""`ister topic`: create, list, describe, alter and delete topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from ister.cli.common import QUICK, ask_broker, client_options, counted, parse_pairs, pass_terminal
from ister.cli.lazy import LazyGroup
from ister.cli.terminal import Terminal
from ister.errors import CorruptSegment, NodeUnreachable, NotLeader, RequestTimeout
from ister.settings import TOPIC_SETTINGS, Spec, validate_settings

if TYPE_CHECKING:
    from ister.cli.render import Done, TopicDetail, TopicListing
    from ister.client.log import Log
    from ister.protocol.messages import TopicDescription

F = TypeVar("F", bound=Callable[..., Any])


def setting_options(command: F) -> F:
    """One option for each setting of a topic."""
    for name, spec in reversed(TOPIC_SETTINGS.items()):
        command = click.option(
            f"--{name.replace('_', '-')}", name, metavar=_metavar(spec), help=_about(spec)
        )(command)
    return command


def _metavar(spec: Spec) -> str:
    return f"[{'|'.join(spec.choices)}]" if spec.choices else spec.kind.value.upper()


def _about(spec: Spec) -> str:
    about = spec.about.replace("`", "")
    return about if spec.choices else f"{about}  [{spec.allowed}]"


@click.group(cls=LazyGroup)
@client_options
def topic() -> None:
    """Create, list, describe, alter and delete topics.

    \b
    Examples:
      ister topic create events --segment-bytes 64MiB --retention-ms 7d
      ister topic list --output json
      ister topic describe events
    """


@topic.command()
@click.argument("name")
@setting_options
@click.option(
    "--set",
    "others",
    metavar="SETTING=VALUE",
    multiple=True,
    help="The same, as `ister topic alter` takes it.",
)
@click.option("--if-absent", is_flag=True, help="No error if the topic is already there; it stays as it is.")
@client_options
@pass_terminal
def create(
    terminal: Terminal, /, name: str, if_absent: bool, others: tuple[str, ...], **options: str | None
) -> Done:
    """Create the topic NAME. Settings that are not given have the broker's defaults.

    \b
    Examples:
      ister topic create events
      ister topic create audit --retention-ms 365d --segment-bytes 64MiB
      ister topic create scratch --fsync none --if-absent
    """
    from ister.cli.render import Done

    named = {key: value for key, value in options.items() if value is not None}
    for key, value in parse_pairs(others, "--set").items():
        setting = key.replace("-", "_")
        if setting in named:
            raise click.UsageError(f"{setting} is given twice: by an option of its own and by --set")
        named[setting] = value
    settings = validate_settings(named)
    made = ask_broker(terminal, lambda log: log.create_topic(name, if_absent=if_absent, **settings))
    return Done(
        {"topic": made.topic, "uid": made.uid, "end_offset": made.end_offset},
        f"topic {made.topic} is there" if if_absent else f"created topic {made.topic}",
    )


@topic.command("list")
@click.argument("prefix", default="")
@client_options
@pass_terminal
def list_(terminal: Terminal, prefix: str) -> TopicListing:
    """List the topics, or those whose name starts with PREFIX.

    \b
    Examples:
      ister topic list
      ister topic list billing/ --output json
    """
    from ister.cli.render import TopicListing

    return TopicListing(ask_broker(terminal, lambda log: log.list_topics(prefix)), prefix)


@topic.command()
@click.argument("name")
@client_options
@pass_terminal
def describe(terminal: Terminal, name: str) -> TopicDetail:
    """Show the settings and the chain of segments of the topic NAME.

    \b
    Examples:
      ister topic describe events
      ister topic describe events --output json
    """
    from ister.cli.render import TopicDetail

    return TopicDetail(ask_broker(terminal, lambda log: log.describe_topic(name)))


@topic.command()
@click.argument("name")
@click.option(
    "--set", "changes", metavar="SETTING=VALUE", multiple=True, required=True, help="Change a setting."
)
@client_options
@pass_terminal
def alter(terminal: Terminal, name: str, changes: tuple[str, ...]) -> Done:
    """Change settings of the topic NAME. Those not named stay as they are.

    \b
    Examples:
      ister topic alter events --set retention_ms=7d
      ister topic alter events --set segment_bytes=64MiB --set fsync=interval
    """
    from ister.cli.render import Done, settings_shown, topic_object

    named = {key.replace("-", "_"): value for key, value in parse_pairs(changes, "--set").items()}
    settings = validate_settings(named)
    found = ask_broker(terminal, lambda log: log.alter_topic(name, **settings))
    shown = dict(settings_shown(found.settings))
    changed = ", ".join(f"{key} = {shown[key]}" for key in settings)
    entry = {"topic": found.topic, "settings": topic_object(found)["settings"]}
    return Done(entry, f"altered topic {found.topic}: {changed}")


@topic.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask on.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@client_options
@pass_terminal
def delete(terminal: Terminal, name: str, yes: bool, dry_run: bool) -> Done:
    """Delete the topic NAME and all of its records. There is no way back.

    \b
    Examples:
      ister topic delete scratch
      ister topic delete scratch --dry-run
      ister topic delete scratch --yes --output json
    """
    from ister.cli.render import Done

    can_ask = terminal.input_is_terminal and terminal.is_terminal and not terminal.wants_json
    if not (yes or dry_run or can_ask):
        raise click.UsageError(f"deleting topic {name!r} needs --yes where there is no terminal to ask on")
    found, held = ask_broker(terminal, lambda log: what_goes(log, name), **QUICK)
    entry = {"topic": found.topic, "uid": found.uid, "records": held.records, "bytes": held.size}
    if dry_run:
        return Done({**entry, "deleted": False}, f"would delete topic {found.topic} ({held})")
    if not yes and not click.confirm(f"Delete topic {found.topic} ({held}) for good?", err=True):
        terminal.tell("nothing was deleted")
        raise click.exceptions.Exit(1)
    ask_broker(terminal, lambda log: log.delete_topic(name))
    return Done({**entry, "deleted": True}, f"deleted topic {found.topic} ({held})")


class Held(NamedTuple):
    """How much a topic holds; None where the node that could say does not answer."""

    records: int | None
    size: int | None

    def __str__(self) -> str:
        from ister.cli.render import show_bytes

        if self.records is None or self.size is None:
            return "how much it holds is not known: the node that leads it does not answer"
        return f"{counted(self.records, 'record')}, {show_bytes(self.size)}"


async def what_goes(log: Log, name: str) -> tuple[TopicDescription, Held]:
    """A description alone may be older than the topic: nobody should delete more than they were told."""
    found = await log.describe_topic(name)
    try:
        end = await log.offsets_at(name, "latest")
    except CorruptSegment:
        end = found.end_offset
    except (NodeUnreachable, RequestTimeout, NotLeader):
        return found, Held(None, None)
    return found, Held(end - found.start_offset, found.bytes)
