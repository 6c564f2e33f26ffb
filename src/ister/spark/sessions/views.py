"""Every topic as a temporary view, and the catalog of segments as the view `ister_segments`.

A table of a topic is a snapshot: once it was queried it never sees newer records. A person at a prompt
expects to see them, so a view is made anew when a query names it; making one costs some 50 ms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ister import sync
from ister.names import DEFAULT_NAMESPACE
from ister.spark.sessions.segments import segments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEGMENTS_VIEW: Final = "ister_segments"
MADE_AT_ONCE: Final = 200
"""Views beyond these are made when a query names them."""


class Views:
    """The views of one session, and the topics that they show."""

    def __init__(self, spark: SparkSession, log: sync.Log, bootstrap: str) -> None:
        self._spark = spark
        self._log = log
        self._bootstrap = bootstrap
        self.topics: dict[str, str] = {}
        """By view, in the order of their names."""
        self._made: set[str] = set()
        segments(spark, bootstrap).createOrReplaceTempView(SEGMENTS_VIEW)

    def refresh(self) -> None:
        """Know the topics that there are now: views of new ones are made, of deleted ones dropped."""
        names = view_names(found.topic for found in self._log.list_topics())
        for view in [view for view in self._made if names.get(view) != self.topics[view]]:
            self._spark.catalog.dropTempView(view)
            self._made.discard(view)
        self.topics = names
        for view in list(names)[:MADE_AT_ONCE]:
            if view not in self._made:
                self._make(view)

    def renew(self, query: str) -> None:
        """Make anew the views that a query names, so that it sees what the topics have now."""
        self.refresh()
        named = set(re.findall(r"\w+", query.lower()))
        for view in self.topics:
            if view.lower() in named:
                self._make(view)

    def __repr__(self) -> str:
        width = max(map(len, [SEGMENTS_VIEW, *self.topics]))
        lines = [f"{view.ljust(width)}  {topic}" for view, topic in self.topics.items()]
        return "\n".join([*lines, f"{SEGMENTS_VIEW.ljust(width)}  the segments of all topics"])

    def table(self, topic: str) -> DataFrame:
        return (
            self._spark.read.format("ister")
            .option("bootstrap.servers", self._bootstrap)
            .option("subscribe", topic)
            .load()
        )

    def _make(self, view: str) -> None:
        self.table(self.topics[view]).createOrReplaceTempView(f"`{view}`")
        self._made.add(view)


def view_names(topics: Iterable[str]) -> dict[str, str]:
    """By view: `default/orders` is `orders`, `ns/x` is `ns_x`, and what SQL does not take in a name is `_`.

    SQL does not tell upper from lower case. Of two topics that would be one view, the one whose namespace is
    `default` or comes first in the alphabet has it; the others end with `_2`, `_3`."""
    names: dict[str, str] = {}
    taken = {SEGMENTS_VIEW}
    for topic in sorted(topics, key=lambda name: (not name.startswith(f"{DEFAULT_NAMESPACE}/"), name)):
        plain = re.sub(r"[^A-Za-z0-9_]", "_", topic.removeprefix(f"{DEFAULT_NAMESPACE}/"))
        view, number = plain, 1
        while view.lower() in taken:
            number += 1
            view = f"{plain}_{number}"
        taken.add(view.lower())
        names[view] = topic
    return dict(sorted(names.items()))
