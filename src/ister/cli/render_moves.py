"""How moves look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from ister.cli.render import grouped, table
from ister.cli.terminal import Paint
from ister.protocol.moves import MoveDescription

_COLOURS = {"done": "green", "failed": "red", "cancelled": "yellow"}


class MoveView(NamedTuple):
    move: MoveDescription

    @property
    def is_fine(self) -> bool:
        """Whether what was asked for is done, or is only a plan."""
        return self.move.stage in ("done", "planned")

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [msgspec.structs.asdict(self.move)]

    def to_text(self, paint: Paint) -> str:
        move = self.move
        stage = paint(_COLOURS.get(move.stage, "bold"), move.stage)
        name = f"move {move.move} of {move.topic}" if move.move else move.topic
        way = f"node {move.source} to node {move.target}" if move.target else f"node {move.source}"
        lines = [f"{name}: {stage}, {way}"]
        if move.sealed_at_us:
            lines.append(
                f"  sealed at offset {grouped(move.end_offset)}; node {move.target} goes on from there"
            )
        if move.stays and move.stage in ("done", "planned"):
            lines.append(f"  stays on node {move.target} until it is released: ister topic move --to any")
        if move.detail:
            lines.append(f"  {move.detail}")
        if not move.is_over:
            lines.append(f"  it goes on; ister move status {move.move} shows how, ister move cancel ends it")
        return "\n".join(lines)


class MoveListing(NamedTuple):
    moves: list[MoveDescription]

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [msgspec.structs.asdict(move) for move in self.moves]

    def to_text(self, paint: Paint) -> str:
        if not self.moves:
            return f"No topic was moved. {paint('dim', 'ister topic move NAME --to NODE moves one.')}"
        headings = ["MOVE", "TOPIC", "FROM", "TO", "REASON", "STAGE", "SEALED AT", "NOTES"]
        rows = [
            [
                str(move.move),
                paint("bold", move.topic),
                str(move.source),
                str(move.target),
                move.reason,
                paint(_COLOURS.get(move.stage, "bold"), move.stage),
                grouped(move.end_offset) if move.sealed_at_us else "-",
                move.detail,
            ]
            for move in self.moves
        ]
        return table(headings, "><>><<><", rows, paint)
