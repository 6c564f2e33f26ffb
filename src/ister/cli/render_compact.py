"""What compact returns, as text and as objects for scripts, whose keys stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ister.cli.common import counted
from ister.cli.render import grouped, pairs, show_bytes
from ister.cli.render_pipeline import per_second
from ister.cli.terminal import Paint

if TYPE_CHECKING:
    from ister.spark.jobs.compact import Compacted
    from ister.spark.jobs.latest import Latest


class CompactView(NamedTuple):
    done: Compacted

    def to_objects(self) -> Sequence[dict[str, Any]]:
        done = self.done
        return [
            {
                "job": "compact",
                "topic": done.topic,
                "objects_before": done.objects,
                "objects_after": done.objects - done.replaced + len(done.merged),
                "merged": [one._asdict() for one in done.merged],
                "left": [one._asdict() for one in done.left],
                "bytes": done.bytes,
                "complete": done.is_complete,
                "seconds": round(done.seconds, 3),
            }
        ]

    def to_text(self, paint: Paint) -> str:
        done = self.done
        if not done.merged and not done.left:
            return f"nothing to merge: {done.topic} has {counted(done.objects, 'object')} in its history"
        after = done.objects - done.replaced + len(done.merged)
        facts = [
            ("objects", f"{grouped(done.objects)} before, {grouped(after)} now"),
            ("merged", f"{counted(sum(one.segments for one in done.merged), 'segment')}"),
            ("copied", f"{show_bytes(done.bytes)}{per_second(done.bytes, done.seconds)}"),
            ("took", f"{done.seconds:.1f} s"),
        ]
        for one in done.left:
            facts.insert(
                -1, ("as it was", paint("yellow", f"{one.start_offset:,} to {one.end_offset - 1:,}"))
            )
        return "\n".join([paint("bold", done.topic), *pairs(facts, paint)])


class LatestView(NamedTuple):
    done: Latest

    def to_objects(self) -> Sequence[dict[str, Any]]:
        done = self.done
        return [
            {
                "job": "compact",
                "topic": done.topic,
                "target": done.target,
                "start_offset": done.start_offset,
                "end_offset": done.end_offset,
                "records": done.records,
                "deleted": done.deleted,
                "without_key": done.without_key,
                "gaps": [list(gap) for gap in done.gaps],
                "complete": done.is_complete,
                "seconds": round(done.seconds, 3),
            }
        ]

    def to_text(self, paint: Paint) -> str:
        done = self.done
        if not done.end_offset:
            return f"nothing to do: {done.topic} has no records"
        if done.start_offset >= done.end_offset:
            return f"{done.target} has the latest of {done.topic}: offsets up to {done.end_offset - 1:,}"
        facts = [
            ("offsets", f"{done.start_offset:,} to {done.end_offset:,}"),
            ("records", f"{grouped(done.records)}, of as many keys"),
            ("took", f"{done.seconds:.1f} s"),
        ]
        if done.deleted:
            facts.insert(-1, ("deleted", f"{counted(done.deleted, 'key')} of them"))
        if done.gaps:
            missing = ", ".join(f"{start:,} to {end - 1:,}" for start, end in done.gaps)
            facts.insert(-1, ("not there", paint("yellow", f"offsets {missing}")))
        if done.without_key:
            facts.insert(-1, ("left out", paint("yellow", f"{done.without_key:,} without a key")))
        return "\n".join(
            [paint("bold", f"{done.topic} -> {done.target}, latest by key"), *pairs(facts, paint)]
        )
