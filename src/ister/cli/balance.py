"""`ister cluster balance`: topics go from nodes that carry much to those that carry little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from ister.cli.common import ask_broker, client_options, counted, pass_terminal
from ister.cli.terminal import Paint, Terminal
from ister.protocol.moves import BalanceAnswer


class BalanceView(NamedTuple):
    found: BalanceAnswer
    is_dry_run: bool

    def to_objects(self) -> Sequence[dict[str, Any]]:
        import msgspec

        return [msgspec.to_builtins(_named(self.found))]

    def to_text(self, paint: Paint) -> str:
        from ister.cli.render import grouped, show_bytes, table

        found = self.found
        rows = [
            [
                str(node.node_id),
                grouped(node.topics),
                f"{show_bytes(round(node.bytes_in))}/s",
                f"{show_bytes(round(node.bytes_out))}/s",
                f"{node.cpu:.0%}",
                show_bytes(node.memory_bytes),
                show_bytes(node.disk_free_bytes),
                f"{node.burden:.2f}",
            ]
            for node in found.nodes
        ]
        headings = ["NODE", "TOPICS", "IN", "OUT", "CPU", "MEMORY", "DISK FREE", "BURDEN"]
        lines = [table(headings, ">>>>>>>>", rows, paint)]
        lines.append(
            f"{found.strategy}: burdens vary by {found.before:.0%}, the threshold is {found.threshold:.0%}"
        )
        if not found.moves:
            is_fine = found.before <= found.threshold
            lines.append("nothing to move" if is_fine else "no topic may be moved that would make it better")
        for move in found.moves:
            number = f" (move {move.move})" if move.move else ""
            lines.append(f"  {move.topic}: node {move.source} to node {move.target}{number}")
        if found.moves:
            said = "would vary" if self.is_dry_run else "will vary"
            lines.append(f"{counted(len(found.moves), 'topic')}: burdens {said} by {found.after:.0%}")
        return "\n".join(lines)


def _named(found: BalanceAnswer) -> dict[str, Any]:
    import msgspec

    entry = msgspec.structs.asdict(found)
    entry["nodes"] = [msgspec.structs.asdict(node) for node in found.nodes]
    entry["moves"] = [msgspec.structs.asdict(move) for move in found.moves]
    return entry


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would be moved, and move nothing.")
@click.option(
    "--strategy",
    type=click.Choice(["fair", "balanced", "weighted"]),
    default=None,
    help="By what nodes are compared; else the setting `balance`, or fair.",
)
@client_options
@pass_terminal
def balance(terminal: Terminal, dry_run: bool, strategy: str | None) -> BalanceView:
    """Move topics so that nodes carry alike: by topics, by bytes, or by CPU and memory too.

    Nothing is moved unless the burdens vary by more than `balance_threshold_percent`. Topics that are young,
    excluded, or were moved by hand stay where they are. With the setting `balance` the cluster does this by
    itself.

    \b
    Examples:
      ister cluster balance --dry-run
      ister cluster balance --strategy weighted
    """
    found = ask_broker(terminal, lambda log: log.balance(dry_run=dry_run, strategy=strategy or ""))
    return BalanceView(found, dry_run)
