"""The data source `rocketmq-capture` as Spark sees it. Not responsible for options, files nor rows.

spark.read.format("rocketmq-capture").option("topics", "Orders").load("/var/lib/shadow/capture")
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
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

from spark.capture.block_filters import combine_filters
from spark.capture.capture_file import CaptureFileReader, find_files
from spark.capture.options import NAME, CaptureSpec
from spark.capture.stream_progress import CaptureProgress
from spark.capture.task_planning import BlockPlan, FileRange
from spark.capture.task_reader import read_file_ranges
from spark.errors import OptionError

__all__: Final = ["CaptureSource"]


class CapturePartition(InputPartition):
    """What one task reads."""

    def __init__(self, stretches: tuple[FileRange, ...]) -> None:
        super().__init__(None)
        self.ranges = stretches


class CaptureSource(DataSource):
    """Capture files of the shadow gateway: `spark.read` and `spark.readStream`."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return NAME

    def schema(self) -> str:
        """By the options `rows`, `columns`, `includeBodies` and `includeFrames`."""
        return CaptureSpec.from_options(self.options).spark_ddl()

    def reader(self, schema: StructType) -> "CaptureReader":
        """For batch queries."""
        spec = CaptureSpec.from_options(self.options)
        return FilteringCaptureReader(spec) if spec.push_filters else CaptureReader(spec)

    def streamReader(self, schema: StructType) -> "CaptureStreamReader":
        """For streams."""
        return CaptureStreamReader(CaptureSpec.from_options(self.options))


class CaptureReader(DataSourceReader):
    """What the files hold when the query begins."""

    def __init__(self, spec: CaptureSpec) -> None:
        self.spec = spec

    def partitions(self) -> Sequence[InputPartition]:
        """Raises OptionError where no file is found, OSError where one cannot be read."""
        paths = find_files(self.spec.paths)
        if not paths:
            raise OptionError(f"{NAME}: no capture files at {', '.join(self.spec.paths)}")
        pieces = BlockPlan()
        wanted = replace(self.spec.record_filter, codes=None)
        for path in paths:
            with CaptureFileReader(path) as file:
                pieces.add_file(file, wanted)
        return [CapturePartition(each) for each in pieces.group_into_partitions(self.spec)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Without any partition Spark asks for one that is none."""
        stretches = partition.ranges if isinstance(partition, CapturePartition) else ()
        return read_file_ranges(self.spec, stretches)


class FilteringCaptureReader(CaptureReader):
    """The same with Spark's filters; Spark refuses this class unless it was told to push filters."""

    def pushFilters(self, filters: list[SparkFilter]) -> Iterator[SparkFilter]:
        """Takes note of what helps and hands all back."""
        if self.spec.rows == "exchanges":
            self.spec = replace(
                self.spec, record_filter=self.spec.record_filter.intersect_with(combine_filters(filters))
            )
        return iter(filters)


class CaptureStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Blocks as they appear. Offsets are places in files; files that were removed leave them."""

    def __init__(self, spec: CaptureSpec) -> None:
        self.spec = spec
        self._progress: CaptureProgress | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.spec, "_progress": None}

    @property
    def file_progress(self) -> CaptureProgress:
        """What is known of the files; in the driver only."""
        if self._progress is None:
            self._progress = CaptureProgress(self.spec)
        return self._progress

    def initialOffset(self) -> dict[str, Any]:
        """Everything there is; `startingTimestamp` leaves out what is older."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """The options' limits are applied by `latestOffset`, both together."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on, only what is there now."""
        self.file_progress.freeze_end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends."""
        return self.file_progress.next_end(start)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What lies between."""
        pieces = self.file_progress.plan_batch(start, end)
        return [CapturePartition(each) for each in pieces.group_into_partitions(self.spec)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        stretches = partition.ranges if isinstance(partition, CapturePartition) else ()
        return read_file_ranges(self.spec, stretches)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the checkpoint knows, and the gateway removes files by its own rules."""
