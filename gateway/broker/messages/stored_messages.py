"""Looks up stored messages by a physical offset that a client names.

Such an offset may point into the body of a message, and a body can hold bytes that look like a message, or like its
start. Only the queue that should contain the message tells them apart.
"""

import logging

from codec.errors import MessageFormatError
from codec.message import Message, decode_message
from codec.properties import find_property
from gateway.broker.messages.waiting_message import CLOSED_REAL_TOPICS, WaitingMessage
from storage.errors import CorruptionError
from storage.store import MessageStore

log = logging.getLogger(__name__)


def find_stored(store: MessageStore, physical_offset: int) -> memoryview | None:
    """Return the bytes of the message at a physical offset; None when no whole, readable message starts there."""
    if physical_offset >= store.readable_until:
        return None  # perhaps it is never confirmed
    try:
        return store.message_at(physical_offset)
    except CorruptionError as error:
        log.warning("no message at an offset of a request", extra={"reason": str(error)})
        return None


def earliest_log_timestamp(store: MessageStore) -> int:
    """Return the store timestamp in ms of the first message of the log; -1 when the log is empty."""
    timestamp_ms = store.commit_log.first_store_timestamp(store.min_physical_offset)
    return -1 if timestamp_ms is None else timestamp_ms


def find_message(store: MessageStore, physical_offset: int) -> Message | None:
    """Return the decoded message at a physical offset; None when no whole message starts there."""
    stored = find_stored(store, physical_offset)
    try:
        return None if stored is None else decode_message(stored)
    except MessageFormatError as error:
        log.warning("no message at an offset of a request", extra={"reason": str(error)})
        return None


def find_in_queue(store: MessageStore, physical_offset: int) -> WaitingMessage | None:
    """Return the message at a physical offset if its queue has an entry for it; None for any other."""
    message = _find_waiting(store, physical_offset)
    if message is None:
        return None
    topic = str(message.topic, "utf-8", "replace")
    entry_offset = store.physical_offset_at(topic, message.queue_id, message.queue_offset)
    return message if entry_offset == physical_offset else None


def find_topic(store: MessageStore, physical_offset: int) -> str | None:
    """Return the topic of the message at a physical offset, None when no whole message starts there.

    For a message that waits in a system topic, that is the topic to which it will be delivered.
    """
    message = _find_waiting(store, physical_offset)
    if message is None:
        return None
    topic = str(message.topic, "utf-8", "replace")
    if topic in CLOSED_REAL_TOPICS and (real := find_property(message.properties, b"REAL_TOPIC")) is not None:
        return real.decode("utf-8", "replace")
    return topic


def _find_waiting(store: MessageStore, physical_offset: int) -> WaitingMessage | None:
    """Return the message at a physical offset, undecoded; None when no whole message starts there."""
    stored = find_stored(store, physical_offset)
    try:
        return None if stored is None else WaitingMessage.parse(stored)
    except MessageFormatError:
        return None
