"""The Spark session a pipeline runs in: from `[spark]`, flags, and what spark-submit has set already.

Not responsible for what is done with it.
"""

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
"""What a pipeline runs with unless told otherwise."""


def session_conf(
    name: str, config: Config, flags: Mapping[str, str], submitted: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """(master, remote and appName, Spark's configuration): flags win over the file, the file over defaults.

    Under spark-submit its own master is the one, whatever the file says; the flag wins there, too.
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
    """A session that knows the sources; a Spark Connect server finds them itself, as they are installed there."""
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
    """The Python of driver and executors: this one, unless the configuration or the environment names another.

    Spark would take `python3`, which as a rule has neither this package nor pyarrow.
    """
    workers = conf.get("spark.pyspark.python")
    if workers:
        os.environ["PYSPARK_PYTHON"] = workers
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
