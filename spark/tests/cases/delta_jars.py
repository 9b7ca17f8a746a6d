"""delta-spark's jars for the version of Spark it supports, from Maven Central, and the session settings it needs."""

import subprocess
from pathlib import Path

from compat_tests.jars import Unavailable, cache_dir, lock_file, tool_environment

VERSION = "4.4.0"
ARTIFACTS = (f"io.delta:delta-spark_4.2_2.13:{VERSION}", f"io.delta:delta-storage:{VERSION}")
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy"


def jars() -> list[Path]:
    """The jars, fetched first where they are missing. Raises Unavailable."""
    folder = cache_dir() / "jars" / f"delta-{VERSION}"
    found = [folder / f"{artifact.split(':')[1]}-{VERSION}.jar" for artifact in ARTIFACTS]
    with lock_file(cache_dir() / "maven.lock"):
        for artifact, path in zip(ARTIFACTS, found, strict=True):
            if not path.exists():
                _fetch(artifact, folder)
    return found


def _fetch(artifact: str, folder: Path) -> None:
    command = ["mvn", "-B", "-q", _COPY, f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
    command.append(f"-Dmaven.repo.local={cache_dir() / 'maven'}")
    try:
        done = subprocess.run(
            command, env=tool_environment(), capture_output=True, text=True, timeout=900, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"Maven could not fetch {artifact}: {error}") from error
    if done.returncode != 0:
        raise Unavailable(f"Maven could not fetch {artifact}: {(done.stdout + done.stderr).strip()[:400]}")


def settings() -> dict[str, str]:
    """Return the configuration of a session with delta-spark. Raises Unavailable."""
    return {
        "spark.jars": ",".join(map(str, jars())),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
    }
