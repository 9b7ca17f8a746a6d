"""Finds which delayed messages a killed broker had delivered already, so that they are not delivered twice.

How far each level is delivered is saved every few seconds only. After a crash, the messages behind the saved offset are
compared with those at the end of their real queues: a delivered message is stored there as it was sent, after its time.
Used on a store that any broker left, ours or an official one.
"""

from collections import Counter
from typing import Final, NamedTuple
from zlib import crc32

from codec.errors import MessageFormatError
from codec.message import Message, iter_messages
from storage.store import MessageStore

MAX_COPIES_EXAMINED: Final = 100_000
"""Messages of real queues looked at, for all levels: about a second. Beyond them, delivered ones may come twice."""
MESSAGES_PER_READ, BYTES_PER_READ = 64, 1 << 20


class Identity(NamedTuple):
    """The properties that a delivered message shares with the delayed one, and with no other message."""

    unique_key: str | None
    reconsume_times: int
    born_timestamp: int
    body_bytes: int
    body_crc: int


class DeliveredCopies:
    """Messages that were stored in real queues since some time; each is found once.

    Ask for the messages of one delay level in their order, because a queue is read from the first one's due time on.
    No more messages are read than `readable`, which counts down.
    """

    def __init__(self, store: MessageStore, readable: int) -> None:
        self.readable = readable
        self._store = store
        self._copies: dict[tuple[str, int], Counter[Identity]] = {}

    def take(self, message: Message, topic: str, queue_id: int, due_ms: int) -> bool:
        """Tell whether a delayed message, due at ``due_ms``, was delivered to a queue, and count its copy as found."""
        copies = self._copies.get((topic, queue_id))
        if copies is None:
            copies = self._copies[topic, queue_id] = self._read_copies(topic, queue_id, due_ms)
        identity = _identity(message)
        found = copies[identity] > 0
        copies[identity] -= found
        return found

    def _read_copies(self, topic: str, queue_id: int, since_ms: int) -> Counter[Identity]:
        """Return how often each message is among those stored in a queue since a time."""
        copies: Counter[Identity] = Counter()
        offset = self._store.offset_by_time(topic, queue_id, since_ms)
        end = self._store.max_offset(topic, queue_id)
        while offset < end and self.readable > 0:
            result = self._store.read(topic, queue_id, offset, MESSAGES_PER_READ, BYTES_PER_READ)
            try:
                for message in iter_messages(b"".join(result.chunks)):
                    self.readable -= 1
                    if message.store_timestamp >= since_ms:
                        copies[_identity(message)] += 1
            except MessageFormatError:
                pass  # a damaged message is reported when it is consumed
            if result.next_offset <= offset:
                break
            offset = result.next_offset
        return copies


def _identity(message: Message) -> Identity:
    body = message.body
    return Identity(
        message.unique_key, message.reconsume_times, message.born_timestamp, len(body), crc32(body)
    )
