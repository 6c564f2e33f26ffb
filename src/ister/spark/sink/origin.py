"""Who writes, and the system topics that it needs for that: a ledger, and a stage.

The fault model and the invariants of the whole sink are in docs/internals/spark-sink.md.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from ister.client.log import Log
from ister.errors import UnknownTopic
from ister.protocol.messages import TopicDescription

NAMESPACE: Final = "_spark"
STAGED_FOR_MS: Final = 60 * 24 * 3600 * 1000
"""So long staged records wait for a query that does not come back: one that slept for a month finishes the
batch that it was at. Little is kept for it, since what is done is trimmed with each batch."""
MAX_FRAME_BYTES: Final = 48 * 1024 * 1024
"""The largest frame that can be staged: what a reader takes, and no target's limit is meant to be above."""

_STAGE: Final[dict[str, int | str]] = {
    "segment_bytes": 64 * 1024 * 1024,  # what is done is dropped in whole segments
    "segment_age_ms": 3600 * 1000,
    "retention_ms": STAGED_FOR_MS,
    "retention_bytes": 0,
    "max_message_bytes": MAX_FRAME_BYTES,
    "fsync": "fsync",
}
_LEDGER: Final[dict[str, int | str]] = {
    "segment_records": 1000,
    "segment_age_ms": 0,
    "retention_ms": 0,
    "retention_bytes": 0,
    "max_message_bytes": MAX_FRAME_BYTES,
    "fsync": "fsync",
}
_JOB: Final = re.compile(rf"{NAMESPACE}/job-(\d{{8}}T\d{{6}})-[0-9a-f]+\.(staged|ledger)\Z")
_JOBS_TIME: Final = "%Y%m%dT%H%M%S"


@dataclass(frozen=True)
class Origin:
    """A query, a job, or an application that names itself: what it commits is decided in `ledger`."""

    ledger: str
    stage: str

    @classmethod
    def of_query(cls, query_id: str) -> Self:
        name = f"{NAMESPACE}/query-{query_id}"
        return cls(f"{name}.ledger", f"{name}.staged")

    @classmethod
    def of_job(cls, now: datetime | None = None) -> Self:
        """A new one, named by chance and by when it began: who sweeps need not ask."""
        began = (now or datetime.now(UTC)).strftime(_JOBS_TIME)
        name = f"{NAMESPACE}/job-{began}-{os.urandom(8).hex()}"
        return cls(f"{name}.ledger", f"{name}.staged")

    @classmethod
    def of_application(cls, app_id: str, now: datetime | None = None) -> Self:
        """One ledger for all of its jobs; each of them has a stage of its own."""
        digest = hashlib.blake2b(app_id.encode(), digest_size=16).hexdigest()
        return cls(f"{NAMESPACE}/app-{digest}.ledger", cls.of_job(now).stage)

    @classmethod
    def named(cls, name: str) -> Self:
        """For those who have a name of their own, such as a mirror."""
        return cls(f"{NAMESPACE}/{name}.ledger", f"{NAMESPACE}/{name}.staged")


def is_a_jobs(topic: str) -> bool:
    """Whether a system topic goes when its job is done."""
    return _JOB.match(topic) is not None


def age_of_job(topic: str, now: datetime) -> timedelta | None:
    """How long ago the job began that has this topic; None if it is no job's."""
    found = _JOB.match(topic)
    return None if found is None else now - datetime.strptime(found[1], _JOBS_TIME).replace(tzinfo=UTC)


async def find_stage(log: Log, topic: str) -> TopicDescription:
    """The stage of a query, made if it is not there. A job's is made by its driver and by nobody else: a task
    that outlives its job must not bring it back."""
    try:
        return await log.describe_topic(topic)
    except UnknownTopic:
        if is_a_jobs(topic):
            raise
        return await make_stage(log, topic)


async def make_stage(log: Log, topic: str) -> TopicDescription:
    return await log.create_topic(topic, if_absent=True, **_STAGE)


async def make_ledger(log: Log, topic: str) -> TopicDescription:
    return await log.create_topic(topic, if_absent=True, **_LEDGER)
