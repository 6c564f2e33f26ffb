"""`ister topic move`, `unload`, `ister move`, `ister node drain` and `activate`, `ister cluster balance`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cli_fakes import FakeLog, Ister


def objects(cli: Ister, *args: str) -> list[dict[str, Any]]:
    outcome = cli(*args, "--output", "json")
    assert outcome.code == 0
    return [json.loads(line) for line in outcome.out.splitlines()]


def test_a_move_is_begun_and_followed_to_its_end(cli: Ister, log: FakeLog) -> None:
    outcome = cli("topic", "move", "events", "--to", "3")
    assert (outcome.code, log.administered) == (0, [("move_topic", "events", 3)])
    said = outcome.out.decode()
    assert "move 7 of default/events: done, node 1 to node 3" in said
    assert "sealed at offset 22; node 3 goes on from there" in said
    assert "move 7: requested" in outcome.err


def test_a_plan_moves_nothing_and_a_failed_move_exits_with_1(cli: Ister, log: FakeLog) -> None:
    outcome = cli("topic", "move", "events", "--to", "3", "--plan")
    assert (outcome.code, log.administered) == (0, [("move_topic", "events", 3, "plan")])
    log.stages, log.detail = ["failed"], "node 3 does not answer"
    outcome = cli("topic", "unload", "events")
    assert outcome.code == 1
    assert "node 3 does not answer" in outcome.out.decode()


def test_any_releases_and_what_is_no_node_is_refused(cli: Ister, log: FakeLog) -> None:
    assert cli("topic", "move", "events", "--to", "any").code == 0
    assert log.administered == [("release_topic", "events")]
    assert cli("topic", "move", "events", "--to", "any", "--plan").code == 2
    assert "a node's number, or `any`" in cli("topic", "move", "events", "--to", "x").err


def test_moves_are_listed_shown_and_cancelled(cli: Ister, log: FakeLog) -> None:
    log.stages = ["done", "failed"]
    assert "default/events" in cli("move", "list").out.decode()
    assert [row["stage"] for row in objects(cli, "move", "list")] == ["done", "failed"]
    assert objects(cli, "move", "status", "7")[0]["end_offset"] == 22
    assert "cancelled" in cli("move", "cancel", "7").out.decode()
    assert log.administered == [("cancel_move", 7)]


def test_a_drain_is_followed_until_the_node_holds_nothing(cli: Ister, log: FakeLog) -> None:
    log.drains = [2, 1, 0]
    outcome = cli("node", "drain", "3", "--max-parallel", "2")
    assert outcome.code == 0
    assert log.administered == [("drain_node", 3, 2)] * 3
    assert "node 3 holds nothing" in outcome.out.decode()
    assert "node 3 has 2 led topics" in outcome.err
    log.drains = [5]
    late = cli("node", "drain", "3", "--timeout", "1ms")
    assert (late.code, "the drain goes on" in late.out.decode()) == (1, True)
    dry = cli("node", "drain", "3", "--dry-run")
    assert (dry.code, "nothing was changed" in dry.out.decode()) == (0, True)
    assert cli("node", "activate", "3").code == 0


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--strategy", "weighted")])
def test_balance_shows_burdens_and_moves(cli: Ister, log: FakeLog, options: tuple[str, ...]) -> None:
    outcome = cli("cluster", "balance", *options)
    assert outcome.code == 0
    said = outcome.out.decode()
    assert "default/events: node 1 to node 2" in said
    assert ("would vary" if options == ("--dry-run",) else "will vary") in said
    assert objects(cli, "cluster", "balance", *options)[0]["before"] == 1.0
