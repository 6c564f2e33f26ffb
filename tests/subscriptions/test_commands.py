"""`ister subscription` and `ister consume` against a real broker."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ister import sync
from ister.cli.lag_watch import Looks, Place, Speed
from ister.cli.main import NOT_FOUND, OK, USAGE, run
from tests.broker.broker_helpers import Node, on_real_disk

Ister = Callable[..., str]


def with_broker(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], work: Callable[[Ister], None]
) -> None:
    async def scenario(node: Node) -> None:
        host, port = node.address

        def ister(*args: str, code: int = OK) -> str:
            assert run(args, {"ISTER_BOOTSTRAP": f"{host}:{port}"}) == code, capsysbinary.readouterr().err
            told = capsysbinary.readouterr()
            return (told.out if code == OK else told.err).decode()

        ister.bootstrap = f"{host}:{port}"  # type: ignore[attr-defined]
        await asyncio.to_thread(work, ister)

    on_real_disk(tmp_path, scenario)


def test_what_was_consumed_is_not_shown_again(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    def work(ister: Ister) -> None:
        for value in ("one", "two", "three"):
            ister("put", "orders", value)
        ister("subscription", "create", "orders", "billing", "--kind", "shared", "--from", "start")
        assert ister("consume", "orders", "billing", "--count", "2", "--raw") == "one\ntwo\n"
        assert ister("consume", "orders", "billing", "--idle", "300ms", "--raw") == "three\n"
        assert ister("consume", "orders", "billing", "--idle", "300ms", "--raw") == ""
        shown = ister("subscription", "describe", "orders", "billing")
        assert "shared" in shown and "0 records of 3" in shown
        (listed,) = ister("subscription", "list", "--output", "json").splitlines()
        assert json.loads(listed)["subscription"] == "billing"
        assert "billing" in ister("subscription", "list", "orders")
        ister("subscription", "delete", "orders", "billing", "--yes")
        assert "no subscription billing" in ister("consume", "orders", "billing", code=NOT_FOUND)
        assert "no subscriptions" in ister("subscription", "list")

    with_broker(tmp_path, capsysbinary, work)


def test_lag_is_watched_with_rates_until_it_has_caught_up(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    def work(ister: Ister) -> None:
        for value in ("one", "two", "three"):
            ister("put", "orders", value)
        ister("subscription", "create", "orders", "billing", "--kind", "shared", "--from", "start")
        watched = ("lag", "--watch", "--count", "2", "--interval", "10ms")
        first, second = map(json.loads, ister(*watched, "--output", "json").splitlines())
        assert (first["subscription"], first["records_behind"], first["records_per_second"]) == (
            "billing",
            3,
            None,
        )
        assert (second["records_per_second"], second["catches_up_s"]) == (0, None)
        line = ister(*watched, "orders").splitlines()[1]
        assert "subscription billing of default/orders: 3 records" in line and "never at this rate" in line
        ister("consume", "orders", "billing", "--idle", "300ms")
        assert "catches up: now" in ister(*watched).splitlines()[1]
        assert "nothing else looks twice" in ister("lag", "--count", "2", code=USAGE)

    with_broker(tmp_path, capsysbinary, work)


@pytest.mark.parametrize(
    ("behind", "end", "read", "written", "catches_up"),
    [
        (40, 100, 5.0, 0.0, 8.0),
        (40, 150, 10.0, 5.0, 8.0),
        (95, 200, 9.5, 10.0, None),
        (0, 100, 9.0, 0.0, 0.0),
    ],
)
def test_it_catches_up_by_how_much_faster_it_is_than_the_writers(
    behind: int, end: int, read: float, written: float, catches_up: float | None
) -> None:
    key, looks = ("subscription", 1, "s"), Looks()
    (first,) = looks.add(0.0, [Place(key, "t", 100, 90, 1.0)])
    assert first.speed is None
    (shown,) = looks.add(10.0, [Place(key, "t", end, behind, 1.0)])
    assert shown.speed == Speed(read, written)
    assert shown.speed.catch_up_s(behind) == catches_up


def test_dead_letters_are_counted_and_put_back_once(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    def work(ister: Ister) -> None:
        policy = ("--on-failure", "dead-letter", "--max-redeliveries", "0", "--backoff", "10ms")
        for value in ("good", "poison"):
            ister("put", "orders", value, "--key", "k")
        ister("subscription", "create", "orders", "s", "--kind", "shared", "--from", "start", *policy)
        with sync.connect(ister.bootstrap) as log, log.subscribe("orders", "s") as subscription:  # type: ignore[attr-defined]
            for message in subscription:
                if message.value == b"good":
                    message.ack()
                    continue
                message.nack(reason="bad")
                break
            looks = 200
            while not (topics := log.list_topics("default/orders.s.dead")) or not topics[0].end_offset:
                looks -= 1
                assert looks, "no dead letter was written"
                time.sleep(0.05)
        (listed,) = ister("dlq", "list", "--output", "json").splitlines()
        assert (json.loads(listed)["records"], json.loads(listed)["not_replayed"]) == (1, 1)
        assert "put 1 record " in ister("dlq", "replay", "orders", "s")
        assert "put 0 records" in ister("dlq", "replay", "orders", "s")
        assert "orders.s.dead" in ister("dlq", "list")
        assert ister("get", "orders", "2", "--format", "%k %v %h\\n") == "k poison \n"
        assert "dead" in ister("subscription", "describe", "orders", "s")

    with_broker(tmp_path, capsysbinary, work)
