"""Start options of these cases' JVMs: little heap work, little compiling, and an archive of Spark's classes.

Reading its classes is half of what a driver computes until its first answer. A JVM can map them from an archive instead
(class data sharing); where there is none, or it is another JDK's, it reads them as ever.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from compat_tests.jars.class_data import QUIET_OPTIONS, build_archive_once, class_data_options


def _jdk() -> str:
    """Return the folder name of the JDK that Spark will use, empty without one."""
    found = shutil.which("java", path=os.path.join(os.environ.get("JAVA_HOME", ""), "bin")) or shutil.which(
        "java"
    )
    return Path(found).resolve().parents[1].name if found else ""


ARCHIVE = Path(sys.prefix) / f"spark-{pyspark.__version__}-{_jdk()}.jsa"
"""Stored in the environment whose jars it archives."""
_BASIC = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SCRATCH = Path(tempfile.gettempdir()) / f"spark-cases-{os.getpid()}"
"""Directory for files that JVMs unpack and exchange. Killed JVMs leave them behind, so the cases remove them."""
OPTIONS = " ".join([_BASIC, *class_data_options(ARCHIVE), f"-Djava.io.tmpdir={SCRATCH}"])
"""Stop compiling at the first level, which is faster for a short-lived JVM."""

# Uses what the cases use: sessions, tables, Python workers, streams.
_TRAINING = """
import sys
from pyspark.sql import SparkSession

options, folder = sys.argv[1:]
settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
builder = SparkSession.builder.master("local[2]").config(map=settings)
session = builder.config("spark.driver.extraJavaOptions", options).getOrCreate()
frame = session.range(100).selectExpr("id", "encode(string(id), 'UTF-8') as body", "id % 2 as part")
frame.write.partitionBy("part").parquet(folder + "/table")
table = session.read.parquet(folder + "/table")
assert table.groupBy("part").count().orderBy("part").collect()[0]["count"] == 50
assert table.mapInArrow(lambda batches: batches, table.schema).count() == 100
stream = session.readStream.schema(table.schema).parquet(folder + "/table")
query = stream.writeStream.option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True)
query.start(folder + "/copy", format="parquet").awaitTermination()
jvm = session.sparkContext._gateway.proc
session.stop()
jvm.stdin.close()
sys.exit(jvm.wait())
"""


def make_archive() -> None:
    """Create the archive unless it exists, with a JVM that runs like the cases and writes it at its end."""
    if not _jdk() or not os.access(ARCHIVE.parent, os.W_OK):
        return
    build_archive_once(ARCHIVE, _train)


def _train(archive: Path) -> str:
    """Return an error text, empty on success."""
    with tempfile.TemporaryDirectory() as folder:
        options = " ".join([_BASIC, f"-XX:ArchiveClassesAtExit={archive}", *QUIET_OPTIONS])
        command = [sys.executable, "-c", _TRAINING, options, folder]
        python = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        done = subprocess.run(command, capture_output=True, text=True, env=python, check=False)
    if done.returncode == 0 and archive.exists():
        return ""
    return done.stderr[-2000:] or f"the JVM ended with {done.returncode}"
