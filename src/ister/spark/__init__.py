"""Ister under Spark: topics as tables, tables into topics, and jobs over whole topics.

    from ister.spark import local_session, tier

    spark = local_session()
    spark.read.format("ister").option("subscribe", "orders").load().show()
    tier(spark, "orders", to="delta", path="/lake/orders")

A session that somebody else made needs nothing at all: Spark finds the source by itself where `ister` is
installed. `register` is for those that can't look for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ister.spark.jobs.audit import audit
    from ister.spark.jobs.compact import compact
    from ister.spark.jobs.lag import lag
    from ister.spark.jobs.latest import latest_by_key
    from ister.spark.jobs.mirror import mirror
    from ister.spark.jobs.replay import replay
    from ister.spark.jobs.tier import tier
    from ister.spark.sessions.java import Java, find_java
    from ister.spark.sessions.local import local_session, register
    from ister.spark.sessions.opening import session
    from ister.spark.sessions.segments import segments
    from ister.spark.source.snapshots import snapshot

__all__ = [
    "Java",
    "audit",
    "compact",
    "find_java",
    "lag",
    "latest_by_key",
    "local_session",
    "mirror",
    "register",
    "replay",
    "segments",
    "session",
    "snapshot",
    "tier",
]

_HOMES = {
    "Java": "sessions.java",
    "find_java": "sessions.java",
    "local_session": "sessions.local",
    "register": "sessions.local",
    "segments": "sessions.segments",
    "session": "sessions.opening",
    "latest_by_key": "jobs.latest",
    "snapshot": "source.snapshots",
    **{name: f"jobs.{name}" for name in ("audit", "compact", "lag", "mirror", "replay", "tier")},
}


def __getattr__(name: str) -> Any:
    """Imported when it is used: Spark starts a process for each commit, which needs none of it."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"ister.spark.{_HOMES[name]}"), name)
