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
    ledgers = [there.topic for there in await found.list_topics(f"{NAMESPACE}/app-")]
    ledgers += [topic for topic in old if topic.endswith(".ledger")]
    needed: set[str] = set()
    for ledger in ledgers:
        needed |= await _finish(found, ledger)
    for topic in old:
        if topic not in needed and ages[topic] >= FORGOTTEN_AFTER and await _is_silent(found, topic, now):
            log.warning("%s was left by a job that ended a day ago or longer: dropped", topic)
            await _delete(found, topic)


async def _finish(found: Log, ledger: str) -> set[str]:
    """Carry out what a ledger has decided; the topics that are needed yet if that fails."""
    committer = Committer(found, Origin(ledger, ledger.removesuffix("ledger") + "staged"))
    needed = {ledger}
    try:
        newest = await committer.newest()
        if newest is None or newest.done is not None:
            return set()
        needed.add(newest.manifest.stage)
        await committer.finish_newest()
    except IsterError as error:
        log.warning("%s has a job that was decided and can't be finished: %s", ledger, error.message)
        return needed
    log.warning("%s had a job that was decided and not appended: finished", ledger)
    return set()


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
