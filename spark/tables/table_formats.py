"""Choice of a table's format: its present one, else the requested one, else the best that is installed."""

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from spark.errors import TableError
from spark.tables.table import Table
from toolkit.install_command import install_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS: Final = ("auto", "delta", "directory")


def open_table(root: str, name: str, format: str = "auto", session: "SparkSession | None" = None) -> Table:
    """Open the table `name` below `root`; it is created by its first append. `auto` is Delta if installed.

    Delta tables use delta-spark if the session has it, else delta-rs. Raises TableError if neither is installed, or
    if the table exists in another format.
    """
    root = root.rstrip("/") if "://" in root else os.path.abspath(root)
    with_spark = session is not None and session_has_delta(session)
    chosen = choose_format(
        format, detect_format(root, name), with_spark or find_spec("deltalake") is not None
    )
    if chosen == "directory":
        from spark.tables.directory_table import DirectoryTable

        return DirectoryTable(root, name)
    if with_spark and session is not None:
        from spark.tables.delta_spark import DeltaSparkTable

        return DeltaSparkTable(f"{root}/{name}", session)
    from spark.tables.delta_rs import DeltaRsTable

    return DeltaRsTable(f"{root}/{name}")


def choose_format(requested: str, present: str | None, delta: bool) -> str:
    """Return `delta` or `directory`. `present` is an existing table's format; `delta` is true if Delta is installed."""
    if requested not in FORMATS:
        raise TableError(f"invalid format {requested} (expected one of {', '.join(FORMATS)})")
    if present and requested not in ("auto", present):
        raise TableError(f"the table has the format {present}, not {requested}")
    chosen = present or ("delta" if delta else "directory") if requested == "auto" else requested
    if chosen == "delta" and not delta:
        raise TableError(f"Delta is not installed: {install_command('delta')}")
    return chosen


def detect_format(root: str, name: str) -> str | None:
    """Return the format of a table, or None if there is no table, or it is not on a local file system."""
    path = os.path.join(root, name)
    if os.path.isdir(os.path.join(path, "_delta_log")):
        return "delta"
    return "directory" if os.path.islink(path) else None


def session_has_delta(session: "SparkSession") -> bool:
    """Tell whether the session has delta-spark and its settings."""
    from spark.tables.delta_spark import EXTENSION

    return find_spec("delta") is not None and EXTENSION in str(session.conf.get("spark.sql.extensions", ""))
