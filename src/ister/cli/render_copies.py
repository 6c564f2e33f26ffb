"""What mirror and replay return, as text and as objects for scripts, whose keys stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ister.cli.render import grouped, pairs, show_bytes, table
from ister.cli.render_pipeline import per_second
from ister.cli.terminal import Paint

if TYPE_CHECKING:
    from ister.spark.jobs.mirror import MappedRange, Mirrored
    from ister.spark.jobs.replay import Replayed


class MirrorView(NamedTuple):
    done: Mirrored

    def to_objects(self) -> Sequence[dict[str, Any]]:
        done = self.done
        return [
            {
                "job": "mirror",
                "topic": done.topic,
                "target": done.target,
                "start_offset": done.start_offset,
                "next_offset": done.next_offset,
                "end_offset": done.end_offset,
                "records": done.records,
                "bytes": done.bytes,
                "batches": done.batches,
                "map_topic": done.map_topic,
                "complete": done.is_complete,
                "seconds": round(done.seconds, 3),
            }
        ]

    def to_text(self, paint: Paint) -> str:
        done = self.done
        if not done.batches and done.is_complete:
            return f"{done.target} has all of {done.topic}: offsets up to {done.next_offset - 1:,}"
        facts = [
            ("offsets", f"{done.start_offset:,} to {done.next_offset:,}"),
            ("records", grouped(done.records)),
            ("copied", f"{show_bytes(done.bytes)}{per_second(done.bytes, done.seconds)}"),
            ("batches", grouped(done.batches)),
            ("took", f"{done.seconds:.1f} s"),
        ]
        return "\n".join([paint("bold", f"{done.topic} -> {done.target}"), *pairs(facts, paint)])


class MapView(NamedTuple):
    topic: str
    target: str
    ranges: list[MappedRange]

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [
            {"source_offset": part.source, "target_offset": part.target, "count": part.count}
            for part in self.ranges
        ]

    def to_text(self, paint: Paint) -> str:
        if not self.ranges:
            return f"Nothing of {self.topic} was mirrored to {self.target} yet."
        rows = [[grouped(part.source), grouped(part.target), grouped(part.count)] for part in self.ranges]
        return table([f"FROM {self.topic}", f"IN {self.target}", "RECORDS"], ">>>", rows, paint)


class ReplayView(NamedTuple):
    done: Replayed
    receipt: str | None
    is_compared: bool

    def to_objects(self) -> Sequence[dict[str, Any]]:
        done = self.done
        return [
            {
                "job": "replay",
                "topic": done.topic,
                "target": done.target,
                "start_offset": done.start_offset,
                "end_offset": done.end_offset,
                "records": done.records,
                "bytes": done.bytes,
                "was_done": done.was_done,
                "target_start": done.target_start,
                "receipt": self.receipt,
                "compared": self.is_compared,
                "seconds": round(done.seconds, 3),
            }
        ]

    def to_text(self, paint: Paint) -> str:
        done = self.done
        facts = [("offsets", f"{done.start_offset:,} to {done.end_offset:,}")]
        if done.was_done:
            facts.append(("records", "nothing: this replay is there already; --again does it once more"))
        else:
            facts.append(("records", grouped(done.records)))
            facts.append(("copied", f"{show_bytes(done.bytes)}{per_second(done.bytes, done.seconds)}"))
        if done.target_start is not None:
            facts.append(("begins at", f"offset {done.target_start:,} of {done.target}"))
        if self.receipt is not None:
            said = "is what was read, to the last bit" if self.is_compared else "written"
            facts.append(("receipt", f"{self.receipt}, {said}"))
        facts.append(("took", f"{done.seconds:.1f} s"))
        return "\n".join([paint("bold", f"{done.topic} -> {done.target}"), *pairs(facts, paint)])
