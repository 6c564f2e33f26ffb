"""What `ister spark check` says of what it found, without Spark."""

from __future__ import annotations

import json

import msgspec
import pytest
from py4j_texts import NO_ARROW, NO_PYTHON, OTHER_PYTHON

from ister.cli.spark import Checked
from ister.cli.terminal import Paint
from ister.spark.sessions.checking import (
    Line,
    check_brokers,
    check_driver,
    cluster_of,
    executor_lines,
    failed_job,
)
from ister.spark.sessions.probe import Report, make_probe
from ister.spark.sessions.reach import Greeting

DRIVER = Report(
    "driver",
    1,
    "/venv/python",
    "3.11.7",
    {"pyspark": "4.3.0", "pyarrow": "26.0.1", "ister": "0.1.0"},
    [Greeting("10.0.0.1:9091", "aaaa", 1, 0.5), Greeting("10.0.0.2:9091", "aaaa", 2, 0.5)],
)


def failing(report: Report) -> list[Line]:
    return [line for line in executor_lines(report, DRIVER) if not line.ok]


def changed(**fields: object) -> Report:
    return msgspec.structs.replace(DRIVER, host="w1", process=7, **fields)


def test_an_executor_like_the_driver_has_nothing_to_mend() -> None:
    lines = list(executor_lines(changed(), DRIVER))
    assert failing(changed()) == []
    assert [line.what for line in lines] == [
        "python",
        "pyspark",
        "pyarrow",
        "ister",
        "broker 10.0.0.1:9091",
        "broker 10.0.0.2:9091",
    ]


@pytest.mark.parametrize(
    ("packages", "detail", "command"),
    [
        ({"ister": ""}, "is not installed", "-m pip install ister==0.1.0"),
        ({"ister": "0.0.9"}, "0.0.9, the driver has 0.1.0", "-m pip install ister==0.1.0"),
        ({"pyspark": "4.3.1"}, "4.3.1, the driver has 4.3.0", "-m pip install pyspark==4.3.0"),
        ({"pyarrow": ""}, "is not installed", "-m pip install pyarrow==26.0.1"),
    ],
)
def test_another_version_there_is_named_with_the_command_that_mends_it(
    packages: dict[str, str], detail: str, command: str
) -> None:
    (line,) = failing(changed(packages={**DRIVER.packages, **packages}))
    assert (line.where, line.detail) == ("executor w1/7", detail)
    assert line.hint.endswith(f"/venv/python {command}")


def test_another_arrow_is_no_fault() -> None:
    assert failing(changed(packages={**DRIVER.packages, "pyarrow": "22.0.0"})) == []


def test_an_address_that_leads_to_another_cluster_from_there_is_a_fault() -> None:
    greetings = [Greeting("10.0.0.1:9091", "bbbb", 1, 0.5), DRIVER.greetings[1]]
    (line,) = failing(changed(greetings=greetings))
    assert line.what == "broker 10.0.0.1:9091"
    assert line.detail == "is of cluster bbbb, the driver asks cluster aaaa"


def test_a_broker_that_one_executor_does_not_reach_is_named_with_that_executor() -> None:
    silent = Greeting("10.0.0.2:9091", error="10.0.0.2:9091 did not answer within 3 s", hint="Look there.")
    (line,) = failing(changed(greetings=[DRIVER.greetings[0], silent]))
    assert (line.where, line.what) == ("executor w1/7", "broker 10.0.0.2:9091")
    assert line.hint.startswith("From w1 the broker must be reached")


def test_the_probe_works_where_ister_does_not() -> None:
    report = msgspec.json.decode(make_probe(["a:b"], ["no-such-package"])(), type=Report)
    assert report.packages == {"no-such-package": ""}
    assert report.trouble.startswith("ConfigError")
    (line,) = [
        line for line in executor_lines(changed(trouble=report.trouble, greetings=[]), DRIVER) if not line.ok
    ]
    assert "could not be greeted" in line.detail


def test_brokers_that_do_not_answer_are_lines_of_the_driver() -> None:
    addresses, lines = check_brokers("127.0.0.1:1,127.0.0.1:2")
    report, of_driver = check_driver(addresses)
    assert (addresses, lines, cluster_of(report)) == (["127.0.0.1:1", "127.0.0.1:2"], [], "")
    assert [line.what for line in of_driver if not line.ok] == ["broker 127.0.0.1:1", "broker 127.0.0.1:2"]


@pytest.mark.parametrize(
    ("text", "where", "hint"),
    [
        (NO_PYTHON, "executor 10.0.0.7/1", "PYSPARK_PYTHON must be there on every worker"),
        (OTHER_PYTHON, "executor 10.0.0.7/0", "Let PYSPARK_PYTHON name the same Python"),
        (NO_ARROW, "executor 10.0.0.7/0", "lacks pyarrow"),
        ("Something else", "executors", "Look into the executor's log"),
    ],
)
def test_executors_that_cannot_even_answer_are_explained(text: str, where: str, hint: str) -> None:
    line = failed_job(RuntimeError(text))
    assert (line.ok, line.where, line.what) == (False, where, "job")
    assert hint in line.hint


def test_the_text_has_a_line_for_each_thing_and_what_to_do_under_it() -> None:
    lines = [
        Line(True, "driver", "ister", "0.1.0"),
        Line(False, "executor w1/7", "ister", "is not there", "Do it."),
    ]
    checked = Checked(lines)
    assert checked.to_text(Paint(on=False)).splitlines() == [
        "        WHERE          WHAT",
        "ok      driver         ister  0.1.0",
        "FAILED  executor w1/7  ister  is not there",
        "                              -> Do it.",
        "1 executor asked; 1 thing to mend",
    ]
    assert [json.loads(json.dumps(entry))["ok"] for entry in checked.to_objects()] == [True, False]
