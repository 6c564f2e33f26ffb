"""A topic as a Spark table, and a table as a topic.

Start a broker with `ister serve`, then run this: `python examples/spark_first_look.py`.
It needs nothing beyond `pip install 'ister[spark]'`, not even Java.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from ister import sync
from ister.spark import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REGIONS = ("north", "south", "east", "west")


def produce(bootstrap: str, count: int) -> int:
    """Some orders as JSON, keyed by region; returns the offset of the first."""
    orders = [{"region": REGIONS[number % 4], "amount": number % 90 + 10} for number in range(count)]
    with sync.connect(bootstrap) as log, log.producer("orders") as producer:
        offsets = producer.send_many(
            [json.dumps(order).encode() for order in orders],
            keys=[str(order["region"]).encode() for order in orders],
        )
    return offsets[0]


def totals(orders: DataFrame) -> DataFrame:
    from pyspark.sql.functions import col, count, from_json
    from pyspark.sql.functions import sum as total

    order = from_json(col("value").cast("string"), "region string, amount long").alias("order")
    by_region = orders.select(order).groupBy("order.region")
    return by_region.agg(count("*").alias("orders"), total("order.amount").alias("amount")).orderBy("region")


def main(bootstrap: str, spark: SparkSession) -> None:
    first = produce(bootstrap, 1_000)
    orders = (
        spark.read.format("ister")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", "orders")
        .option("startingOffsets", json.dumps({"orders": {"0": first}}))
        .load()
    )
    print(f"{orders.count():,} orders from offset {first} on")
    result = totals(orders).cache()
    for row in result.collect():
        print(f"{row.region:>6} {row.orders:>6,} {row.amount:>8,}")

    # And back: the totals as records of another topic, keyed by region.
    records = result.selectExpr("region AS key", "to_json(struct(*)) AS value")
    to_topic = records.write.format("ister").option("bootstrap.servers", bootstrap).option("topic", "totals")
    to_topic.mode("append").save()


if __name__ == "__main__":
    session = local_session("first-look")
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9091", session)
    session.stop()
