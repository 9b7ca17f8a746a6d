"""Where Spark finds the data source `rocketmq` by itself: it looks into every module whose name begins so."""

from spark.source.datasource import RocketmqSource as DefaultSource

__all__ = ["DefaultSource"]
