"""What Spark does with a topic, beside what it does with the same rows elsewhere.

formats     where rows can be scanned from: a topic, Parquet; another one is a class more
kafka       Kafka's own connector, if it is there: formats and sinks to stand beside
scan        how fast each is scanned: `python -m bench.spark.scan`
history     how fast history is scanned, tiered and audited: `python -m bench.spark.history`
growth      what planning takes of much history: `python -m bench.spark.growth`
writes      how fast a table is written, beside Kafka's connector: `python -m bench.spark.writes`
triggers    what a micro-batch takes, and a query that has nothing to do: `python -m bench.spark.triggers`
sink        the ways of writing, and what a micro-batch that is written takes: `python -m bench.spark.sink`
compact     how fast a history is compacted: `python -m bench.spark.compact`
jobs        tier and audit of a topic: `python -m bench.spark.jobs`
"""
