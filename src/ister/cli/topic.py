"""`ister topic`: create, list, describe, alter, move, recover and delete topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from ister.cli.common import QUICK, ask_broker, client_options, counted, parse_pairs, pass_terminal
from ister.cli.lazy import LazyGroup
from ister.cli.move import move_topic, unload
from ister.cli.terminal import Terminal
from ister.errors import BadRequest, CorruptSegment, NodeUnreachable, NotLeader, RequestTimeout
from ister.settings import TOPIC_SETTINGS, Spec, validate_settings

if TYPE_CHECKING:
    from ister.cli.render import Done, TopicDetail, TopicListing
    from ister.cli.render_recovery import LossView, RecoveryView
    from ister.client.log import Log
    from ister.protocol.messages import TopicDescription
    from ister.protocol.recovery import TopicRecovery

F = TypeVar("F", bound=Callable[..., Any])

PATIENT: dict[str, Any] = {"request_timeout_s": 30.0, "retry_deadline_s": 30.0}
"""Options of `ister.connect`: the node that is asked asks the others, and waits for the silent ones."""


def setting_options(command: F) -> F:
    """One option for each setting of a topic."""
    for name, spec in reversed(TOPIC_SETTINGS.items()):
        command = click.option(
            f"--{name.replace('_', '-')}", name, metavar=_metavar(spec), help=_about(spec)
        )(command)
    return command


def chosen_settings(options: dict[str, str | None], others: tuple[str, ...]) -> dict[str, int | str]:
    """By options of their own, or as SETTING=VALUE; one that is given twice is refused."""
    named = {key: value for key, value in options.items() if value is not None}
    for key, value in parse_pairs(others, "--set").items():
        setting = key.replace("-", "_")
        if setting in named:
            raise click.UsageError(f"{setting} is given twice: by an option of its own and by --set")
        named[setting] = value
    return validate_settings(named)


def _metavar(spec: Spec) -> str:
    return f"[{'|'.join(spec.choices)}]" if spec.choices else spec.kind.value.upper()


def _about(spec: Spec) -> str:
    about = spec.about.replace("`", "")
    return about if spec.choices else f"{about}  [{spec.allowed}]"


@click.group(cls=LazyGroup)
@client_options
def topic() -> None:
    """Create, list, describe, alter, move, recover and delete topics.

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

    settings = chosen_settings(options, others)
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
@setting_options
@click.option(
    "--set", "changes", metavar="SETTING=VALUE", multiple=True, help="The same, by the name of the setting."
)
@client_options
@pass_terminal
def alter(terminal: Terminal, /, name: str, changes: tuple[str, ...], **options: str | None) -> Done:
    """Change settings of the topic NAME. Those not named stay as they are.

    \b
    Examples:
      ister topic alter events --retention-ms 7d
      ister topic alter events --replicas 2
      ister topic alter events --set segment_bytes=64MiB --set fsync=interval
    """
    from ister.cli.render import Done, settings_shown, topic_object

    settings = chosen_settings(options, changes)
    if not settings:
        raise click.UsageError("nothing to change: give a setting, as --replicas 2 or --set replicas=2")
    found = ask_broker(terminal, lambda log: log.alter_topic(name, **settings))
    shown = dict(settings_shown(found.settings))
    changed = ", ".join(f"{key} = {shown[key]}" for key in settings)
    entry = {"topic": found.topic, "settings": topic_object(found)["settings"]}
    return Done(entry, f"altered topic {found.topic}: {changed}")


topic.add_command(move_topic)
topic.add_command(unload)


@topic.command()
@click.argument("name")
@click.option("--accept-loss", is_flag=True, help="Give up, for good, what cannot be reached.")
@click.option(
    "--node-stopped", is_flag=True, help="State that the nodes named are stopped; --accept-loss needs it."
)
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask on.")
@click.option("--dry-run", is_flag=True, help="Say what would be recorded as lost, and record nothing.")
@client_options
@pass_terminal
def recover(
    terminal: Terminal, name: str, accept_loss: bool, node_stopped: bool, yes: bool, dry_run: bool
) -> RecoveryView | LossView:
    """Say what the topic NAME waits for, and what can be done; or accept a loss, so that it goes on.

    A topic whose only node is gone waits for it, and so does one of which too few replicas are left to say
    what was acknowledged. Without --accept-loss this explains that, and exits with 1; with 0 if nothing is
    wrong. With it, the range of offsets that nobody can reach is shown and, if you agree, recorded as lost:
    the topic goes on behind it, each reader of it is told, and no offset is ever given out twice. A node
    that comes back later keeps what it has of that range in a file aside, for you to look at. So are sealed
    records that left the cluster with the disks that had them.

    \b
    Examples:
      ister topic recover events
      ister topic recover events --accept-loss --dry-run
      ister topic recover events --accept-loss --node-stopped
    """
    from ister.cli.render import render
    from ister.cli.render_recovery import LossView, RecoveryView, loss_shown

    if not accept_loss and (node_stopped or yes or dry_run):
        raise click.UsageError("--node-stopped, --yes and --dry-run are about a loss: give --accept-loss too")
    shown = ask_broker(terminal, lambda log: log.recovery_of(name), **PATIENT)
    if not accept_loss:
        view = RecoveryView(shown)
        if view.is_fine:
            return view
        render(view, terminal)
        raise click.exceptions.Exit(1)
    if shown.refusal and not shown.gone:
        raise BadRequest(
            f"nothing of {shown.topic} can be given up: {shown.refusal}",
            hint=f"`ister topic recover {shown.topic}` shows how it stands.",
        )
    if dry_run:
        return LossView(shown, shown, is_dry_run=True)
    if not (yes or _can_ask(terminal)):
        raise click.UsageError(
            f"giving up records of {name!r} needs --yes where there is no terminal to ask on"
        )
    if not terminal.wants_json:
        terminal.tell(f"to be recorded as lost in {shown.topic}: {loss_shown(shown)}")
    if shown.gives_up_open and not node_stopped:
        node_stopped = _nobody_to_stop(shown)
    if not yes and not click.confirm("Give up these offsets for good?", err=True):
        terminal.tell("nothing was given up")
        raise click.exceptions.Exit(1)
    accepted = ask_broker(terminal, lambda log: log.accept_loss(shown, node_stopped=node_stopped), **PATIENT)
    return LossView(accepted, shown)


def _nobody_to_stop(shown: TopicRecovery) -> bool:
    """What is given up was on disks that left the cluster, and cannot come back. Else it is to be stated."""
    nodes = shown.silent or ([shown.leader] if shown.leader_starts else [])
    if not nodes:
        return True
    who, have, them = ("node", "has", "it") if len(nodes) == 1 else ("nodes", "have", "them")
    raise click.UsageError(
        f"what {who} {', '.join(map(str, nodes))} {have} would be given up: stop {them}, for good, and state "
        "that with --node-stopped"
    )


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

    if not (yes or dry_run or _can_ask(terminal)):
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


def _can_ask(terminal: Terminal) -> bool:
    return terminal.input_is_terminal and terminal.is_terminal and not terminal.wants_json


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
    return found, Held(end - found.start_offset - found.lost, found.bytes)
