"""Counts the messages of a topic that a broker still holds back: half messages, delayed messages, timer messages.

The counts come from the broker itself, so that messages sent before the gateway started are included. `checks` decides
what follows from them.
"""

from collections.abc import Iterator
from typing import Any, Final

from codec import fastjson
from codec import properties as names
from codec.constants import ResponseCode
from codec.errors import MessageFormatError
from codec.java_numbers import I64, parse_integer_or, parse_java_integer, quoted
from codec.topics import SCHEDULE_TOPIC, TRANS_GROUP, TRANS_HALF_TOPIC, TRANS_OP_TOPIC
from gateway.shadow.clusters.cluster_pair import ClusterPair, QueueRange
from gateway.shadow.traffic.exchange import Side
from remoting.errors import RequestError
from remoting.requests.offsets import GetAllDelayOffset
from remoting.requests.timers import GetTimerMetrics

MAX_SCANNED_MESSAGES: Final = 20_000
"""Maximum number of messages that are read to find those of one topic."""


class TooManyHeldBack(Exception):
    """More messages are held back than are scanned, so that the share of one topic is unknown."""


async def count_half_messages(clusters: ClusterPair, side: Side, broker: str, topic: str) -> int:
    """Count the half messages of a topic that were neither committed nor rolled back.

    A half message has ended if the op topic names it at or after its group's offset, or if it lies before the group's
    offset in the half topic. Source: TransactionalMessageServiceImpl.check, 5.4.0. A broker may record an end there 3
    s late. Raises TooManyHeldBack, MessageFormatError.
    """
    halves = await _unconsumed_range(clusters, side, broker, TRANS_HALF_TOPIC)
    if halves.low >= halves.high:
        return 0
    ops = await _unconsumed_range(clusters, side, broker, TRANS_OP_TOPIC)
    _require_scannable(halves.high - halves.low + ops.high - ops.low, "half messages and their ends")
    ended: set[int] = set()
    async for op in clusters.read_messages(side, broker, TRANS_OP_TOPIC, 0, ops.low, ops.high):
        ended.update(_parse_op_offsets(op.body))
    waiting = 0
    async for half in clusters.read_messages(side, broker, TRANS_HALF_TOPIC, 0, halves.low, halves.high):
        waiting += half.queue_offset not in ended and half.properties.get(names.REAL_TOPIC) == topic
    return waiting


async def _unconsumed_range(clusters: ClusterPair, side: Side, broker: str, topic: str) -> QueueRange:
    whole = (await clusters.queue_ranges(side, broker, topic)).get(0, QueueRange(0, 0))
    offset = await clusters.consumer_offset(side, broker, TRANS_GROUP, topic, 0)
    return QueueRange(max(whole.low, offset or 0), whole.high)


async def count_delayed_messages(clusters: ClusterPair, side: Side, broker: str, topic: str) -> int:
    """Count the messages of a topic that wait for a delay level. Raises TooManyHeldBack, MessageFormatError."""
    levels = await clusters.queue_ranges(side, broker, SCHEDULE_TOPIC)
    delivered = await _delivered_offsets(clusters, side, broker)
    unread = {
        queue: QueueRange(max(level_range.low, delivered.get(queue + 1, 0)), level_range.high)
        for queue, level_range in levels.items()
    }
    _require_scannable(
        sum(max(0, queue_range.high - queue_range.low) for queue_range in unread.values()), "delayed messages"
    )
    waiting = 0
    for queue, queue_range in unread.items():
        async for message in clusters.read_messages(
            side, broker, SCHEDULE_TOPIC, queue, queue_range.low, queue_range.high
        ):
            waiting += message.properties.get(names.REAL_TOPIC) == topic
    return waiting


async def _delivered_offsets(clusters: ClusterPair, side: Side, broker: str) -> dict[int, int]:
    """Return the next queue offset to deliver by delay level, counted from 1."""
    cluster, name = clusters.locate_broker(side, broker)
    body = (await cluster.ask_broker(name, GetAllDelayOffset())).body
    try:
        table = (
            fastjson.loads(bytes(body), fastjson.MAX_TRUSTED_VALUES).get("offsetTable") or {} if body else {}
        )
        return {_parse_json_number(level): _parse_json_number(offset) for level, offset in table.items()}
    except (ValueError, AttributeError) as problem:
        raise MessageFormatError(f"the delay offsets cannot be read: {problem}") from problem


async def count_timer_messages(clusters: ClusterPair, side: Side, broker: str, topic: str) -> int:
    """Count the messages of a topic that wait for a time, by the broker's own count; 0 on brokers before 5.0."""
    cluster, name = clusters.locate_broker(side, broker)
    try:
        body = (await cluster.ask_broker(name, GetTimerMetrics())).body
    except RequestError as refused:
        if refused.code in (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR):
            return 0  # no timer wheel
        raise
    try:
        counts = fastjson.loads(bytes(body), fastjson.MAX_TRUSTED_VALUES).get("timingCount") or {}
        return max(0, _parse_json_number((counts.get(topic) or {}).get("count") or 0))
    except (ValueError, AttributeError) as problem:
        raise MessageFormatError(f"the timer metrics cannot be read: {problem}") from problem


def _parse_op_offsets(body: bytes | memoryview) -> Iterator[int]:
    """Yield the queue offsets that an op message names; skip parts that are not offsets."""
    for part in bytes(body).split(b","):
        offset = parse_integer_or(part.decode("ascii", "replace"), -1)
        if offset >= 0:
            yield offset


def _parse_json_number(value: Any) -> int:
    """Return a number that JSON spells as a number or as text. Raises ValueError."""
    if type(value) is int and value in I64:
        return value
    return parse_java_integer(value) if isinstance(value, str) else _refuse_number(value)


def _refuse_number(value: Any) -> int:
    raise ValueError(f"{quoted(repr(value))} is not a 64-bit number")


def _require_scannable(count: int, what: str) -> None:
    if count > MAX_SCANNED_MESSAGES:
        raise TooManyHeldBack(
            f"{count} {what} of all topics wait; at most {MAX_SCANNED_MESSAGES} are scanned"
        )
