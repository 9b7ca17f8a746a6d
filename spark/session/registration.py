"""Make the data sources known to a Spark session."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(session: "SparkSession") -> None:
    """Register `rocketmq` and `rocketmq-capture`. Spark finds an installed package by itself."""
    from spark.capture.datasource import CaptureSource
    from spark.source.datasource import RocketmqSource

    session.dataSource.register(RocketmqSource)
    session.dataSource.register(CaptureSource)
