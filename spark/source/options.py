"""Options of the source `rocketmq`. They have the Kafka connector's names wherever the idea is the same."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from spark.endpoint import OPTIONS as ENDPOINT_OPTIONS
from spark.endpoint import ClusterEndpoint
from spark.errors import OptionError
from spark.options import Option, boolean, choice, integer, names, read_options, text
from spark.pull.read_spec import RANGES_SCHEMA, ReadSpec
from spark.source.offset_json import Offsets, offsets_from_json

SOURCE: Final = "rocketmq"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
COMMITTED: Final = "committed"
LATEST_OFFSET: Final = -1
EARLIEST_OFFSET: Final = -2
"""Offsets that stand for the end and the beginning of a queue, as in the Kafka connector."""

_READ_DEFAULTS: Final = {field.name: field.default for field in fields(ReadSpec)}

AssignedQueues = dict[str, dict[str, tuple[int, ...]]]


def _offsets_parser(*words: str) -> Any:
    """Return a parser for one of these words or offsets per queue as JSON."""

    def read(value: str) -> str | Offsets:
        if value.strip().lower() in words:
            return value.strip().lower()
        offsets = _parse_by_queue(value, f"must be {', '.join(words)} or JSON")
        for queue, offset in offsets.items():
            if offset < EARLIEST_OFFSET or (offset == EARLIEST_OFFSET and EARLIEST not in words):
                raise ValueError(f"{queue} cannot be at {offset}")
        return offsets

    return read


def _parse_times(value: str) -> Offsets:
    times_ms = _parse_by_queue(value, "must be JSON")
    for queue, time_ms in times_ms.items():
        if time_ms < 0:
            raise ValueError(f"{queue} cannot be at {time_ms} ms")
    return times_ms


def _parse_by_queue(value: str, otherwise: str) -> Offsets:
    try:
        nested = json.loads(value)
    except json.JSONDecodeError:
        raise ValueError(f'{otherwise} like {{"topic": {{"broker": {{"0": 23}}}}}}') from None
    return offsets_from_json(nested)


def _parse_assigned(value: str) -> AssignedQueues:
    shape = 'must look like {"topic": {"broker": [0, 1]}}'
    try:
        nested = json.loads(value)
        assigned = {
            topic: {
                broker: tuple(sorted({_parse_queue_id(number) for number in ids}))
                for broker, ids in brokers.items()
            }
            for topic, brokers in nested.items()
        }
    except (json.JSONDecodeError, AttributeError, TypeError):
        raise ValueError(shape) from None
    if not assigned or not all(brokers and all(brokers.values()) for brokers in assigned.values()):
        raise ValueError(shape)
    return assigned


def _parse_queue_id(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a queue number")
    return value


def _parse_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return text(value)


def _parse_duration_s(value: str) -> float:
    """Parse `30` (seconds) or a number with a unit: ms, s, m, h, d."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?\s*", value.lower())
    if match is None:
        raise ValueError("must be a number with a unit, like 500ms, 30s, 15m or 1h")
    units = {"ms": 0.001, None: 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    return float(match[1]) * units[match[2]]


TOPICS: Final = (
    Option("subscribe", names, None, "Topics, separated by commas.", ("topic",)),
    Option(
        "subscribePattern", _parse_pattern, None, "Regular expression that must match the whole topic name."
    ),
    Option("assign", _parse_assigned, None, 'Individual queues: `{"topic": {"broker": [0, 1]}}`.'),
)
POSITIONS: Final = (
    Option(
        "startingOffsets",
        _offsets_parser(EARLIEST, LATEST, COMMITTED),
        None,
        "`earliest` (default of a batch), `latest` (default of a stream), `committed` (offsets of `consumerGroup`), or "
        'offsets per queue, `{"topic": {"broker": {"0": 23, "1": -2}}}`, where -2 is earliest and -1 is latest.',
    ),
    Option(
        "startingTimestamp",
        integer(0),
        None,
        "Start at the first message stored at or after this time, ms since 1970.",
    ),
    Option(
        "startingOffsetsByTimestamp", _parse_times, None, "Starting time per queue, as JSON like offsets."
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        choice("error", "latest"),
        "error",
        "If a queue holds nothing stored at or after the starting time: fail, or start at its end.",
    ),
    Option(
        "endingOffsets",
        _offsets_parser(LATEST),
        None,
        "Batch only: `latest` (default) or exclusive end offsets per queue, where -1 is latest.",
    ),
    Option(
        "endingTimestamp",
        integer(0),
        None,
        "Batch only: end before the first message stored at or after this time, ms.",
    ),
    Option("endingOffsetsByTimestamp", _parse_times, None, "Ending time per queue, as JSON like offsets."),
)
LIMITS: Final = (
    Option("maxOffsetsPerTrigger", integer(1), None, "Stream only: maximum number of messages in a batch."),
    Option(
        "maxBytesPerTrigger",
        integer(1),
        None,
        "Stream only: approximate maximum size of a batch, bytes as stored (estimated from sampled message sizes).",
    ),
    Option(
        "minOffsetsPerTrigger", integer(1), None, "Stream only: wait until this many messages are available …"
    ),
    Option(
        "maxTriggerDelay",
        _parse_duration_s,
        900.0,
        "… but no longer than this: `30s`, `15m`, `1h`.",
    ),
)
PARTITIONS: Final = (
    Option("minPartitions", integer(1), None, "Minimum number of partitions; large queues are split."),
    Option("maxPartitions", integer(1), None, "Maximum number of partitions; small queues are grouped."),
    Option(
        "maxRecordsPerPartition",
        integer(1),
        None,
        "Maximum number of messages in a partition; takes precedence over both.",
    ),
    Option(
        "minRecordsPerPartition",
        integer(1),
        500,
        "Queues with fewer messages are grouped, unless `minPartitions` forbids it: every partition has a fixed cost.",
    ),
)
READING: Final = (
    Option(
        "schema",
        choice("rocketmq", "kafka", RANGES_SCHEMA),
        "rocketmq",
        "Columns of this source, columns of the Kafka connector, or offset ranges instead of messages: "
        "docs/explanation/spark-performance.md, *Fetching where they are needed*.",
    ),
    Option("columns", names, None, "Select these columns, in this order."),
    Option("includeBody", boolean, True, "If false, the body is null and is not decompressed."),
    Option(
        "includeProperties",
        boolean,
        None,
        "If false, properties (headers) are null. Default: true, for `schema=kafka` false.",
        ("includeHeaders",),
    ),
    Option("subExpression", text, "*", "Filter expression, applied by the broker."),
    Option("subExpressionType", choice("TAG", "SQL92"), "TAG", "Type of `subExpression`."),
    Option(
        "failOnDataLoss",
        boolean,
        True,
        "Fail if messages are missing or damaged. If false, skip them and log a warning.",
    ),
    Option(
        "pullBatchSize",
        integer(1, 1 << 20),
        _READ_DEFAULTS["pull_batch_size"],
        "Messages requested per pull.",
    ),
    Option(
        "pullPipelineDepth",
        integer(1, 1024),
        _READ_DEFAULTS["pipeline_depth"],
        "Maximum number of pulls in flight per connection.",
    ),
    Option(
        "arrowBatchBytes",
        integer(1),
        _READ_DEFAULTS["arrow_batch_bytes"],
        "Size of the record batches handed to Spark, bytes of stored messages.",
    ),
    Option(
        "maxMessagesPerSecond",
        integer(0),
        0,
        "Maximum number of messages per second and partition; 0: no limit.",
    ),
    Option(
        "verifyBodyCrc",
        boolean,
        _READ_DEFAULTS["verify_body_crc"],
        "Verify the checksums of bodies, as stock clients do.",
    ),
)
OTHER: Final = (
    Option(
        "consumerGroup",
        text,
        None,
        "Consumer group for `committed` and `commitOffsetsToBroker`.",
        ("kafka.group.id",),
    ),
    Option(
        "commitOffsetsToBroker",
        boolean,
        False,
        "Commit progress as offsets of `consumerGroup`, for tools that show lag.",
    ),
    Option(
        "metadataMaxAgeMs",
        integer(0),
        5000,
        "Maximum age of topic routes, ms: new topics, queues and brokers are noticed after this time.",
    ),
    Option(
        "pushFilters",
        boolean,
        False,
        "Batch only: use Spark's filters, under conditions: docs/reference/spark/source.md, *Filters*.",
    ),
)
OPTIONS: Final = (*ENDPOINT_OPTIONS, *TOPICS, *POSITIONS, *LIMITS, *PARTITIONS, *READING, *OTHER)

_ONLY_STREAM: Final = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger")
_ONLY_BATCH: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


def source_options(raw: Mapping[str, str]) -> dict[str, Any]:
    """Return the value of every option. Raises OptionError, also for options that contradict each other."""
    values = read_options(raw, OPTIONS, SOURCE)
    _require_at_most_one(values, "subscribe", "subscribePattern", "assign", needed=True)
    _require_at_most_one(values, "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
    _require_at_most_one(values, "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    for option in ("startingOffsets", "commitOffsetsToBroker"):
        if values[option] in (COMMITTED, True) and values["consumerGroup"] is None:
            raise OptionError(f"{SOURCE}: option {option} requires consumerGroup")
    if (values["minPartitions"] or 1) > (values["maxPartitions"] or values["minPartitions"] or 1):
        raise OptionError(f"{SOURCE}: minPartitions is greater than maxPartitions")
    if values["schema"] == RANGES_SCHEMA and values["pushFilters"]:
        raise OptionError(f"{SOURCE}: schema={RANGES_SCHEMA} and pushFilters contradict each other")
    if (values["minOffsetsPerTrigger"] or 0) > (values["maxOffsetsPerTrigger"] or 1 << 62):
        raise OptionError(f"{SOURCE}: minOffsetsPerTrigger is greater than maxOffsetsPerTrigger")
    return values


def refuse_stream_options(values: Mapping[str, Any]) -> None:
    """Raise OptionError for a batch with options that only a stream has, or that would read nothing."""
    _refuse_options(values, _ONLY_STREAM, "a stream")
    starts, ends = values["startingOffsets"], values["endingOffsets"]
    if starts == LATEST or (isinstance(starts, dict) and LATEST_OFFSET in starts.values()):
        raise OptionError(f"{SOURCE}: a batch that starts at the latest offset reads nothing")
    if isinstance(starts, dict) and isinstance(ends, dict):
        _refuse_reversed(starts, ends)
    first, last = values["startingTimestamp"], values["endingTimestamp"]
    if first is not None and last is not None and first > last:
        raise OptionError(f"{SOURCE}: startingTimestamp is after endingTimestamp")


def _refuse_reversed(starts: Offsets, ends: Offsets) -> None:
    for queue, start in starts.items():
        if 0 <= ends.get(queue, LATEST_OFFSET) < start:
            raise OptionError(f"{SOURCE}: {queue} would start at {start} and end at {ends[queue]}, before it")


def refuse_batch_options(values: Mapping[str, Any]) -> None:
    """Raise OptionError for a stream with options that only a batch has."""
    _refuse_options(values, _ONLY_BATCH, "a batch")


def _refuse_options(values: Mapping[str, Any], options: tuple[str, ...], what: str) -> None:
    for option in options:
        if values[option] is not None:
            raise OptionError(f"{SOURCE}: option {option} only applies to {what}")


def check_batch_options(raw: Mapping[str, str]) -> None:
    """Check the options of a batch, as far as that is possible without Spark. Raises OptionError."""
    values = source_options(raw)
    refuse_stream_options(values)
    read_spec(values)


def _require_at_most_one(values: Mapping[str, Any], *options: str, needed: bool = False) -> None:
    chosen = [option for option in options if values[option] is not None]
    if len(chosen) > 1:
        raise OptionError(f"{SOURCE}: {' and '.join(chosen)} contradict each other: use only one of them")
    if needed and not chosen:
        raise OptionError(f"{SOURCE}: one of the options {', '.join(options)} is required")


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Queues that a query reads, by name, by pattern, or assigned. Exactly one of the three is set."""

    names: tuple[str, ...] | None = None
    pattern: str | None = None
    assigned: AssignedQueues | None = None

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> "TopicSelection":
        """Build the selection from the result of `source_options`."""
        return cls(values["subscribe"], values["subscribePattern"], values["assign"])


def read_spec(values: Mapping[str, Any]) -> ReadSpec:
    """Build the reading options from the result of `source_options`. Raises OptionError."""
    properties = values["includeProperties"]
    spec = ReadSpec(
        endpoint=ClusterEndpoint.from_options(values, SOURCE),
        schema=values["schema"],
        include_body=values["includeBody"],
        include_properties=values["schema"] != "kafka" if properties is None else properties,
        columns=values["columns"],
        expression=values["subExpression"],
        expression_type=values["subExpressionType"],
        fail_on_data_loss=values["failOnDataLoss"],
        pull_batch_size=values["pullBatchSize"],
        pipeline_depth=values["pullPipelineDepth"],
        arrow_batch_bytes=values["arrowBatchBytes"],
        max_messages_per_second=values["maxMessagesPerSecond"],
        verify_body_crc=values["verifyBodyCrc"],
    )
    try:
        spec.selected_columns()
    except KeyError as error:
        raise OptionError(f"{SOURCE}: option columns: there is no column {error.args[0]}") from None
    return spec
