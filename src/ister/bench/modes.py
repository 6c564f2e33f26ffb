"""What `ister bench` can measure: append, latency, fanin and topics here, reading in `reads`.

Each mode takes a session and returns its fields. Whatever can be made before the clock starts is made
before; connections and topics are warm; every phase is repeated, with its bare loop beside it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from typing import Final

from ister.bench.fanin import Fanin
from ister.bench.figures import Fields, Repetition, percentile, rounded
from ister.bench.load import append_batches, describe
from ister.bench.raw import now, raw_file, time_writes
from ister.bench.reads import measure_read
from ister.bench.session import Session, Settings, open_session, run_loop
from ister.bench.target import open_target
from ister.bench.workload import Workload
from ister.frame import encode

_BLOCK: Final = 100
"""Lone appends in a row before as many bare writes: short enough for both to meet the same weather."""


async def measure_append(session: Session) -> Fields:
    """Batches through `log.append`, several in flight. Once to warm up, then measured; a topic each."""
    work, batches = session.work, session.work.batches()
    repetitions: list[Repetition] = []
    for number in range(1 + work.repeats):
        topic = await session.new_topic()
        await session.log.append(topic, batches[0])
        if number == 0:
            await append_batches(session.log, [topic], batches, work)
        else:
            repetitions.append(
                await session.measure(lambda topic=topic: append_batches(session.log, [topic], batches, work))  # type: ignore[misc]
            )
        await session.drop_topics()  # what is on the disk is bounded, however often it is repeated
    return await session.report(repetitions, in_flight=work.in_flight)


async def measure_latency(session: Session) -> Fields:
    """One append at a time, each answered before the next; bare writes of the same size in between."""
    work, values = session.work, session.work.batches()[0]
    frame_bytes = len(encode(values))
    topic = await session.new_topic()
    for _ in range(_BLOCK):
        await session.log.append(topic, values)
    repetitions: list[Repetition] = []
    raw_latencies: list[float] = []
    for _ in range(work.repeats):
        latencies: list[float] = []
        raw_seconds: list[float] = []
        with raw_file(session.target.directory) as file:
            for first in range(0, work.batch_count, _BLOCK):
                count = min(_BLOCK, work.batch_count - first)
                for _ in range(count):
                    began = now()
                    await session.log.append(topic, values)
                    latencies.append(now() - began)
                raw_seconds += time_writes(
                    file, count * frame_bytes, frame_bytes, position=first * frame_bytes
                )
        phase = describe(work, values, sum(latencies), latencies)
        repetitions.append(
            Repetition(
                phase.records, phase.record_bytes, phase.seconds, latencies, sum(raw_seconds), frame_bytes
            )
        )
        raw_latencies += raw_seconds
    raw_p50_ms = percentile(sorted(raw_latencies), 0.5) * 1000
    fields = await session.report(repetitions, in_flight=1, raw_p50_ms=rounded(raw_p50_ms))
    return {**fields, "p50_ratio_to_raw": rounded(float(fields["p50_ms"]) / raw_p50_ms)}


async def measure_fanin(session: Session) -> Fields:
    """Many connections, several appends in flight on each."""
    work, values = session.work, session.work.batches()[0]
    repetitions: list[Repetition] = []
    async with Fanin(session.target.bootstrap, work.connections) as fanin:
        for _ in range(work.repeats):
            topic = await session.new_topic()
            await session.log.append(topic, values)
            repetitions.append(
                await session.measure(lambda topic=topic: fanin.run(topic, values, work))  # type: ignore[misc]
            )
    return await session.report(repetitions, in_flight=work.in_flight, connections=work.connections)


async def measure_topics(session: Session) -> Fields:
    """Batches to many topics in turn, and to one topic right beside it, by the same program."""
    work, batches, log = session.work, session.work.batches(), session.log
    topics = [await session.new_topic() for _ in range(work.topics)]
    for topic in topics:
        await log.append(topic, batches[0][:1])
    alone: list[Repetition] = []
    repetitions: list[Repetition] = []
    for _ in range(work.repeats):
        alone.append(await session.measure(lambda: append_batches(log, topics[:1], batches, work)))
        repetitions.append(await session.measure(lambda: append_batches(log, topics, batches, work)))
    ratios = [one.records_per_s / other.records_per_s for one, other in zip(repetitions, alone, strict=True)]
    return await session.report(
        repetitions,
        in_flight=work.in_flight,
        topics=work.topics,
        one_topic_records_per_s=rounded(median(one.records_per_s for one in alone)),
        ratio_to_one_topic=rounded(median(ratios)),
    )


@dataclass(frozen=True)
class Mode:
    """A kind of bench, and how much of it is done when nobody says."""

    measure: Callable[[Session], Awaitable[Fields]]
    defaults: Workload


MODES: Final = {
    "append": Mode(
        measure_append, Workload(records=5_000_000, size=100, batch=1000, in_flight=16, repeats=3)
    ),
    "latency": Mode(measure_latency, Workload(records=2000, size=100, batch=1, in_flight=1)),
    "read": Mode(measure_read, Workload(records=300_000, size=1024, batch=1000, in_flight=8)),
    "fanin": Mode(measure_fanin, Workload(records=200_000, size=100, batch=1, in_flight=16, connections=64)),
    "topics": Mode(
        measure_topics, Workload(records=2_000_000, size=100, batch=1000, in_flight=64, topics=1000)
    ),
}


def run_bench(name: str, work: Workload, bootstrap: str | None, settings: Settings) -> Fields:
    """Measure one mode on a broker of the bench's own, or on the one at `bootstrap`."""

    async def conversation() -> Fields:
        async with open_session(target, work, settings) as session:
            return {"mode": name, **await MODES[name].measure(session)}

    with open_target(bootstrap) as target:
        return run_loop(conversation())
