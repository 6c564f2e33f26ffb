"""A failover over time: appends to the topic that lost its leader, and to one that did not."""

from __future__ import annotations

from typing import Any

from bench.cluster.timeline import Picture, Series, draw_picture, numbers


def draw_failover(timeline: dict[str, Any]) -> str:
    """As `bench.replication.failover` keeps it."""
    resumed = float(timeline["resumed_s"])
    also = " and the metadata" if timeline["led_metadata"] else ""
    return draw_picture(
        Picture(
            title=f"kill -9 of node {timeline['killed_node']}, which leads a topic's open segment{also}",
            said=f"Appends to the topic wait, and are acknowledged again after {resumed:.2f} s.",
            start_s=float(timeline["start_s"]),
            bin_s=float(timeline["bin_s"]),
            outage_s=resumed,
            outage_words=f"appends acknowledged again after {resumed:.2f} s",
            series=[
                Series("other-append", "append to a topic of another node", numbers(timeline["others_ms"])),
                Series("write", "append to the topic of the killed node", numbers(timeline["appends_ms"])),
            ],
        )
    )
