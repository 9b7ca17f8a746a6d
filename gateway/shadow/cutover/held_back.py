"""What a broker still holds back of a topic: half messages without end, delayed messages, timer messages.

All of it is read from the broker itself, so that what was sent before the gateway came counts as well. Not responsible
for what is decided about it (checks).
"""

from typing import Final

from codec import fastjson
from codec import properties as names
from codec.constants import ResponseCode
from codec.errors import MessageFormatError
from codec.topics import SCHEDULE_TOPIC, TRANS_GROUP, TRANS_HALF_TOPIC, TRANS_OP_TOPIC
from gateway.shadow.clusters.cluster_pair import ClusterPair, QueueRange
from gateway.shadow.traffic.exchange import Side
from remoting.errors import RequestError
from remoting.requests.offsets import GetAllDelayOffset
from remoting.requests.timers import GetTimerMetrics

MAX_SCANNED_MESSAGES: Final = 20_000
"""Messages that are read at most to find those of one topic."""


class TooManyHeldBack(Exception):
    """More is held back than is looked at, so that nobody knows how much of it belongs to a topic."""


async def count_half_messages(sides: ClusterPair, side: Side, broker: str, topic: str) -> int:
    """Half messages of a topic that were neither committed nor rolled back. Raises TooMany, MessageFormatError.

    What the op topic names from its group's offset on has ended; half messages before the group's offset have as well.
    Source: TransactionalMessageServiceImpl.check, 5.4.0. An end may be written there 3 s late.
    """
    halves = await _unconsumed_range(sides, side, broker, TRANS_HALF_TOPIC)
    if halves.low >= halves.high:
        return 0
    ops = await _unconsumed_range(sides, side, broker, TRANS_OP_TOPIC)
    _require_scannable(halves.high - halves.low + ops.high - ops.low, "half messages and their ends")
    ended: set[int] = set()
    async for op in sides.read_messages(side, broker, TRANS_OP_TOPIC, 0, ops.low, ops.high):
        ended.update(int(part) for part in bytes(op.body).split(b",") if part.isdigit())
    waiting = 0
    async for half in sides.read_messages(side, broker, TRANS_HALF_TOPIC, 0, halves.low, halves.high):
        waiting += half.queue_offset not in ended and half.properties.get(names.REAL_TOPIC) == topic
    return waiting


async def _unconsumed_range(sides: ClusterPair, side: Side, broker: str, topic: str) -> QueueRange:
    whole = (await sides.queue_ranges(side, broker, topic)).get(0, QueueRange(0, 0))
    offset = await sides.consumer_offset(side, broker, TRANS_GROUP, topic, 0)
    return QueueRange(max(whole.low, offset or 0), whole.high)


async def count_delayed_messages(sides: ClusterPair, side: Side, broker: str, topic: str) -> int:
    """Messages of a topic that wait for a delay level. Raises TooMany, MessageFormatError."""
    levels = await sides.queue_ranges(side, broker, SCHEDULE_TOPIC)
    delivered = await _delivered_offsets(sides, side, broker)
    unread = {
        queue: QueueRange(max(each.low, delivered.get(queue + 1, 0)), each.high)
        for queue, each in levels.items()
    }
    _require_scannable(sum(max(0, each.high - each.low) for each in unread.values()), "delayed messages")
    waiting = 0
    for queue, each in unread.items():
        async for message in sides.read_messages(side, broker, SCHEDULE_TOPIC, queue, each.low, each.high):
            waiting += message.properties.get(names.REAL_TOPIC) == topic
    return waiting


async def _delivered_offsets(sides: ClusterPair, side: Side, broker: str) -> dict[int, int]:
    """By delay level, from 1: the next queue offset to deliver."""
    cluster, name = sides.locate_broker(side, broker)
    body = (await cluster.ask_broker(name, GetAllDelayOffset())).body
    table = fastjson.loads(bytes(body)).get("offsetTable") or {} if body else {}
    return {int(level): int(offset) for level, offset in table.items()}


async def count_timer_messages(sides: ClusterPair, side: Side, broker: str, topic: str) -> int:
    """Messages of a topic that wait for a time, by the broker's own count. None on brokers before 5.0."""
    cluster, name = sides.locate_broker(side, broker)
    try:
        body = (await cluster.ask_broker(name, GetTimerMetrics())).body
    except RequestError as refused:
        if refused.code in (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR):
            return 0  # no timer wheel
        raise
    try:
        counts = fastjson.loads(bytes(body)).get("timingCount") or {}
    except (ValueError, AttributeError) as problem:
        raise MessageFormatError(f"the timer metrics cannot be read: {problem}") from problem
    return max(0, int((counts.get(topic) or {}).get("count") or 0))


def _require_scannable(count: int, what: str) -> None:
    if count > MAX_SCANNED_MESSAGES:
        raise TooManyHeldBack(
            f"{count} {what} of all topics wait; no more than {MAX_SCANNED_MESSAGES} are looked at"
        )
