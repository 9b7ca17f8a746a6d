"""Spark sessions as the cases need them: small, quiet, in UTC, with this Python and our packages."""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from spark.tests.cases.jvm import OPTIONS

ROOT = Path(__file__).resolve().parents[3]
QUICK = Path(__file__).resolve().parent / "quick"
"""Settings that let Spark's Python processes start sooner."""
PYTHON_PATH = os.pathsep.join([str(QUICK), str(ROOT)])
"""Search path of these cases' Python processes for our packages."""

SMALL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": OPTIONS,
    "spark.executor.extraJavaOptions": OPTIONS,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stopTimeout": "60s",
}
"""Settings that tests need and users do not."""


def new_session(directory: Path, master: str = "local[2,4]", **conf: str) -> SparkSession:
    """A session whose files are in this directory. `local[2,4]`: a failed task is tried again, as on a cluster."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [PYTHON_PATH, os.environ.get("PYTHONPATH")]))
    builder = SparkSession.builder.master(master).appName("cases")
    places = {
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
    }
    for key, value in {**SMALL, **places, **conf}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
