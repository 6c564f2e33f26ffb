"""What drivers that died have left: jobs that were decided are finished, those that were not are dropped.

Called behind each job. To finish a job twice, or beside its own driver, appends nothing twice; and a job is
dropped only when it is so old that no driver can still be at it.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Final

from ister.client.log import Log
from ister.errors import IsterError, UnknownTopic
from ister.spark.sink.committing import Committer
from ister.spark.sink.origin import NAMESPACE, Origin, age_of_job

log = logging.getLogger("ister.spark")

UNFINISHED_AFTER: Final = timedelta(minutes=10)
FORGOTTEN_AFTER: Final = timedelta(days=1)


async def sweep(found: Log, now: datetime) -> None:
    """Look at what is older than a job that is just being written."""
    topics = [there.topic for there in await found.list_topics(f"{NAMESPACE}/job-")]
    ages = {topic: age for topic in topics if (age := age_of_job(topic, now)) is not None}
    old = [topic for topic in topics if ages.get(topic, timedelta()) >= UNFINISHED_AFTER]
    if not old:
        return
    named = await _finish_applications(found)
    for topic in old:
        if topic.endswith(".ledger"):
            await _finish(found, topic)
    for topic in old:
        if topic not in named and ages[topic] >= FORGOTTEN_AFTER and await _is_silent(found, topic, now):
            log.warning("%s was left by a job that ended a day ago or longer: dropped", topic)
            await _delete(found, topic)


async def _finish_applications(found: Log) -> set[str]:
    """Stages that the newest version of an application may still need."""
    named = set()
    for there in await found.list_topics(f"{NAMESPACE}/app-"):
        manifest = await _finish(found, there.topic)
        if manifest is not None:
            named.add(manifest)
    return named


async def _finish(found: Log, ledger: str) -> str | None:
    """Carry out what a ledger has decided; the stage that it needs if that fails."""
    committer = Committer(found, Origin(ledger, ledger.removesuffix("ledger") + "staged"))
    try:
        newest = await committer.newest()
        if newest is None or newest.done is not None:
            return None
        await committer.finish_newest()
        log.warning("%s had a job that was decided and not appended: finished", ledger)
        return None
    except IsterError as error:
        log.warning("%s has a job that was decided and can't be finished: %s", ledger, error.message)
        return newest.manifest.stage if newest is not None else None


async def _is_silent(found: Log, topic: str, now: datetime) -> bool:
    try:
        there = await found.describe_topic(topic)
    except UnknownTopic:
        return False
    last_us = max((segment.last_append_time_us for segment in there.segments), default=0)
    return last_us <= (now - FORGOTTEN_AFTER).timestamp() * 1_000_000


async def _delete(found: Log, topic: str) -> None:
    try:
        await found.delete_topic(topic)
    except UnknownTopic:
        return
