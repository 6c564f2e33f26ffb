"""Merging the objects of a topic in a simulated cluster, as a job does it: plan, copy, have them replaced."""

from __future__ import annotations

import ister
from ister.history.merging import merge, plan_merges
from ister.io.object_store import ObjectStore
from ister.protocol.history import ObjectsMerged

LARGE = 1 << 30


async def compact(
    log: ister.Log, store: ObjectStore, topic: str = "t", object_bytes: int = LARGE
) -> list[ObjectsMerged]:
    """What came of each object that was made."""
    listed = await log.history(topic)
    cluster = (await log.cluster()).cluster_id
    return [
        await log.merge_objects(
            topic, listed.topic_uid, (await merge(store, wanted)).attempt, wanted.replaced()
        )
        for wanted in plan_merges(listed, cluster, object_bytes)
    ]
