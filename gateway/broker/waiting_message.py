"""Messages that wait in a system topic until they move to their real queue: half messages and timer messages."""

import re
from typing import Final, NamedTuple

from codec.java_numbers import I32, parse_integer_or
from codec.message import locate_stored_parts
from codec.properties import find_property
from gateway.broker.long_poll import LongPolls
from gateway.broker.traffic_stats import BrokerStats
from storage.errors import StoreFull
from storage.store import MessageStore

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
        """Parse a stored message."""
        values, body_at, body_end, topic_at, topic_end = locate_stored_parts(view)
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


def parse_time_and_properties(view: memoryview) -> tuple[int, int, bytes]:
    """Return physical offset, store timestamp (ms) and properties of a stored message, without parsing the rest."""
    values, *_, end = locate_stored_parts(view)
    return values[6], values[10], bytes(view[end + 2 :])


def parse_real_queue(properties: bytes) -> tuple[str, int, bytes] | None:
    """Return real topic, queue and remaining properties of a waiting message; None when they are not among them."""
    if (match := _AT_END.search(properties)) is not None:  # The layout that this broker writes.
        found, queue_text, rest = match[1], match[2], properties[: match.start()]
    else:
        stored_topic, stored_queue = (
            find_property(properties, b"REAL_TOPIC"),
            find_property(properties, b"REAL_QID"),
        )
        if stored_topic is None or stored_queue is None:
            return None
        found, queue_text, rest = stored_topic, stored_queue, _REAL_PLACE.sub(b"", properties)
    queue_id = parse_integer_or(str(queue_text, "latin-1"), -1, I32)
    return None if queue_id < 0 else (str(found, "utf-8", "replace"), queue_id, rest)


class RealQueueWriter:
    """Appends waiting messages to the queues they were sent to, with all other fields as stored."""

    def __init__(self, store: MessageStore, long_polls: LongPolls, stats: BrokerStats) -> None:
        self._store = store
        self._long_polls = long_polls
        self._put_stats = stats.put

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
            topic,
            queue_id,
            message.body,
            properties,
            flag=message.flag,
            sys_flag=sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_host=message.store_host,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=prepared_transaction_offset,
        )
        self._long_polls.mark_grown(topic, queue_id)
        self._put_stats[topic].count_messages(1, size)
