"""The data source `rocketmq-capture` as Spark sees it.

    spark.read.format("rocketmq-capture").option("topics", "Orders").load("/var/lib/shadow/capture")

With `pushFilters`, Spark's filters are translated to a filter of capture blocks (`combine_filters`), so that blocks
that cannot match are skipped. Spark applies every filter again to each row: the translation need not be exact, but it
must never be too narrow.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.datasource import Filter as SparkFilter
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark.capture.capture_file import CaptureBlockReader, find_files
from spark.capture.options import NAME, CaptureFilter, CaptureSpec
from spark.capture.stream_progress import CaptureProgress
from spark.capture.task_planning import BlockPlan, FileRange
from spark.capture.task_reader import read_file_ranges
from spark.errors import OptionError

__all__: Final = ["CaptureSource"]


class CapturePartition(InputPartition):
    """The file ranges that one task reads."""

    def __init__(self, ranges: tuple[FileRange, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


class CaptureSource(DataSource):
    """Capture files of the shadow gateway: `spark.read` and `spark.readStream`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> str:
        """Return the columns that the options `rows`, `columns`, `includeBodies` and `includeFrames` ask for."""
        return CaptureSpec.from_options(self.options).spark_ddl()

    def reader(self, schema: StructType) -> "CaptureReader":
        """Return a batch reader."""
        spec = CaptureSpec.from_options(self.options)
        return FilteringCaptureReader(spec) if spec.push_filters else CaptureReader(spec)

    def streamReader(self, schema: StructType) -> "CaptureStreamReader":
        """Return a stream reader."""
        return CaptureStreamReader(CaptureSpec.from_options(self.options))


class CaptureReader(DataSourceReader):
    """Batch reader of the files as they are when the query begins."""

    def __init__(self, spec: CaptureSpec) -> None:
        self.spec = spec

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the partitions. Raises OptionError if no file is found, OSError if one cannot be read."""
        paths = find_files(self.spec.paths)
        if not paths:
            raise OptionError(f"{NAME}: no capture files at {', '.join(self.spec.paths)}")
        plan = BlockPlan()
        for path in paths:
            with CaptureBlockReader(path) as file:
                plan.add_file(file, self.spec.record_filter)
        return [CapturePartition(ranges) for ranges in plan.group_into_partitions(self.spec)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. If there is nothing to read, Spark makes up a partition of its own."""
        ranges = partition.ranges if isinstance(partition, CapturePartition) else ()
        return read_file_ranges(self.spec, ranges)


class FilteringCaptureReader(CaptureReader):
    """Batch reader that uses Spark's filters. Spark refuses it unless filter push-down is enabled in its
    configuration.
    """

    def pushFilters(self, filters: list[SparkFilter]) -> Iterator[SparkFilter]:
        """Narrow the record filter, and return all filters for Spark to apply again."""
        if self.spec.rows == "exchanges":
            self.spec = replace(
                self.spec, record_filter=self.spec.record_filter.intersect_with(combine_filters(filters))
            )
        return iter(filters)


class CaptureStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader of blocks as they appear. Offsets are positions in files; removed files leave the offset."""

    def __init__(self, spec: CaptureSpec) -> None:
        self.spec = spec
        self._progress: CaptureProgress | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.spec, "_progress": None}

    @property
    def file_progress(self) -> CaptureProgress:
        """State of the files; used in the driver only."""
        if self._progress is None:
            self._progress = CaptureProgress(self.spec)
        return self._progress

    def initialOffset(self) -> dict[str, Any]:
        """Return the empty offset: read everything that `startingTimestamp` allows."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return no limit: `latestOffset` applies the options' limits, rows and bytes together."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the current ends of the files as the stream's end."""
        self.file_progress.freeze_end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch."""
        return self.file_progress.next_end(start)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the partitions of a batch."""
        plan = self.file_progress.plan_batch(start, end)
        return [CapturePartition(ranges) for ranges in plan.group_into_partitions(self.spec)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        ranges = partition.ranges if isinstance(partition, CapturePartition) else ()
        return read_file_ranges(self.spec, ranges)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint holds the progress, and the gateway removes files by its own rules."""


# -- filters ----------------------------------------------------------------------------------------------------------

_BEYOND_ALL_TIMES_MS: Final = 1 << 62
"""Start of a filter that matches nothing."""
_MILLISECOND: Final = timedelta(milliseconds=1)


def combine_filters(filters: Iterable[Any]) -> CaptureFilter:
    """Return the filter that combines all these filters of Spark (objects of pyspark.sql.datasource)."""
    combined = CaptureFilter()
    for condition in filters:
        combined = combined.intersect_with(_translate_filter(condition))
    return combined


def _translate_filter(condition: Any) -> CaptureFilter:
    kind, attribute = type(condition).__name__, getattr(condition, "attribute", None)
    if attribute == ("time",):
        return _translate_time(kind, condition)
    values = _equal_values(kind, condition)
    if values is None:
        return CaptureFilter()
    if attribute == ("topic",):
        return CaptureFilter(topics=frozenset(value for value in values if isinstance(value, str)))
    if attribute == ("code",):
        return CaptureFilter(codes=frozenset(value for value in values if isinstance(value, int)))
    return CaptureFilter()


def _equal_values(kind: str, condition: Any) -> tuple[Any, ...] | None:
    if kind in ("EqualTo", "EqualNullSafe"):
        return None if condition.value is None else (condition.value,)
    return tuple(condition.value) if kind == "In" else None


def _translate_time(kind: str, condition: Any) -> CaptureFilter:
    """Translate a filter on time. Records have whole ms, so bounds in between are widened."""
    if kind == "In":
        times_ms = [_floor_ms(value) for value in condition.value if isinstance(value, datetime)]
        if not times_ms:
            return CaptureFilter(_BEYOND_ALL_TIMES_MS)
        return CaptureFilter(min(times_ms), max(times_ms) + 1)
    value = getattr(condition, "value", None)
    if not isinstance(value, datetime):
        return CaptureFilter()
    at_ms = _floor_ms(value)
    if kind in ("EqualTo", "EqualNullSafe"):
        return CaptureFilter(at_ms, at_ms + 1)
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return CaptureFilter(from_ms=at_ms)
    return CaptureFilter(until_ms=at_ms + 1) if kind in ("LessThan", "LessThanOrEqual") else CaptureFilter()


def _floor_ms(moment: datetime) -> int:
    """Round down to ms. Spark passes times in UTC."""
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (zoned - datetime(1970, 1, 1, tzinfo=UTC)) // _MILLISECOND
