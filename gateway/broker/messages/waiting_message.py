"""Messages that wait in a system topic until they move to their real queue: half messages and timer messages.

They are checked again when they are read, because they may have been written by an earlier version or another broker.
"""

import re
from struct import error as StructError
from typing import Any, Final, NamedTuple

from codec.errors import MessageFormatError
from codec.java_numbers import I32, parse_java_integer, quoted
from codec.message import locate_stored_parts
from codec.properties import find_property
from codec.topics import (
    ROCKSDB_TRANS_HALF_TOPIC,
    ROCKSDB_TRANS_OP_TOPIC,
    SCHEDULE_TOPIC,
    SYSTEM_PREFIX,
    TIMER_TOPIC,
    TRANS_CHECK_MAX_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_TOPIC,
)
from gateway.broker.statistics.stored_counts import MessageType
from gateway.broker.statistics.traffic_stats import BrokerStats
from gateway.broker.topics.name_validation import topic_name_error
from gateway.broker.waiting.long_poll import LongPolls
from storage.append import NewMessage
from storage.errors import StoreFull
from storage.store import MessageStore

MAX_SYSTEM_TOPIC_CHARS: Final = 255
CLOSED_REAL_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_TOPIC,
        TRANS_CHECK_MAX_TOPIC,
        ROCKSDB_TRANS_HALF_TOPIC,
        ROCKSDB_TRANS_OP_TOPIC,
    }
)
"""Topics that no waiting message may move to: there it would forge or end what waits."""
_REAL_PLACE: Final = re.compile(rb"(?:^|(?<=\x02))REAL_(?:TOPIC|QID)\x01[^\x02]*\x02?")
_AT_END: Final = re.compile(rb"(?<=\x02)REAL_TOPIC\x01([^\x02]+)\x02REAL_QID\x01([0-9]+)\x02\Z")


class WaitingMessage(NamedTuple):
    """A stored message that waits, with its fields as stored; times in ms."""

    topic: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    body: memoryview
    properties: bytes

    @classmethod
    def parse(cls, view: memoryview) -> "WaitingMessage":
        """Parse a stored message. Raises MessageFormatError when its parts do not add up."""
        values, body_at, body_end, topic_at, topic_end = _locate_checked_parts(view)
        return cls(
            bytes(view[topic_at:topic_end]),
            values[3],
            values[5],
            values[6],
            values[4],
            values[7],
            values[8],
            values[9],
            values[10],
            values[11],
            values[12],
            view[body_at:body_end],
            bytes(view[topic_end + 2 :]),
        )


def _locate_checked_parts(view: memoryview) -> tuple[tuple[Any, ...], int, int, int, int]:
    """Return the result of `locate_stored_parts`. Raises MessageFormatError when the parts do not add up."""
    try:
        located = values, body_at, body_end, _, topic_end = locate_stored_parts(view)
    except (StructError, IndexError) as error:
        raise MessageFormatError("a stored message is shorter than its header") from error
    properties_bytes = int.from_bytes(view[topic_end : topic_end + 2])
    if body_end < body_at or values[0] != len(view) or topic_end + 2 + properties_bytes != len(view):
        raise MessageFormatError("the parts of a stored message do not add up to its size")
    return located


def parse_times_and_properties(view: memoryview) -> tuple[int, int, int, bytes]:
    """Return physical offset, timestamps of birth and storing (ms) and properties of a stored message, and no more.

    Raises MessageFormatError when its parts do not add up.
    """
    values, *_, end = _locate_checked_parts(view)
    return values[6], values[8], values[10], bytes(view[end + 2 :])


def parse_real_queue(properties: bytes) -> tuple[str, int, bytes]:
    """Return real topic, queue and remaining properties of a waiting message.

    Raises MessageFormatError when they are missing, or name a queue to which no waiting message can move.
    """
    if (match := _AT_END.search(properties)) is not None:  # The layout that this broker writes.
        topic, queue_id = match[1], match[2]
        rest = properties[: match.start()]
    else:
        real_topic, real_queue_id = (
            find_property(properties, b"REAL_TOPIC"),
            find_property(properties, b"REAL_QID"),
        )
        if real_topic is None or real_queue_id is None:
            raise MessageFormatError("a waiting message without a real topic and queue")
        topic, queue_id = real_topic, real_queue_id
        rest = _REAL_PLACE.sub(b"", properties)
    return check_real_topic(topic.decode("utf-8", "replace")), _parse_queue_id(queue_id), rest


def check_real_topic(topic: str) -> str:
    """Return the topic. Raises MessageFormatError when no waiting message can move to it."""
    if topic in CLOSED_REAL_TOPICS:
        raise MessageFormatError(f"a waiting message whose real topic is {topic}")
    # The acks of an official broker's pops wait for its revive topic, whose name ends with that of the cluster.
    fault = None if topic.startswith(SYSTEM_PREFIX) else topic_name_error(topic)
    if fault is not None or len(topic) > MAX_SYSTEM_TOPIC_CHARS:
        raise MessageFormatError(
            f"a waiting message whose real topic cannot be one: {fault or quoted(topic)}"
        )
    return topic


def _parse_queue_id(text: bytes) -> int:
    try:
        queue_id = parse_java_integer(text.decode("utf-8", "replace"), I32)
    except ValueError as error:
        raise MessageFormatError(f"a waiting message whose real queue is not a number: {error}") from error
    if queue_id < 0:
        raise MessageFormatError("a waiting message whose real queue is below 0")
    return queue_id


class RealQueueWriter:
    """Appends waiting messages, of one type, to the queues they were sent to, with all other fields as stored."""

    def __init__(
        self, store: MessageStore, long_polls: LongPolls, stats: BrokerStats, kind: MessageType
    ) -> None:
        self._store = store
        self._long_polls = long_polls
        self._put_stats = stats.stored
        self._kind = kind

    def append(
        self,
        message: WaitingMessage,
        topic: str,
        queue_id: int,
        properties: bytes,
        *,
        sys_flag: int,
        prepared_transaction_offset: int = 0,
    ) -> None:
        """Store a waiting message in its real queue. Raise StoreFull or MessageIllegal."""
        if self._store.disk_full:
            raise StoreFull("nearly full")
        _, _, size, _ = self._store.append(
            NewMessage(
                topic,
                queue_id,
                message.body,
                properties,
                message.flag,
                sys_flag,
                message.born_timestamp,
                message.born_host,
                message.store_host,
                message.reconsume_times,
                prepared_transaction_offset=prepared_transaction_offset,
            )
        )
        self._long_polls.mark_grown(topic, queue_id)
        self._put_stats[topic].count_request(self._kind, size)
