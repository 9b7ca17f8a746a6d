"""Appends messages under the queue offsets that another broker gave them.

Theory of operation
-------------------
A mirror whose target is this server copies the primary's queues so that consumers can move without translating their
offsets: the message at offset n of a queue has offset n at both servers. `MessageStore.append_preserving_offsets`
receives whole stored messages, as a pull answer carries them, and

1. parses and checks all of them before it writes anything (`parse_stored_messages`): all belong to one queue, their
   offsets have no gap, their CRCs are valid, and none is a half message;
2. skips messages that the queue already has, after comparing them with the stored ones (`check_not_diverged`), so that
   a request may be repeated after a lost answer;
3. refuses a gap, unless the caller says that the messages in between no longer exist at the source (``reset``);
4. writes each message with a new physical offset, store host and perhaps store timestamp; everything else is copied
   (`append_preserving_offset`).

A crash between two messages leaves a shorter queue, from which the copier continues.
"""

from dataclasses import dataclass
from struct import Struct

from codec.message import BORN_HOST_AT, SYS_FLAG_AT
from codec.sysflag import (
    STORE_HOST_V6,
    born_host_bytes,
    store_host_bytes,
)
from storage.commit_log import CommitLog, store_timestamp_of
from storage.consume_queue import ConsumeQueue
from storage.errors import MessageIllegal, QueueDiverged
from storage.layout import INT, LONG, PHYSICAL_OFFSET_AT, START
from storage.log_scan import ScannedMessage, check_message
from storage.tags import tags_code_of

# The body's CRC and the born timestamp, which differ between two different messages.
_CRC = Struct(">8xI")
_BORN = Struct(">40xq")


@dataclass(slots=True)
class OffsetPreservingResult:
    """The outcome of one call: the number and bytes of messages appended, and the offset expected next."""

    next_offset: int
    messages: int
    size_bytes: int


def parse_stored_messages(
    body: memoryview, topic: str, queue_id: int, first_offset: int
) -> list[ScannedMessage]:
    """Parse the stored messages in ``body`` and check them (step 1 above). Raises MessageIllegal.

    In the result, ``physical_offset`` is a message's position in ``body``.
    """
    messages: list[ScannedMessage] = []
    position, encoded = 0, topic.encode()
    while position < len(body):
        message = _checked(body, position)
        expected = encoded, queue_id, first_offset + len(messages)
        if (message.topic, message.queue_id, message.queue_offset) != expected:
            owner = f"queue {message.queue_id} of {message.topic!r} at offset {message.queue_offset}"
            raise MessageIllegal(f"message {len(messages)} belongs to {owner}")
        if not message.has_queue_entry:
            raise MessageIllegal(
                f"message {len(messages)} is a half or rolled back message, which no queue holds"
            )
        messages.append(message)
        position += message.size
    return messages


def _checked(body: memoryview, position: int) -> ScannedMessage:
    if len(body) - position < PHYSICAL_OFFSET_AT + 8:
        raise MessageIllegal(f"a message ends early at byte {position}")
    (physical_offset,) = LONG.unpack_from(body, position + PHYSICAL_OFFSET_AT)
    message = check_message(body, position, physical_offset, True)
    if not isinstance(message, ScannedMessage):
        raise MessageIllegal(f"no message at byte {position}: {message.reason or 'zeros'}")
    message.physical_offset = position
    return message


def check_not_diverged(
    log: CommitLog, queue: ConsumeQueue, message: ScannedMessage, stored: memoryview
) -> None:
    """Raise QueueDiverged when the queue holds a different message at this one's offset; ignore expired messages."""
    if message.queue_offset < queue.min_offset:
        return
    physical_offset, size, _ = queue.read_entry(message.queue_offset)
    queued = log.select(physical_offset, size)
    if queued is None:
        return
    if _CRC.unpack_from(queued) != _CRC.unpack_from(stored) or _BORN.unpack_from(queued) != _BORN.unpack_from(
        stored
    ):
        raise QueueDiverged(
            f"queue {queue.queue_id} of {queue.topic} has another message at offset {message.queue_offset}"
        )


def last_store_timestamp(log: CommitLog, queue: ConsumeQueue) -> int:
    """Return the store timestamp of a queue's last message; 0 when none is left."""
    if queue.next_offset <= queue.min_offset:
        return 0
    physical_offset, size, _ = queue.read_entry(queue.next_offset - 1)
    queued = log.select(physical_offset, size)
    return 0 if queued is None else store_timestamp_of(queued)


def append_preserving_offset(
    log: CommitLog,
    queue: ConsumeQueue,
    store_host: bytes,
    message: ScannedMessage,
    stored: memoryview,
    not_before_ms: int,
) -> int:
    """Write one message at the queue's end, which is its own offset; return its store timestamp in ms.

    The message keeps its store timestamp, so that a search by time finds the same message here as at the source. Only
    a timestamp before ``not_before_ms`` is raised to that, because the search needs rising times.
    Raises StoreFull, MessageIllegal, and then nothing has changed.
    """
    time_ms = max(message.store_timestamp, not_before_ms)
    time_at = BORN_HOST_AT + born_host_bytes(message.sys_flag)
    rest_at = time_at + 8 + store_host_bytes(message.sys_flag)
    size = time_at + 8 + len(store_host) + message.size - rest_at
    # Get room first, so that a failure changes nothing.
    if log.position + size > log.limit:
        log.make_room(size)
    if queue.position >= queue.limit:
        queue.make_room()
    position, buffer = log.position, log.buffer
    head = bytearray(stored[:time_at])
    LONG.pack_into(head, PHYSICAL_OFFSET_AT, log.base + position)
    flag = message.sys_flag & ~STORE_HOST_V6 | (STORE_HOST_V6 if len(store_host) > 8 else 0)
    INT.pack_into(head, SYS_FLAG_AT, flag & 0xFFFFFFFF)
    blob = b"".join((head, LONG.pack(time_ms), store_host, stored[rest_at:]))
    # Size and magic are written last: a process killed in between leaves a size of zero, which ends the log.
    buffer[position + 8 : position + size] = blob[8:]
    START.pack_into(buffer, position, size, START.unpack_from(stored)[1])
    log.position = position + size
    queue.append_entry(log.base + position, size, tags_code_of(message.properties))
    queue.recently_used = True
    log.queued_until = log.base + log.position
    return time_ms
