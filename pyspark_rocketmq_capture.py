"""The entry point by which Spark finds the data source `rocketmq-capture`.

Spark imports every top-level module whose name begins with `pyspark_` and takes its `DefaultSource`.
"""

from spark.capture.datasource import CaptureSource as DefaultSource

__all__ = ["DefaultSource"]
