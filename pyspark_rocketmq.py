"""The entry point by which Spark finds the data source `rocketmq`.

Spark imports every top-level module whose name begins with `pyspark_` and takes its `DefaultSource`.
"""

from spark.source.datasource import RocketmqSource as DefaultSource

__all__ = ["DefaultSource"]
