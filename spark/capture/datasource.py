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

from spark.capture.files import CaptureFile, expand
from spark.capture.filters import narrowing
from spark.capture.options import NAME, CaptureSpec
from spark.capture.planning import Pieces, Stretch
from spark.capture.progress import Progress
from spark.capture.reading import read_stretches
from spark.errors import OptionError

__all__: Final = ["CaptureSource"]


class Stretches(InputPartition):
    """What one task reads."""

    def __init__(self, stretches: tuple[Stretch, ...]) -> None:
        super().__init__(None)
        self.stretches = stretches


class CaptureSource(DataSource):
    """Capture files of the shadow gateway: `spark.read` and `spark.readStream`."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return NAME

    def schema(self) -> str:
        """By the options `rows`, `columns`, `includeBodies` and `includeFrames`."""
        return CaptureSpec.from_options(self.options).ddl()

    def reader(self, schema: StructType) -> "CaptureReader":
        """For batch queries."""
        spec = CaptureSpec.from_options(self.options)
        return FilteringReader(spec) if spec.push_filters else CaptureReader(spec)

    def streamReader(self, schema: StructType) -> "CaptureStreamReader":
        """For streams."""
        return CaptureStreamReader(CaptureSpec.from_options(self.options))


class CaptureReader(DataSourceReader):
    """What the files hold when the query begins."""

    def __init__(self, spec: CaptureSpec) -> None:
        self.spec = spec

    def partitions(self) -> Sequence[InputPartition]:
        """Raises OptionError where no file is found, OSError where one cannot be read."""
        paths = expand(self.spec.paths)
        if not paths:
            raise OptionError(f"{NAME}: no capture files at {', '.join(self.spec.paths)}")
        pieces = Pieces()
        wanted = replace(self.spec.wanted, codes=None)
        for path in paths:
            with CaptureFile(path) as file:
                pieces.add(file, wanted)
        return [Stretches(each) for each in pieces.partitions(self.spec)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Without any partition Spark asks for one that is none."""
        stretches = partition.stretches if isinstance(partition, Stretches) else ()
        return read_stretches(self.spec, stretches)


class FilteringReader(CaptureReader):
    """The same with Spark's filters; Spark refuses this class unless it was told to push filters."""

    def pushFilters(self, filters: list[SparkFilter]) -> Iterator[SparkFilter]:
        """Takes note of what helps and hands all back."""
        if self.spec.rows == "exchanges":
            self.spec = replace(self.spec, wanted=self.spec.wanted.narrowed(narrowing(filters)))
        return iter(filters)


class CaptureStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Blocks as they appear. Offsets are places in files; files that were removed leave them."""

    def __init__(self, spec: CaptureSpec) -> None:
        self.spec = spec
        self._progress: Progress | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.spec, "_progress": None}

    @property
    def progress(self) -> Progress:
        """What is known of the files; in the driver only."""
        if self._progress is None:
            self._progress = Progress(self.spec)
        return self._progress

    def initialOffset(self) -> dict[str, Any]:
        """Everything there is; `startingTimestamp` leaves out what is older."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """The options' limits are applied by `latestOffset`, both together."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on, only what is there now."""
        self.progress.freeze()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends."""
        return self.progress.next(start)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What lies between."""
        pieces = self.progress.between(start, end)
        return [Stretches(each) for each in pieces.partitions(self.spec)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        stretches = partition.stretches if isinstance(partition, Stretches) else ()
        return read_stretches(self.spec, stretches)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the checkpoint knows, and the gateway removes files by its own rules."""
