"""Apache RocketMQ in Spark: the data sources `rocketmq` and `rocketmq-capture`, the sink, and pipelines on them.

    from spark import register
    register(spark_session)

Not responsible for talking the protocol (`remoting`) or for what bytes mean (`codec`). Importing this package imports
neither pyspark nor pyarrow: what needs them imports them.
"""

from typing import TYPE_CHECKING

from spark.session.shipping import ship

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "ship"]


def register(session: "SparkSession") -> None:
    """Make the data sources known to a session. Where the package is installed Spark finds them by itself."""
    from spark.capture.datasource import CaptureSource
    from spark.source.datasource import RocketmqSource

    session.dataSource.register(RocketmqSource)
    session.dataSource.register(CaptureSource)
