"""`ister subscription` and `ister consume` against a real broker."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ister import sync
from ister.cli.main import NOT_FOUND, OK, run
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
