"""The interface of every table, and the results of its operations."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow.dataset
    from pyspark.sql import DataFrame, SparkSession

    from spark.pull.unread import Unread

DEFAULT_TARGET_BYTES = 256 << 20
"""Maximum size of a compacted file, bytes (before compression for the directory format)."""
DEFAULT_KEEP_HOURS = 168.0
"""Hours for which Delta keeps the files of old versions; a reader must finish within that time."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Result of an append: rows by topic, files and bytes. All are empty if the batch was `already_present`."""

    rows: Mapping[str, int] = field(default_factory=dict)
    files: int = 0
    size_bytes: int = 0
    already_present: bool = False


@dataclass(frozen=True, slots=True)
class CompactResult:
    """Number of the table's files before and after a compaction."""

    files_before: int
    files_after: int


class Table(Protocol):
    """A table below a root directory. Rows have the columns `topic`, `dt` and `hour` (see `layout.by_day`).

    `append` is atomic, and does nothing for an (app_id, batch_id) that was already appended: batches of one app_id
    are appended in ascending order of their ids, by one process at a time.
    """

    format: str

    @property
    def path(self) -> str:
        """Location for readers."""

    def exists(self) -> bool:
        """Tell whether anything was ever appended."""

    def append(self, app_id: str, batch_id: int, rows: "DataFrame | Unread") -> AppendResult:
        """Append rows as one batch, atomically and at most once."""

    def read(self, session: "SparkSession") -> "DataFrame":
        """Return all current rows. Raises TableError if nothing was ever appended."""

    def files(self) -> list[str]:
        """Return the current Parquet files."""

    def dataset(self) -> "pyarrow.dataset.Dataset":
        """Return all current rows for pyarrow and DuckDB. Raises TableError if nothing was ever appended."""

    def compact(
        self, target_bytes: int = DEFAULT_TARGET_BYTES, keep_hours: float = DEFAULT_KEEP_HOURS
    ) -> CompactResult:
        """Merge small files into large ones. Readers and appends may run at the same time."""


def sum_rows_by_topic(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the number of rows by topic."""
    total: Counter[str] = Counter()
    for topic, rows in counts:
        total[topic] += rows
    return dict(total)
