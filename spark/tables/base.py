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

TARGET_BYTES = 256 << 20
"""How large a compacted file may become, bytes (before compression for the directory format)."""
KEEP_HOURS = 168.0
"""How long Delta keeps files no version needs any more, hours: as long as a reader may take."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append did. `rows` by topic; all is empty for a batch that was there already (`again`)."""

    rows: Mapping[str, int] = field(default_factory=dict)
    files: int = 0
    size_bytes: int = 0
    again: bool = False


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did: `before` files of the table became `after`."""

    before: int
    after: int


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

    def append(self, app_id: str, batch_id: int, rows: "DataFrame | Unread") -> Appended: ...

    def read(self, session: "SparkSession") -> "DataFrame":
        """All rows as of now. Raises TableError while nothing was ever appended."""

    def files(self) -> list[str]:
        """The Parquet files that are the table as of now."""

    def dataset(self) -> "pyarrow.dataset.Dataset":
        """All rows as of now for pyarrow and DuckDB. Raises TableError while nothing was ever appended."""

    def compact(self, target_bytes: int = TARGET_BYTES, keep_hours: float = KEEP_HOURS) -> Compacted:
        """Makes few large files of many small ones. Readers and appends may go on meanwhile."""


def rows_by_topic(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Rows summed up by topic."""
    total: Counter[str] = Counter()
    for topic, rows in counts:
        total[topic] += rows
    return dict(total)
