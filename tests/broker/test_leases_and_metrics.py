"""Leases at the broker's edge, what the logs say of them, and the metrics that a scrape finds."""

from __future__ import annotations

import asyncio
import logging
import urllib.request
from pathlib import Path

import pytest
from broker_helpers import Node, SimNode, frame_of, real_config, refusal, request, simulated
from prometheus_client.parser import text_string_to_metric_families

from ister.broker.node.process import start
from ister.errors import BadRequest, NotLeader
from ister.frame import FrameHeader
from ister.frame import decode_header as decode_frame_header
from ister.io.network import TcpNetwork
from ister.protocol import messages
from ister.protocol.codec import decode_header
from ister.protocol.messages import Kind


def test_an_append_without_a_lease_is_not_leader_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A1, A4."""

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.append("t", frame_of(b"x"))
        await client.append("u", frame_of(b"x"))
        node.broker.revoke_leases("t")
        error = await refusal(client.append("t", frame_of(b"y")), NotLeader)
        assert error.retriable and "default/t:1" in error.message
        assert (await client.append("u", frame_of(b"y"))).base_offset == 1
        assert await client.values("t") == [b"x"]
        node.broker.restore_leases()
        assert (await client.append("t", frame_of(b"z"))).base_offset == 1
        assert node.broker.metrics.values()["lease_rejection_count"] == 1

    with caplog.at_level(logging.DEBUG, "ister.wal.leases"):
        simulated(scenario)
    rejected = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in rejected] == [
        "write rejected for default/t:1 (leases: {default/u:1})"
    ]
    changes = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert "update_leases: added {default/t:1}, removed {}" in changes
    assert "update_leases: added {}, removed {default/t:1}" in changes


def test_a_rejection_that_repeats_is_logged_once_and_then_with_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.append("t", frame_of(b"x"))
        node.broker.revoke_leases("t")
        for _ in range(20):
            await refusal(client.append("t", frame_of(b"y")), NotLeader)
        await asyncio.sleep(11)
        node.broker.sync_leases()

    with caplog.at_level(logging.WARNING, "ister.wal.leases"):
        simulated(scenario)
    assert caplog.messages == [
        "write rejected for default/t:1 (leases: {})",
        "write rejected for default/t:1, 19 times more since it was last said",
    ]


def test_a_lease_lost_between_enqueue_and_write_refuses_the_append(caplog: pytest.LogCaptureFixture) -> None:
    """A4: the lease is asked for again before the write."""

    class Sink:
        def __init__(self) -> None:
            self.answers: list[object] = []

        def appended(self, token: int, base_offset: int, append_time_us: int, leader: int = 0) -> None:
            self.answers.append(base_offset)

        def refused(self, token: int, error: Exception) -> None:
            self.answers.append(type(error))

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.append("t", frame_of(b"x"))
        frame = bytearray(frame_of(b"too late"))
        header = decode_frame_header(frame)
        assert isinstance(header, FrameHeader)
        sink = Sink()
        node.broker.append("default/t", frame, header, sink, 1, 0.0)
        node.broker.revoke_leases()
        await asyncio.sleep(1)
        assert sink.answers == [NotLeader]
        node.broker.restore_leases()
        assert (await client.append("t", frame_of(b"y"))).base_offset == 1
        assert await client.values("t") == [b"x", b"y"]

    with caplog.at_level(logging.WARNING, "ister.wal.leases"):
        simulated(scenario)
    assert "write rejected for default/t:1 (leases: {})" in caplog.messages


MOVING = {
    "ister_append_duration_seconds_count",
    "ister_fetch_duration_seconds_count",
    "ister_fsync_duration_seconds_count",
    "ister_group_commit_frames_count",
    "ister_bytes_in_total",
    "ister_bytes_out_total",
    "ister_records_in_total",
    "ister_records_out_total",
    "ister_active_lease_count",
    "ister_lease_rejection_count_total",
    "ister_lease_update_duration_seconds_count",
    "ister_connections",
    "ister_topics",
    "ister_hot_tail_bytes",
}
STILL = {"ister_in_flight_bytes", "ister_paused_connections", "ister_flush_failures_total"}


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "le" not in sample.labels
    }


def test_a_scrape_has_every_metric_and_they_move(tmp_path: Path) -> None:
    async def main() -> None:
        running = await start(real_config(tmp_path, admin_port=0))
        try:
            node = Node(running.broker, running.server, TcpNetwork())
            before = await asyncio.to_thread(scrape, running.info.admin_port)
            client = await node.connect()
            await client.append("t", frame_of(b"a", b"b", b"c"))
            assert len(await client.values("t")) == 3
            running.broker.revoke_leases()
            await refusal(client.append("t", frame_of(b"x")), NotLeader)
            running.broker.restore_leases()
            after = await asyncio.to_thread(scrape, running.info.admin_port)
            answer = await client.call(Kind.STATS, messages.Empty())
            stats = decode_header(messages.StatsAnswer, answer.header)
        finally:
            await running.stop()
        assert set(before) >= MOVING | STILL
        assert {name for name in MOVING if after[name] <= before[name]} == set()
        assert after["ister_records_in_total"] == after["ister_records_out_total"] == 3
        assert {name for name in STILL if after[name] != 0} == set()
        assert stats.metrics["records_in_total"] == 3

    asyncio.run(main())


def test_records_out_counts_what_was_sent_from_memory_and_from_disk() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.create("t", segment_records=50)
        for number in range(0, 120, 3):
            await client.append("t", frame_of(*(b"%d" % (number + n) for n in range(3))))
        before = node.broker.metrics.values()["records_out_total"]
        assert len(await client.values("t")) == 120
        assert node.broker.metrics.values()["records_out_total"] - before == 120
        client.send(request(7, Kind.FETCH, messages.Fetch("t", 100, 1)))
        await client.answer()
        assert node.broker.metrics.values()["records_out_total"] - before == 123

    simulated(scenario)
    simulated(scenario, hot_tail_bytes=0)


def test_an_unknown_path_of_the_admin_port_does_no_harm(tmp_path: Path) -> None:
    async def main() -> None:
        running = await start(real_config(tmp_path, admin_port=0))
        try:
            assert await asyncio.to_thread(scrape, running.info.admin_port)
            node = Node(running.broker, running.server, TcpNetwork())
            stranger = await node.connect_raw()
            stranger.send(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert type((await stranger.answer()).error) is BadRequest
        finally:
            await running.stop()

    asyncio.run(main())
