"""Lets Spark find the source `ister` by itself: it looks for `DefaultSource` in packages `pyspark_*`."""

from ister.spark.datasource import IsterSource as DefaultSource

__all__ = ["DefaultSource"]
