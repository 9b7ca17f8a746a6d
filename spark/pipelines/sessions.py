"""The Spark session of a pipeline, from `[spark]`, flags, and the settings of spark-submit."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spark.pipelines.config import Config, spark_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_CONF: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}
"""Defaults of a pipeline's Spark configuration."""


def session_conf(
    name: str, config: Config, flags: Mapping[str, str], submitted: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (master, remote and appName; Spark's configuration). Flags override the file, the file the defaults.

    Under spark-submit its own master applies, whatever the file says; a flag overrides that, too.
    """
    own, conf = spark_settings(config)
    own = {"appName": f"rmq-gateway {name}", **own}
    places = {key: value for key, value in flags.items() if key in ("master", "remote")}
    own = {"appName": own["appName"], **places} if places else own
    conf = {**({} if submitted else DEFAULT_CONF), **conf}
    conf |= {key: value for key, value in flags.items() if key not in ("master", "remote")}
    if "remote" in own or (submitted and "master" not in places):
        own.pop("master", None)
    else:
        own.setdefault("master", "local[*]")
    return own, conf


def open_session(own: Mapping[str, str], conf: Mapping[str, str]) -> "SparkSession":
    """Open a session that knows the sources. A Spark Connect server finds them itself, as they are installed there."""
    from pyspark.sql import SparkSession

    from spark.session.registration import register

    set_python(conf)
    builder: Any = SparkSession.builder
    builder = builder.appName(own["appName"])
    builder = builder.remote(own["remote"]) if "remote" in own else builder
    builder = builder.master(own["master"]) if "master" in own else builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    if "remote" not in own:
        register(session)
    return session


def set_python(conf: Mapping[str, str]) -> None:
    """Let driver and executors use this Python, unless the configuration or the environment names another.

    Spark would use `python3`, which usually has neither this package nor pyarrow.
    """
    workers = conf.get("spark.pyspark.python")
    if workers:
        os.environ["PYSPARK_PYTHON"] = workers
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
