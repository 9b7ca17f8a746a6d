"""What every table can do, and what its operations tell.

Not responsible for any format.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow.dataset
    from pyspark.sql import DataFrame, SparkSession

    from spark.pull.unread import Unread

DEFAULT_TARGET_BYTES = 256 << 20
"""How large a compacted file may become, bytes (before compression for the directory format)."""
DEFAULT_KEEP_HOURS = 168.0
"""How long Delta keeps files no version needs any more, hours: as long as a reader may take."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What an append did. `rows` by topic; all is empty for a batch that was there already (`again`)."""

    rows: Mapping[str, int] = field(default_factory=dict)
    files: int = 0
    size_bytes: int = 0
    already_present: bool = False


@dataclass(frozen=True, slots=True)
class CompactResult:
    """What a compaction did: `before` files of the table became `after`."""

    files_before: int
    files_after: int


class Table(Protocol):
    """A table below a root directory. Rows have the columns `topic`, `dt` and `hour` (see `layout.by_day`).

    `append` is all or nothing, and does nothing for a (app_id, batch_id) that is there or was passed: batches of
    one app_id are appended in the order of their ids by one process at a time.
    """

    format: str

    @property
    def path(self) -> str:
        """Where readers find it."""

    def exists(self) -> bool:
        """Whether anything was ever appended."""

    def append(self, app_id: str, batch_id: int, rows: "DataFrame | Unread") -> AppendResult: ...

    def read(self, session: "SparkSession") -> "DataFrame":
        """All rows as of now. Raises TableError while nothing was ever appended."""

    def files(self) -> list[str]:
        """The Parquet files that are the table as of now."""

    def dataset(self) -> "pyarrow.dataset.Dataset":
        """All rows as of now for pyarrow and DuckDB. Raises TableError while nothing was ever appended."""

    def compact(
        self, target_bytes: int = DEFAULT_TARGET_BYTES, keep_hours: float = DEFAULT_KEEP_HOURS
    ) -> CompactResult:
        """Makes few large files of many small ones. Readers and appends may go on meanwhile."""


def sum_rows_by_topic(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Rows summed up by topic."""
    total: Counter[str] = Counter()
    for topic, rows in counts:
        total[topic] += rows
    return dict(total)
