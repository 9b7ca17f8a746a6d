"""Reads and writes the revive topic: checkpoints of pops and acks, one queue beside the other.

What follows from them is decided elsewhere (revive). Source: PopMessageProcessor.buildCkMsg, 5.4.0.
Deviation: records are written to the revive topic at once, not through the timer, which brings them there when a
pop's time is nearly over; what an official broker finds there it treats alike.
"""

import logging
from collections.abc import Iterator
from typing import Final, NamedTuple

import orjson

from codec import properties as keys
from codec.hosts import pack_host
from codec.message import Message, iter_messages
from gateway.broker.advertised_hosts import Hosts
from gateway.broker.message_writer import NewMessage, Putter
from gateway.broker.pop.checkpoint import ACK_TAG, BATCH_ACK_TAG, CK_TAG, Acks, CheckPoint
from gateway.broker.pop.receipts import revive_topic
from storage.clock import Clock
from storage.store import MessageStore

log = logging.getLogger(__name__)

READ_MESSAGES: Final = 32


class Record(NamedTuple):
    """One entry of a revive queue; ``content`` None: it cannot be read and counts for nothing.

    ``timed``: an official broker's timer brought it, so that acks of its pop may still come the same way.
    """

    offset: int
    content: CheckPoint | Acks | None
    timed: bool


class ReviveLog:
    """The revive topic of one broker."""

    def __init__(
        self, cluster: str, broker_name: str, clock: Clock, store: MessageStore, put: Putter, hosts: Hosts
    ):
        self.topic = revive_topic(cluster)
        self._broker_name = broker_name
        self._clock = clock
        self._store = store
        self._put = put
        self._hosts = hosts

    # -- writing --------------------------------------------------------------------------------------------

    def write(self, queue_id: int, content: CheckPoint | Acks) -> int:
        """Stores a record and returns its queue offset. Raises RequestError when the store refuses it."""
        return self._put.put_now(self._message(queue_id, content, self._clock.now_ms()))[0]

    def write_timed(self, queue_id: int, acks: Acks, due_ms: int) -> None:
        """Has a timer bring acks at a time, as the official broker does always. Raises RequestError."""
        self._put.put(self._message(queue_id, acks, due_ms))

    def _message(self, queue_id: int, content: CheckPoint | Acks, deliver_ms: int) -> NewMessage:
        key = content.key
        if isinstance(content, CheckPoint):
            tag, what = CK_TAG, str(key.start_offset)
        else:
            offsets = content.offsets
            tag, what = content.tag, str(offsets[0] if len(offsets) == 1 else offsets)
        unique = f"{key.topic}@{key.queue_id}@{what}@{key.group}@{key.pop_time}@{key.broker_name}@{tag}"
        host = pack_host(self._hosts.own())
        properties = {
            keys.TAGS: tag,
            keys.UNIQ_CLIENT_MESSAGE_ID_KEYIDX: unique,
            # An official broker that takes over goes by it to know how far the queue's time has come.
            keys.TIMER_DELIVER_MS: str(deliver_ms),
        }
        return NewMessage(
            self.topic,
            queue_id,
            content.to_json(),
            properties,
            born_timestamp=self._clock.now_ms(),
            born_host=host,
            store_host=host,
        )

    # -- reading --------------------------------------------------------------------------------------------

    def end(self, queue_id: int) -> int:
        """Queue offset of the next record."""
        return self._store.max_offset(self.topic, queue_id)

    def read(self, queue_id: int, offset: int) -> Iterator[Record]:
        """The records from an offset on; where the store has no more of them it goes on with the next."""
        end = self.end(queue_id)
        offset = max(offset, self._store.min_offset(self.topic, queue_id))
        while offset < end:
            result = self._store.read(self.topic, queue_id, offset, READ_MESSAGES)
            for chunk in result.chunks:
                for message in iter_messages(chunk):
                    yield self._record(message)
            if result.next_offset <= offset:
                return
            offset = result.next_offset

    def _record(self, message: Message) -> Record:
        timed = keys.TIMER_OUT_MS in message.properties
        return Record(message.queue_offset, self._content(message), timed)

    def _content(self, message: Message) -> CheckPoint | Acks | None:
        kinds: dict[str, type[CheckPoint] | type[Acks]] = {
            CK_TAG: CheckPoint,
            ACK_TAG: Acks,
            BATCH_ACK_TAG: Acks,
        }
        try:
            content = kinds[message.tags or ""].from_value(orjson.loads(message.body))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            extra = {"offset": message.queue_offset, "reason": repr(error)}
            log.warning("a record of the revive topic cannot be read", extra=extra)
            return None
        if not content.key.broker_name:
            content.key = content.key._replace(broker_name=self._broker_name)
        return content
