"""Layout of tables: partitioned by topic and UTC day, the hour as a column, rows in the order of queues.

`by_day` and `add_day_columns` do the same to Spark frames and to record batches. Importing this module imports
neither pyspark nor pyarrow.
"""

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

PARTITION_COLUMNS: Final = ("topic", "dt")
"""Columns encoded in directory names: `topic=orders/dt=2026-01-31`."""
SORT_COLUMNS: Final = ("topic", "dt", "brokerName", "queueId", "queueOffset")
"""Sort order of rows within a file."""
STATISTICS_COLUMNS: Final = ("queueId", "queueOffset", "storeTimestamp", "bornTimestamp", "hour")
"""Columns whose minima and maxima are stored, so that readers can skip files and row groups."""
DICTIONARY_COLUMNS: Final = (
    "brokerName",
    "queueId",
    "tags",
    "bornHost",
    "storeHost",
    "sysFlag",
    "flag",
    "reconsumeTimes",
    "preparedTransactionOffset",
    "hour",
    "reason",
    "properties.key_value.key",
)
"""Columns with few distinct values, stored with a dictionary."""

# Complement of the characters that Spark escapes in directory names (ExternalCatalogUtils.escapePathName).
_UNESCAPED_CHARS: Final = " !$&()+,-.;<>@_`~|"

_HOUR_US: Final = 3_600_000_000


def by_day(rows: "DataFrame") -> "DataFrame":
    """Add `dt` and `hour` of `storeTimestamp`, in UTC whatever the session's time zone."""
    from pyspark.sql import functions as f

    micros = f.unix_micros("storeTimestamp")
    hours = f.floor(micros / f.lit(_HOUR_US)).cast("bigint")
    days = f.floor(hours / f.lit(24)).cast("int")
    return rows.withColumns({"dt": f.date_from_unix_date(days), "hour": f.pmod(hours, f.lit(24)).cast("int")})


def add_day_columns(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """Add `dt` and `hour` of `storeTimestamp`, in UTC, to a record batch."""
    import numpy as np
    import pyarrow as pa

    times = batch.column("storeTimestamp")
    is_null = np.asarray(times.is_null())
    micros = times.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    hours = micros // _HOUR_US
    days = pa.array((hours // 24).astype(np.int32), pa.int32(), mask=is_null).cast(pa.date32())
    of_day = pa.array((hours % 24).astype(np.int32), pa.int32(), mask=is_null)
    return batch.append_column("dt", days).append_column("hour", of_day)


def partition_directory(topic: str, day: str) -> str:
    """Return the directory of a topic's day (`2026-01-31`), named as Spark names it."""
    return f"topic={quote(topic, safe=_UNESCAPED_CHARS)}/dt={day}"
