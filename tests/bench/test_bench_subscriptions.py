"""The bench of subscriptions, small: a broker, a publisher and a consumer of its own. No figure is judged."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from bench.machine import busy_of, busy_seconds
from bench.subscriptions import delivery
from bench.subscriptions.asked import Job
from bench.subscriptions.delivery import Times, measure_delivery

from ister.bench.target import own_broker

ROOT = Path(__file__).resolve().parents[2]
RATE = 2000


@pytest.mark.slow
def test_every_record_that_is_timed_is_delivered_and_a_bare_sync_is_timed_for_each_of_the_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with own_broker(tmp_path) as target:
        times = asyncio.run(measure_delivery(target, 2 * delivery.ROUND_SECONDS, RATE, 100))
    found = times.fields()
    timed = int(RATE * delivery.ROUND_SECONDS) * 2
    assert len(times.delivered) == timed
    assert len(times.acknowledged) == timed // delivery.SAMPLED
    assert all(seconds > 0 for seconds in (*times.delivered, *times.acknowledged, *times.raw))
    assert len(times.raw) > 100
    for kind in ("", "acknowledged_", "raw_"):
        assert 0 < found[f"{kind}p50_ms"] <= found[f"{kind}p99_ms"] <= found[f"{kind}max_ms"]


def test_processors_are_busy_with_all_but_idling_and_waiting_for_disks() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    stat = "cpu  1000 200 30 70000 8000 4 5 6 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
    assert busy_of(stat) == 1245 / ticks
    assert busy_seconds() > 0


def test_others_are_told_in_processors_and_never_below_zero() -> None:
    times = Times([0.001], [0.001], [0.001], others=3.0, took=2.0)
    assert times.fields()["others_cores"] == 1.5
    times.others = -0.01  # clocks that tick in hundredths
    assert times.fields()["others_cores"] == 0


def test_a_peer_is_asked_for_the_modes_that_are_wanted_and_for_no_other() -> None:
    assert Job(1, 1, 1).consuming == {"exclusive": 1, "shared": 8}
    assert Job(1, 1, 1, modes=("shared", "delivery")).consuming == {"shared": 8}
    assert Job(1, 1, 1, modes=("delivery",)).consuming == {}
