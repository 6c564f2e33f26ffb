"""Whether a job could run here: the driver, each executor, and the way of each of them to each broker.

Everything that a job finds out in its tenth minute is asked before it starts. What is wrong is a line that
says what to do, never the end of the check, as far as the rest can still be asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ister import sync
from ister.client.routing import parse_bootstrap
from ister.errors import ConnectionFailed, IsterError
from ister.spark.sessions.probe import PACKAGES, Report, probe_executors, probe_here, slots
from ister.spark.versions import INSTALL, check_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK_S = 3.0
ASKED_AGAIN = 30
"""How often executors are asked that did not come yet: they announce themselves one after the other."""


class Line(NamedTuple):
    """One thing that was looked at."""

    ok: bool
    where: str
    """`driver`, or the executor: its host and its process there."""
    what: str
    detail: str
    hint: str = ""
    """What to do, if it is not right."""


def check_brokers(bootstrap: str) -> tuple[list[str], list[Line]]:
    """The addresses of all brokers, and how the driver gets to them; those given, if none answers."""
    given = [str(address) for address in parse_bootstrap(bootstrap)]
    quick = {"connect_timeout_s": QUICK_S, "request_timeout_s": QUICK_S, "retry_deadline_s": QUICK_S}
    lines: list[Line] = []
    addresses = given
    try:
        with sync.connect(bootstrap, **quick) as log:
            nodes = log.cluster().nodes
        told = [f"{node.client_host}:{node.client_port}" for node in nodes if node.client_port]
        addresses = list(dict.fromkeys([*given, *told]))
    except ConnectionFailed:
        pass  # the greetings say so of each address
    except IsterError as error:
        lines.append(Line(False, "driver", "brokers", error.message, error.hint))
    return addresses, lines


def check_driver(addresses: Sequence[str]) -> tuple[Report, list[Line]]:
    report = probe_here(addresses)
    versions = [Line(True, "driver", "python", f"{report.python} at {report.executable}")]
    for name in PACKAGES:
        found = report.packages[name]
        missing = "" if found else INSTALL
        versions.append(Line(bool(found), "driver", name, found or "is not installed", missing))
    return report, [*versions, *broker_lines("driver", report, cluster_of(report))]


def check_session(spark: SparkSession) -> Iterator[Line]:
    """That the session is of a Spark that this works with, and finds the source by itself."""
    try:
        check_version(spark.version)
        yield Line(True, "driver", "spark", spark.version)
    except IsterError as error:
        yield Line(False, "driver", "spark", error.message, error.hint)
    try:
        spark.read.format("ister").option("subscribe", "any").load()
        yield Line(True, "driver", "source", 'format("ister") is found')
    except Exception as error:  # Spark's own, of many kinds
        hint = f"The Python that Spark runs beside the driver, PYSPARK_PYTHON, must have Ister: {INSTALL}"
        yield Line(False, "driver", "source", f'format("ister") does not work: {said(error)}', hint)


def check_executors(
    spark: SparkSession, driver: Report, addresses: Sequence[str], *, expected: int = 0
) -> list[Line]:
    """Each executor, with its versions and its way to each broker. `expected` is how many there should be."""
    try:
        reports = probe_executors(spark, addresses, slots(spark))
        for _ in range(ASKED_AGAIN):
            if len(reports) >= expected:
                break
            reports = probe_executors(spark, addresses, slots(spark))
    except Exception as error:  # Spark's own, of many kinds
        return [failed_job(error)]
    lines = [line for report in reports for line in executor_lines(report, driver)]
    if len(reports) < expected:
        detail = f"{len(reports)} of {expected} executors answered"
        hint = "Look at the master's page: workers may be down, or have no room for an executor."
        lines.append(Line(False, "driver", "executors", detail, hint))
    return lines


def executor_lines(report: Report, driver: Report) -> Iterator[Line]:
    where = f"executor {report.host}/{report.process}"
    yield Line(True, where, "python", f"{report.python} at {report.executable}")
    for name in PACKAGES:
        found, wanted = report.packages[name], driver.packages[name]
        # Spark and we are one program in two places; Arrow is a format.
        if found == wanted or (found and name == "pyarrow"):
            yield Line(True, where, name, found)
            continue
        hint = f"Install the driver's there: {report.executable} -m pip install {name}=={wanted}"
        detail = f"{found}, the driver has {wanted}" if found else "is not installed"
        yield Line(False, where, name, detail, hint)
    yield from broker_lines(where, report, cluster_of(driver))


def broker_lines(where: str, report: Report, cluster_id: str) -> Iterator[Line]:
    """The brokers as this process reaches them; all must be of the cluster that the driver asks."""
    if report.trouble:
        hint = f"Mend what is wrong with Ister there first: {INSTALL}"
        yield Line(False, where, "brokers", f"could not be greeted: {report.trouble}", hint)
    for found in report.greetings:
        if found.error:
            hint = f"From {report.host} the broker must be reached by this very address. {found.hint}"
            yield Line(False, where, f"broker {found.address}", found.error, hint)
        elif found.cluster_id != cluster_id:
            detail = f"is of cluster {found.cluster_id}, the driver asks cluster {cluster_id}"
            hint = "The address means another machine here: let the brokers advertise one that all reach."
            yield Line(False, where, f"broker {found.address}", detail, hint)
        else:
            detail = f"node {found.node_id} of cluster {found.cluster_id}, {found.milliseconds:g} ms"
            yield Line(True, where, f"broker {found.address}", detail)


def cluster_of(report: Report) -> str:
    return next((found.cluster_id for found in report.greetings if not found.error), "")


_CAUSES = (
    ("PYTHON_VERSION_MISMATCH", "Let PYSPARK_PYTHON name the same Python, 3.x by 3.x, on every machine."),
    ("Cannot run program", "PYSPARK_PYTHON must be there on every worker: set it to a path that is."),
    ("No module named 'pyspark'", f"The Python of PYSPARK_PYTHON there lacks Spark: {INSTALL}"),
    ("pyarrow", f"The Python of PYSPARK_PYTHON there lacks pyarrow: {INSTALL}"),
    (
        "Initial job has not accepted any resources",
        "No worker has room: look at the master's page, and ask for less with --conf spark.executor.memory.",
    ),
)


def failed_job(error: Exception) -> Line:
    """The executors could not even answer; Spark names the first of them that failed."""
    text = str(error)
    hint = next((todo for sign, todo in _CAUSES if sign in text), "Look into the executor's log of this job.")
    found = re.search(r"\((\S+) executor (\w+)\)", text)
    where = f"executor {found.group(1)}/{found.group(2)}" if found else "executors"
    return Line(False, where, "job", said(error), hint)


def said(error: Exception) -> str:
    """The line of an error that says what happened; Spark wraps it into pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    of_python = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Mismatch)\b.*:", line)]
    signs = [line for line in lines if any(sign in line for sign, _ in _CAUSES)]
    found = (signs or of_python[-1:] or lines or [type(error).__name__])[0]
    return found[:300]
