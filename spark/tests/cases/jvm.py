"""What the JVMs of these cases are started with: little heap work, little compiling, and an archive of Spark's classes.

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
    """The name of the folder of the JDK that Spark will use; empty without one."""
    found = shutil.which("java", path=os.path.join(os.environ.get("JAVA_HOME", ""), "bin")) or shutil.which(
        "java"
    )
    return Path(found).resolve().parents[1].name if found else ""


ARCHIVE = Path(sys.prefix) / f"spark-{pyspark.__version__}-{_jdk()}.jsa"
"""Goes with the environment, to whose jars it belongs."""
_BASIC = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SCRATCH = Path(tempfile.gettempdir()) / f"spark-cases-{os.getpid()}"
"""Where JVMs put what they unpack and exchange. They leave it there when they are killed, so the cases remove it."""
OPTIONS = " ".join([_BASIC, *class_data_options(ARCHIVE), f"-Djava.io.tmpdir={SCRATCH}"])
"""The compiler stops at its first level: a short-lived JVM is sooner done."""

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
    """Makes the archive unless it is there, by a JVM that does what the cases do and writes it when it ends."""
    if not _jdk() or not os.access(ARCHIVE.parent, os.W_OK):
        return
    build_archive_once(ARCHIVE, _train)


def _train(archive: Path) -> str:
    """What went wrong, if anything did."""
    with tempfile.TemporaryDirectory() as folder:
        options = " ".join([_BASIC, f"-XX:ArchiveClassesAtExit={archive}", *QUIET_OPTIONS])
        command = [sys.executable, "-c", _TRAINING, options, folder]
        python = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        done = subprocess.run(command, capture_output=True, text=True, env=python, check=False)
    if done.returncode == 0 and archive.exists():
        return ""
    return done.stderr[-2000:] or f"the JVM ended with {done.returncode}"
