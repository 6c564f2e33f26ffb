"""What Spark said of executors that could not start a Python of ours, shortened."""

_FAILED = (
    "An error occurred while calling o61.collectToPython.\n: org.apache.spark.SparkException: Job aborted "
    "due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 in stage "
    "0.0 (TID 3) "
)
_OF_PYTHON = "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
NO_PYTHON = (
    f"{_FAILED}(10.0.0.7 executor 1): java.io.IOException: Cannot run program "
    '"/no/python": error=2, No such file or directory\n\tat java.base/java.lang.ProcessBuilder.start\n'
)
OTHER_PYTHON = (
    f"{_FAILED}(10.0.0.7 executor 0): {_OF_PYTHON}pyspark.errors.exceptions.base.PySparkRuntimeError: "
    "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver: 3.11.\n"
)
NO_ARROW = (
    f"{_FAILED}(10.0.0.7 executor 0): {_OF_PYTHON}pyspark.errors.exceptions.base.PySparkImportError: "
    "[PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however, it was not found. (pyarrow)\n"
)
