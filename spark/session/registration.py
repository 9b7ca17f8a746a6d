"""Make the data sources known to a Spark session."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(session: "SparkSession") -> None:
    """Register `rocketmq` and `rocketmq-capture`, unless Spark has found them in the installed package by itself.

    If a found source is registered again, Spark warns that it "replaced a statically registered data source".
    """
    from spark.capture.datasource import CaptureSource
    from spark.source.datasource import RocketmqSource

    for source in (RocketmqSource, CaptureSource):
        if not is_found_by_spark(session, source.name()):
            session.dataSource.register(source)


def is_found_by_spark(session: "SparkSession", name: str) -> bool:
    """Tell whether Spark knows a data source already; False if it cannot be asked, as with Spark Connect."""
    try:
        manager: Any = session._jsparkSession.sessionState().dataSourceManager()
        return bool(manager.dataSourceExists(name))
    except Exception:  # noqa: BLE001 - Spark's internals may change, and registering always works
        return False
