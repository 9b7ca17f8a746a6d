"""Where Spark finds the data source `rocketmq-capture` by itself: it looks into every module whose name begins so."""

from spark.capture.datasource import CaptureSource as DefaultSource

__all__ = ["DefaultSource"]
