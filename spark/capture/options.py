"""Options of `rocketmq-capture`, and the parsed form that is pickled for the tasks."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from codec.capture import CaptureBlock
from codec.capture import may_contain as block_may_contain
from spark.capture.columns import BODY, DAMAGE, EXCHANGES, FRAMES, MESSAGES
from spark.errors import OptionError
from spark.options import Option, boolean, choice, integer, names, parse_time_ms, read_options
from spark.schema import Column, arrow_schema, spark_ddl

NAME: Final = "rocketmq-capture"


def parse_paths(value: str) -> tuple[str, ...]:
    """Parse one path, or several as a JSON list."""
    text = value.strip()
    if text.startswith("["):
        try:
            paths = json.loads(text)
        except ValueError:
            paths = None  # a pattern such as [ab]*.rmqcap
        if isinstance(paths, list) and paths and all(isinstance(path, str) and path for path in paths):
            return tuple(paths)
    if not text:
        raise ValueError("must not be empty")
    return (text,)


def parse_codes(value: str) -> tuple[int, ...]:
    """Parse request codes separated by commas."""
    try:
        return tuple(int(code) for code in names(value))
    except ValueError:
        raise ValueError("must be request codes, e.g. 10,310,320") from None


OPTIONS: Final = (
    Option(
        "path",
        parse_paths,
        None,
        "Capture file, folder or pattern (`*`, `**`), or a JSON list of several; the argument of `load(…)`. Driver and "
        "executors must see the same files there.",
        ("paths",),
    ),
    Option(
        "rows",
        choice("exchanges", "messages", "damage"),
        "exchanges",
        "Kind of rows: requests with their answers; messages sent or read; damaged parts of files.",
    ),
    Option("topics", names, None, "Select topics, separated by commas.", ("subscribe", "topic")),
    Option("codes", parse_codes, None, "Select request codes, separated by commas."),
    Option(
        "startingTimestamp",
        parse_time_ms,
        None,
        "Select requests that arrived at or after this time: ms since 1970, or ISO 8601.",
    ),
    Option("endingTimestamp", parse_time_ms, None, "Select requests that arrived before this time."),
    Option(
        "columns",
        names,
        None,
        "Select columns, separated by commas, in this order. Other columns are not decoded.",
    ),
    Option(
        "includeBodies",
        boolean,
        False,
        "Add the column `body` to exchanges. Messages always have it.",
        ("includeBody",),
    ),
    Option("includeFrames", boolean, False, "Add the columns `request`, `answer` and `target` to exchanges."),
    Option(
        "failOnDamage",
        boolean,
        True,
        "Fail at damage in a file. If false, log it and skip it. The end of a file that is being written is never "
        "damage.",
    ),
    Option(
        "failOnDataLoss",
        boolean,
        True,
        "Fail if a file was removed before it was read. If false, log a warning.",
    ),
    Option("minPartitions", integer(1), None, "Minimum number of tasks, if there are as many blocks."),
    Option("maxPartitions", integer(1), None, "Maximum number of tasks."),
    Option("partitionBytes", integer(1), 16 << 20, "Compressed bytes that one task reads."),
    Option(
        "maxRecordsPerTrigger",
        integer(1),
        None,
        "Streaming: maximum number of exchanges in a batch. A batch consists of whole blocks, at least one.",
        ("maxOffsetsPerTrigger",),
    ),
    Option(
        "maxBytesPerTrigger",
        integer(1),
        None,
        "Streaming: maximum size of a batch, compressed bytes. A batch has at least one block.",
    ),
    Option(
        "arrowBatchBytes",
        integer(1 << 10),
        4 << 20,
        "Size of the record batches handed to Spark, bytes.",
    ),
    Option(
        "pushFilters",
        boolean,
        False,
        "Batch: skip blocks by Spark's filters on `time`, `topic` and `code`. Needs "
        "`spark.sql.python.filterPushdown.enabled=true`; Spark fails without it.",
    ),
)


@dataclass(frozen=True, slots=True)
class CaptureFilter:
    """Selects exchanges that arrived in [from_ms, until_ms), of these topics and codes. None means any."""

    from_ms: int | None = None
    until_ms: int | None = None
    topics: frozenset[str] | None = None
    codes: frozenset[int] | None = None

    def may_match_block(self, block: CaptureBlock) -> bool:
        """Return False if no record of a block can match. `codes` cannot tell: blocks do not list request codes."""
        return block_may_contain(block, from_ms=self.from_ms, until_ms=self.until_ms, topics=self.topics)

    def intersect_with(self, other: "CaptureFilter") -> "CaptureFilter":
        """Return the filter that matches the exchanges that both match."""
        starts = [time_ms for time_ms in (self.from_ms, other.from_ms) if time_ms is not None]
        ends = [time_ms for time_ms in (self.until_ms, other.until_ms) if time_ms is not None]
        return replace(
            self,
            from_ms=max(starts, default=None),
            until_ms=min(ends, default=None),
            topics=_intersect_sets(self.topics, other.topics),
            codes=_intersect_sets(self.codes, other.codes),
        )


def _intersect_sets(left: frozenset[Any] | None, right: frozenset[Any] | None) -> frozenset[Any] | None:
    if left is None or right is None:
        return right if left is None else left
    return left & right


@dataclass(frozen=True, slots=True)
class CaptureSpec:
    """Reading options, the same for all tasks of a query."""

    paths: tuple[str, ...]
    rows: str = "exchanges"
    record_filter: CaptureFilter = CaptureFilter()
    columns: tuple[str, ...] | None = None
    include_bodies: bool = False
    include_frames: bool = False
    fail_on_damage: bool = True
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_partitions: int | None = None
    partition_bytes: int = 16 << 20
    max_records: int | None = None
    max_bytes: int | None = None
    arrow_batch_bytes: int = 4 << 20
    push_filters: bool = False

    @classmethod
    def from_options(cls, raw: Mapping[str, str]) -> "CaptureSpec":
        """Parse the options. Raises OptionError."""
        values = read_options(raw, OPTIONS, NAME)
        if not values["path"]:
            raise OptionError(f"{NAME}: path is required: load(folder), or option path")
        spec = cls(
            paths=values["path"],
            rows=values["rows"],
            record_filter=_filter_from_options(values),
            columns=values["columns"],
            include_bodies=values["includeBodies"],
            include_frames=values["includeFrames"],
            fail_on_damage=values["failOnDamage"],
            fail_on_data_loss=values["failOnDataLoss"],
            min_partitions=values["minPartitions"],
            max_partitions=values["maxPartitions"],
            partition_bytes=values["partitionBytes"],
            max_records=values["maxRecordsPerTrigger"],
            max_bytes=values["maxBytesPerTrigger"],
            arrow_batch_bytes=values["arrowBatchBytes"],
            push_filters=values["pushFilters"],
        )
        spec._check_columns()
        return spec

    def _check_columns(self) -> None:
        column_names = {column.name for column in self._all_columns()}
        unknown = [name for name in self.columns or () if name not in column_names]
        if unknown:
            raise OptionError(
                f"{NAME}: option columns: there is no column {unknown[0]}; columns: {', '.join(sorted(column_names))}"
            )
        low, high = self.min_partitions, self.max_partitions
        if low is not None and high is not None and low > high:
            raise OptionError(f"{NAME}: minPartitions is larger than maxPartitions")

    def _all_columns(self) -> tuple[Column, ...]:
        if self.rows == "messages":
            return MESSAGES
        if self.rows == "damage":
            return DAMAGE
        return EXCHANGES + (BODY,) * self.include_bodies + (FRAMES if self.include_frames else ())

    def selected_columns(self) -> tuple[Column, ...]:
        """Return the columns of a row, in order."""
        declared = self._all_columns()
        if self.columns is None:
            return declared
        by_name = {column.name: column for column in declared}
        return tuple(by_name[name] for name in self.columns)

    def arrow_schema(self) -> pa.Schema:
        """Return the Arrow schema of every record batch."""
        return arrow_schema(self.selected_columns())

    def spark_ddl(self) -> str:
        """Return the schema in Spark's syntax."""
        return spark_ddl(self.selected_columns())


def _filter_from_options(values: Mapping[str, Any]) -> CaptureFilter:
    start, end = values["startingTimestamp"], values["endingTimestamp"]
    if start is not None and end is not None and start >= end:
        raise OptionError(f"{NAME}: startingTimestamp is not before endingTimestamp")
    return CaptureFilter(
        start,
        end,
        frozenset(values["topics"]) if values["topics"] else None,
        frozenset(values["codes"]) if values["codes"] else None,
    )
