"""Ister under Spark: topics as tables, tables into topics.

    from ister.spark import local_session

    spark = local_session()
    spark.read.format("ister").option("subscribe", "orders").load().show()

A session that somebody else made needs nothing at all: Spark finds the source by itself where `ister` is
installed. `register` is for those that can't look for it.
"""

from ister.spark.sessions.java import Java, find_java
from ister.spark.sessions.local import local_session, register
from ister.spark.sessions.opening import session
from ister.spark.sessions.segments import segments

__all__ = ["Java", "find_java", "local_session", "register", "segments", "session"]
