"""`ister why`: where one record is, who has it, and from where it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from ister.cli.common import ask_broker, client_options, pass_terminal
from ister.cli.terminal import Paint, Terminal

if TYPE_CHECKING:
    from ister.protocol.history import Explanation


class Reason(NamedTuple):
    found: Explanation

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [msgspec.structs.asdict(self.found)]

    def to_text(self, paint: Paint) -> str:
        from ister.cli.render import grouped, pairs

        found = self.found
        lines = [paint("bold", f"offset {grouped(found.offset)} of {found.topic}: {found.tier}")]
        facts: list[tuple[str, str]] = []
        if found.segment:
            end = grouped(found.end_offset) if found.end_offset else "open"
            whole = ", ".join(map(str, found.whole)) or "none that said so"
            facts += [
                (
                    "segment",
                    f"{found.segment} (uid {found.segment_uid}), {grouped(found.start_offset)} to {end}",
                ),
                ("leader", f"node {found.leader}"),
                (
                    "copies",
                    f"nodes {', '.join(map(str, found.replicas))}" if found.replicas else "none: released",
                ),
                ("whole", f"nodes {whole}" if found.replicas else "-"),
            ]
        if found.object_name:
            facts.append(("object", f"{found.object_name} (checksum {found.object_crc:08x})"))
        facts.append(("on nodes", f"from offset {grouped(found.hot_start_offset)} on: the cutover"))
        if found.frame_count:
            last = found.frame_offset + found.frame_count - 1
            facts += [
                ("frame", f"{grouped(found.frame_offset)} to {grouped(last)}, {found.frame_size:,} bytes"),
                ("checksums", f"body {found.body_crc:08x}, header {found.header_crc:08x}"),
                ("appended", f"at {found.append_time_us} (microseconds since 1970)"),
                ("producer", f"{found.producer_id}, sequence {found.sequence}" if found.producer_id else "-"),
            ]
        if found.trouble:
            facts.append(("trouble", paint("red", found.trouble)))
        return "\n".join([*lines, *pairs(facts, paint)])


@click.command()
@click.argument("topic")
@click.argument("offset", type=click.IntRange(min=0))
@client_options
@pass_terminal
def why(terminal: Terminal, topic: str, offset: int) -> Reason:
    """Where the record at OFFSET of TOPIC is: its segment, who leads it, which nodes have it, the object that
    has it in the history, and the checksums of its frame, which is read for this.

    \b
    Examples:
      ister why events 0
      ister why events 1000 --output json
    """
    return Reason(ask_broker(terminal, lambda log: log.explain(topic, offset)))
