"""The options of `rocketmq-capture`, and what they come to: a picklable description of what is read.

Not responsible for reading.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from codec.capture import CaptureBlock
from codec.capture import may_contain as block_wanted
from spark.capture.columns import BODY, DAMAGE, EXCHANGES, FRAMES, MESSAGES
from spark.errors import OptionError
from spark.options import Option, boolean, choice, integer, names, parse_time_ms, read_options
from spark.schema import Column, arrow_schema, spark_ddl

NAME: Final = "rocketmq-capture"


def parse_paths(value: str) -> tuple[str, ...]:
    """One path, or several as a JSON list."""
    text = value.strip()
    if text.startswith("["):
        try:
            found = json.loads(text)
        except ValueError:
            found = None  # a pattern such as [ab]*.rmqcap
        if isinstance(found, list) and found and all(isinstance(each, str) and each for each in found):
            return tuple(found)
    if not text:
        raise ValueError("must not be empty")
    return (text,)


def parse_codes(value: str) -> tuple[int, ...]:
    """Request codes between commas."""
    try:
        return tuple(int(each) for each in names(value))
    except ValueError:
        raise ValueError("must be request codes, e.g. 10,310,320") from None


OPTIONS: Final = (
    Option(
        "path",
        parse_paths,
        None,
        "Capture file, folder or pattern (`*`, `**`), or a JSON list of several; what `load(…)` is given. Driver and "
        "executors must see the same files there.",
        ("paths",),
    ),
    Option(
        "rows",
        choice("exchanges", "messages", "damage"),
        "exchanges",
        "What a row is: a request with its answers; a message sent or read; a piece of a file that cannot be read.",
    ),
    Option("topics", names, None, "Only these topics, between commas.", ("subscribe", "topic")),
    Option("codes", parse_codes, None, "Only these request codes, between commas."),
    Option(
        "startingTimestamp",
        parse_time_ms,
        None,
        "Only requests that arrived at or after this time: ms since 1970, or ISO 8601.",
    ),
    Option("endingTimestamp", parse_time_ms, None, "Only requests that arrived before this time."),
    Option(
        "columns",
        names,
        None,
        "Only these columns, between commas, in this order: what is not asked for is not decoded.",
    ),
    Option(
        "includeBodies",
        boolean,
        False,
        "Exchanges have a column `body`. Messages always have it.",
        ("includeBody",),
    ),
    Option("includeFrames", boolean, False, "Exchanges have the columns `request`, `answer` and `target`."),
    Option(
        "failOnDamage",
        boolean,
        True,
        "Whether the query fails at what cannot be read. If not, it is logged and passed over. The end of a file that "
        "is being written is never damage.",
    ),
    Option(
        "failOnDataLoss",
        boolean,
        True,
        "Whether the query fails when a file was removed before it was read. If not, that is logged.",
    ),
    Option(
        "minPartitions", integer(1), None, "Read with at least so many tasks, if there are as many blocks."
    ),
    Option("maxPartitions", integer(1), None, "Read with at most so many tasks."),
    Option("partitionBytes", integer(1), 16 << 20, "Bytes of a file, compressed, that one task reads."),
    Option(
        "maxRecordsPerTrigger",
        integer(1),
        None,
        "Streaming: at most so many exchanges in a batch, in whole blocks and at least one block.",
        ("maxOffsetsPerTrigger",),
    ),
    Option("maxBytesPerTrigger", integer(1), None, "Streaming: the same in bytes of files, compressed."),
    Option(
        "arrowBatchBytes",
        integer(1 << 10),
        4 << 20,
        "A batch of rows is handed to Spark when it is this large.",
    ),
    Option(
        "pushFilters",
        boolean,
        False,
        "Batch: Spark's filters on `time`, `topic` and `code` skip blocks. Needs "
        "`spark.sql.python.filterPushdown.enabled=true`; Spark fails without it.",
    ),
)


@dataclass(frozen=True, slots=True)
class CaptureFilter:
    """Which exchanges: arrived in [from_ms, until_ms), of these topics and codes; None: any."""

    from_ms: int | None = None
    until_ms: int | None = None
    topics: frozenset[str] | None = None
    codes: frozenset[int] | None = None

    def may_match_block(self, block: CaptureBlock) -> bool:
        """False when nothing of a block is wanted."""
        return block_wanted(block, from_ms=self.from_ms, until_ms=self.until_ms, topics=self.topics)

    def intersect_with(self, other: "CaptureFilter") -> "CaptureFilter":
        """What both want."""
        starts = [each for each in (self.from_ms, other.from_ms) if each is not None]
        ends = [each for each in (self.until_ms, other.until_ms) if each is not None]
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
    """What is read and how; the same for all tasks of a query."""

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
        """Raises OptionError."""
        given = read_options(raw, OPTIONS, NAME)
        if not given["path"]:
            raise OptionError(f"{NAME}: no path is given: load(folder), or option path")
        spec = cls(
            paths=given["path"],
            rows=given["rows"],
            record_filter=_filter_from_options(given),
            columns=given["columns"],
            include_bodies=given["includeBodies"],
            include_frames=given["includeFrames"],
            fail_on_damage=given["failOnDamage"],
            fail_on_data_loss=given["failOnDataLoss"],
            min_partitions=given["minPartitions"],
            max_partitions=given["maxPartitions"],
            partition_bytes=given["partitionBytes"],
            max_records=given["maxRecordsPerTrigger"],
            max_bytes=given["maxBytesPerTrigger"],
            arrow_batch_bytes=given["arrowBatchBytes"],
            push_filters=given["pushFilters"],
        )
        spec._check_columns()
        return spec

    def _check_columns(self) -> None:
        known = {column.name for column in self._all_columns()}
        unknown = [name for name in self.columns or () if name not in known]
        if unknown:
            raise OptionError(
                f"{NAME}: option columns: there is no column {unknown[0]}; there are {sorted(known)}"
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
        """The columns of a row, in order."""
        declared = self._all_columns()
        if self.columns is None:
            return declared
        by_name = {column.name: column for column in declared}
        return tuple(by_name[name] for name in self.columns)

    def arrow_schema(self) -> pa.Schema:
        """What every batch of rows has to look like."""
        return arrow_schema(self.selected_columns())

    def spark_ddl(self) -> str:
        """The same as a schema of Spark."""
        return spark_ddl(self.selected_columns())


def _filter_from_options(given: Mapping[str, Any]) -> CaptureFilter:
    start, end = given["startingTimestamp"], given["endingTimestamp"]
    if start is not None and end is not None and start >= end:
        raise OptionError(f"{NAME}: startingTimestamp is not before endingTimestamp")
    return CaptureFilter(
        start,
        end,
        frozenset(given["topics"]) if given["topics"] else None,
        frozenset(given["codes"]) if given["codes"] else None,
    )
