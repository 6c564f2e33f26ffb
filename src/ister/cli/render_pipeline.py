"""What the jobs of `ister pipeline` return, as text and as objects for scripts, whose keys stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ister.cli.common import counted
from ister.cli.render import pairs, show_bytes
from ister.cli.terminal import Paint

if TYPE_CHECKING:
    from ister.spark.jobs.tier import Tiered


class TierView(NamedTuple):
    done: Tiered

    def to_objects(self) -> Sequence[dict[str, Any]]:
        done = self.done
        return [
            {
                "job": "tier",
                "topic": done.topic,
                "uid": done.uid,
                "to": done.to,
                "table": done.table,
                "start_offset": done.start_offset,
                "next_offset": done.next_offset,
                "end_offset": done.end_offset,
                "records": done.records,
                "log_bytes": done.log_bytes,
                "files": done.files,
                "file_bytes": done.file_bytes,
                "dead_letters": done.dead_letters,
                "commits": done.commits,
                "gaps": [list(gap) for gap in done.gaps],
                "optimized_files": done.optimized[0],
                "expired": done.expired,
                "vacuumed": done.vacuumed,
                "complete": done.is_complete,
                "seconds": round(done.seconds, 3),
            }
        ]

    def to_text(self, paint: Paint) -> str:
        done = self.done
        if not (done.commits or done.vacuumed or done.expired or any(done.optimized)):
            return (
                f"{done.table} has all of {done.topic}: offsets up to {done.next_offset - 1:,}"
                if (done.next_offset)
                else f"{done.topic} is empty, and so is {done.table}"
            )
        facts = [
            ("offsets", f"{done.start_offset:,} to {done.next_offset:,}"),
            ("records", f"{done.records:,}"),
            ("read", f"{show_bytes(done.log_bytes)} of the log{per_second(done.log_bytes, done.seconds)}"),
            ("written", f"{counted(done.files, 'file')}, {show_bytes(done.file_bytes)}"),
            ("commits", f"{done.commits:,}"),
        ]
        if done.dead_letters:
            facts.append(("dead letters", paint("yellow", f"{done.dead_letters:,}")))
        if done.gaps:
            missing = ", ".join(f"{start:,} to {end - 1:,}" for start, end in done.gaps)
            facts.append(("not there", paint("yellow", f"offsets {missing}")))
        if any(done.optimized):
            gone, come = done.optimized
            facts.append(("optimized", f"{counted(gone, 'file')} into {come:,}"))
        if done.expired:
            facts.append(("expired", counted(done.expired, "old version")))
        if done.vacuumed:
            facts.append(("vacuumed", counted(done.vacuumed, "file")))
        facts.append(("took", f"{done.seconds:.1f} s"))
        return "\n".join([paint("bold", f"{done.topic} -> {done.to} {done.table}"), *pairs(facts, paint)])


def per_second(size: int, seconds: float) -> str:
    return f", {size / seconds / 1e6:,.1f} MB/s" if seconds > 0 and size else ""
