"""`ister meta`: the metadata as paths."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ister.cli.common import ask_broker, client_options, pass_terminal
from ister.cli.lazy import LazyGroup
from ister.cli.terminal import Paint, Terminal
from ister.errors import BadRequest

if TYPE_CHECKING:
    from ister.protocol.history import LookedUp


class MetaValue(NamedTuple):
    path: str
    value: Any

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [{"path": self.path, "value": self.value}]

    def to_text(self, paint: Paint) -> str:
        return json.dumps(self.value, indent=2, ensure_ascii=False)


class MetaNames(NamedTuple):
    path: str
    names: list[str]

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [{"path": f"{self.path.rstrip('/')}/{name}"} for name in self.names]

    def to_text(self, paint: Paint) -> str:
        return "\n".join(f"{self.path.rstrip('/')}/{name}" for name in self.names)


@click.group(cls=LazyGroup)
@client_options
def meta() -> None:
    """The metadata as paths, to look at: topics, their segments, their leaders.

    \b
    /topics/NS/TOPIC/delivery                      how records are delivered
    /topics/NS/TOPIC/subscriptions/NAME/cursor     the last offset acknowledged
    /storage/topics/NS/TOPIC/segments/START        a sealed segment: its descriptor
    /storage/topics/NS/TOPIC/segments/cur          the newest one that is durable
    /storage/topics/NS/TOPIC/state                 where the topic was sealed last
    /cluster/unassigned/NS/TOPIC                   nobody can append to it now
    /cluster/brokers/ID/NS/TOPIC                   that node leads it

    Offsets are inclusive in these, and null where there is nothing yet.

    \b
    Examples:
      ister meta ls /storage/topics/default/events/segments
      ister meta get /storage/topics/default/events/state
    """


@meta.command("get")
@click.argument("path")
@client_options
@pass_terminal
def get(terminal: Terminal, path: str) -> MetaValue:
    """Show what is at PATH, as JSON.

    \b
    Examples:
      ister meta get /storage/topics/default/events/segments/00000000000000000000
      ister meta get /cluster/brokers/1 --output json
    """
    found = _look_up(terminal, path)
    if not found.is_there:
        below = f"; below it are: {', '.join(found.below[:5])}" if found.below else ""
        raise BadRequest(f"there is nothing at {path}{below}", hint="`ister meta ls` lists what there is.")
    return MetaValue(path, json.loads(found.value))


@meta.command("ls")
@click.argument("path", default="/")
@client_options
@pass_terminal
def ls(terminal: Terminal, path: str) -> MetaNames:
    """List what is right below PATH.

    \b
    Examples:
      ister meta ls /
      ister meta ls /storage/topics/default/events/segments
    """
    return MetaNames("/" + path.strip("/"), _look_up(terminal, path).below)


def _look_up(terminal: Terminal, path: str) -> LookedUp:
    return ask_broker(terminal, lambda log: log.look_up(path))
