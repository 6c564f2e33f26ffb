"""`ister history`: what of a topic is in the history, and whether it is good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ister.cli.common import ask_broker, client_options, counted, pass_terminal
from ister.cli.lazy import LazyGroup
from ister.cli.terminal import Paint, Terminal
from ister.errors import CorruptSegment

if TYPE_CHECKING:
    from ister.cli.render import Done
    from ister.client.log import Log
    from ister.protocol.history import HistoryEntry, HistoryList, ObjectVerified

PUBLISHED = ("published", "damaged")


class HistoryView(NamedTuple):
    found: HistoryList

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [
            {"topic": self.found.topic, "location": self.found.location, **entry_object(entry)}
            for entry in self.found.entries
        ]

    def to_text(self, paint: Paint) -> str:
        from ister.cli.render import grouped, show_bytes, table

        found = self.found
        rows = [
            [
                str(entry.segment),
                grouped(entry.start_offset),
                grouped(entry.end_offset - 1) if entry.end_offset > entry.start_offset else "-",
                paint(_COLOURS.get(entry.state, ""), entry.state) if entry.state in _COLOURS else entry.state,
                show_bytes(entry.size) if entry.size else "-",
                ", ".join(map(str, entry.replicas)) or "-",
                entry.name or "-",
            ]
            for entry in found.entries
        ]
        headings = ["SEGMENT", "FIRST", "LAST", "STATE", "SIZE", "COPIES ON", "OBJECT"]
        published = [entry for entry in found.entries if entry.state in PUBLISHED]
        waiting = sum(entry.state == "waiting" for entry in found.entries)
        where = f"in {found.location}" if found.location else "(no store: storage_mode is local)"
        summary = f"{counted(len(published), 'segment')} of {found.topic} {where}, {waiting} waiting."
        return f"{summary}\n\n{table(headings, '>>><><<', rows, paint)}"


_COLOURS = {"published": "green", "damaged": "red", "waiting": "yellow"}


def entry_object(entry: HistoryEntry) -> dict[str, Any]:
    return {
        "segment": entry.segment,
        "uid": entry.uid,
        "start_offset": entry.start_offset,
        "end_offset": entry.end_offset,
        "state": entry.state,
        "replicas": entry.replicas,
        "object": entry.name or None,
        "position": entry.position,
        "size": entry.size,
        "crc": f"{entry.crc:08x}",
        "first_append_time_us": entry.first_append_time_us,
        "last_append_time_us": entry.last_append_time_us,
        "exported_by": entry.exported_by or None,
        "published_at_us": entry.published_at_us or None,
    }


class Verification(NamedTuple):
    topic: str
    objects: list[tuple[HistoryEntry, ObjectVerified]]

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [
            {
                "topic": self.topic,
                "segment": entry.segment,
                "start_offset": entry.start_offset,
                "end_offset": entry.end_offset,
                "object": told.name,
                "size": told.size,
                "is_good": not told.problem,
                "problem": told.problem or None,
            }
            for entry, told in self.objects
        ]

    def to_text(self, paint: Paint) -> str:
        from ister.cli.render import show_bytes

        size = show_bytes(sum(told.size for _, told in self.objects))
        count = counted(len(self.objects), "object")
        return f"{count} of {self.topic}, {size}: {paint('green', 'all good')}, to the last byte."


@click.group(cls=LazyGroup)
@client_options
def history() -> None:
    """What of a topic is in the history, outside the brokers, and whether it is good.

    \b
    Examples:
      ister history list events
      ister history verify events
      ister history sweep events
    """


@history.command("list")
@click.argument("topic")
@client_options
@pass_terminal
def list_(terminal: Terminal, topic: str) -> HistoryView:
    """List the segments of TOPIC: which are in the history, which wait for it, who else has them.

    \b
    Examples:
      ister history list events
      ister history list events --output json
    """
    return HistoryView(ask_broker(terminal, lambda log: log.history(topic)))


@history.command()
@click.argument("topic")
@client_options
@pass_terminal
def sweep(terminal: Terminal, topic: str) -> Done:
    """Delete the objects of TOPIC that nobody names any more: of exports that were cut short, of what
    retention dropped, and of a topic of this name that was deleted. The brokers do so too, every ten minutes.
    What a compaction has replaced stays for an hour in any case.

    \b
    Examples:
      ister history sweep events
      ister history sweep events --output json
    """
    from ister.cli.render import Done

    deleted = ask_broker(terminal, lambda log: log.sweep_history(topic))
    return Done(
        {"topic": topic, "deleted": deleted},
        f"deleted {counted(len(deleted), 'object')}" if deleted else "nothing to delete",
    )


@history.command()
@click.argument("topic")
@client_options
@pass_terminal
def verify(terminal: Terminal, topic: str) -> Verification:
    """Read every object of TOPIC to its last byte; exits with 5 if one is not what it should be.

    \b
    Examples:
      ister history verify events
      ister history verify events --output json
    """

    async def work(log: Log) -> Verification:
        found = await log.history(topic)
        published = [entry for entry in found.entries if entry.state in PUBLISHED]
        return Verification(
            found.topic,
            [(entry, await log.verify_object(topic, found.topic_uid, entry.uid)) for entry in published],
        )

    done = ask_broker(terminal, work)
    bad = [told for _, told in done.objects if told.problem]
    if bad:
        raise CorruptSegment(
            f"{len(bad)} of {counted(len(done.objects), 'object')} of {done.topic}: {bad[0].problem}",
            hint="`ister history list` shows which segments still have copies on nodes.",
        )
    return done
