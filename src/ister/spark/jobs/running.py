"""Tasks on executors, and their results on the driver one by one as they finish.

Each task is a Spark job of its own: one row, one partition, one `mapInArrow`. So the driver knows of each
that has ended, with its result, and can show how far all of them are; and nothing here needs a
`sparkContext`, so the same goes over Spark Connect. A job costs some tens of milliseconds: tasks are to be
worth that.

What can fail: an executor dies (Spark runs the task again, elsewhere), so a task must be one that may run
twice; a task raises. Our errors travel as results, and are raised here as what they are; others come as
`JobFailed`. After the first one nothing more is started, and what runs is waited for.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ister.errors import IsterError, JobFailed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

_RESULT: Final = "result binary"
_MANY: Final = 512
"""Rows that show how many partitions Spark makes by itself: on no larger cluster is less at once a pity."""
_QUOTED_CHARACTERS: Final = 600


class Finished(NamedTuple):
    """One task's end."""

    number: int
    """Which one: they are counted from 0 in the order in which they were given."""
    result: Any


class Stop:
    """Asked for by a signal or another thread: what runs ends, nothing new begins."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def ask(self) -> None:
        self._asked.set()

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Returns early, and True, if it is asked for."""
        return self._asked.wait(seconds)


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at once. Only a job can tell over Spark Connect; the first one takes long anyway."""
    from pyspark.sql.functions import spark_partition_id

    return len({row[0] for row in spark.range(_MANY).select(spark_partition_id()).collect()})


def run_tasks(
    spark: SparkSession,
    function: Callable[[T], R],
    tasks: Iterable[T],
    *,
    at_once: int,
    stop: Stop | None = None,
) -> Iterator[Finished]:
    """`function` of each task, on executors, `at_once` of them at a time, in whatever order they end.

    The function must be importable where the executors are: one of a module of `ister`. `tasks` is asked for
    the next one only when there is room for it.
    """
    waiting = enumerate(tasks)
    running: dict[Future[Any], int] = {}
    with ThreadPoolExecutor(at_once, thread_name_prefix="ister-job") as pool:
        while True:
            while len(running) < at_once and not (stop is not None and stop.is_asked):
                number, task = next(waiting, (-1, None))
                if number < 0:
                    break
                running[pool.submit(_submit, spark, function, task)] = number
            if not running:
                return
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for each in ended:
                yield Finished(running.pop(each), each.result())


def _submit(spark: SparkSession, function: Callable[[Any], Any], task: Any) -> Any:
    from pyspark.errors import PySparkException

    work = partial(_work, function, task)
    try:
        rows = spark.range(0, 1, 1, 1).mapInArrow(work, _RESULT).collect()
    except PySparkException as error:
        raise task_failed(error) from error
    result = pickle.loads(bytes(rows[0][0]))
    if isinstance(result, IsterError):
        raise result
    return result


def task_failed(error: Exception) -> JobFailed:
    """Of what Spark says of a task."""
    return JobFailed(f"a task failed: {_said_last(str(error))}")


def _work(
    function: Callable[[Any], Any], task: Any, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """On the executor."""
    import pyarrow as pa

    for _ in batches:
        pass
    try:
        result = function(task)
    except IsterError as error:
        result = error.again()
    yield pa.RecordBatch.from_pydict({"result": [pickle.dumps(result)]})


def _said_last(said: str) -> str:
    """The end of a traceback within a traceback: the line that says what it was."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line and not line.startswith(("at ", "File ", "raise "))]
    return (errors or lines or ["nothing was said"])[-1][:_QUOTED_CHARACTERS]
