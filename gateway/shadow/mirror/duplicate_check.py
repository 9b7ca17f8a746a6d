"""Finds a message at the target by its unique key, so that a send whose answer was lost is not repeated.

Only the last messages of the queue are searched. A request that the target carries out after the search still makes a
duplicate. `resend_writer.py` decides when to search.
"""

from collections.abc import Iterator
from typing import Final

from codec import properties as keys
from codec.errors import MessageFormatError
from codec.java_numbers import I32, parse_integer_or
from codec.message import Message, iter_messages
from codec.properties import decode_properties
from codec.topics import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.traffic.exchange import Exchange
from gateway.shadow.traffic.subject import Subject, header_field_name
from remoting.errors import RequestError
from remoting.requests.offsets import GetMaxOffset
from remoting.requests.pull import read_only_pull

DEFAULT_SEARCH_MESSAGES: Final = 32
_PULL_FOUND: Final = 0


async def find_message(
    target: Cluster,
    broker: str,
    topic: str,
    queue_id: int,
    unique_key: str,
    after: int = -1,
    depth: int = DEFAULT_SEARCH_MESSAGES,
) -> Message | None:
    """Search the last ``depth`` messages of a queue, beyond offset ``after``; return None without a match.

    A refusal counts as not found. Raises the other errors of CLUSTER_ERRORS of `cluster`.
    """
    try:
        end = (await target.ask_broker(broker, GetMaxOffset(topic=topic, queue_id=queue_id))).offset
        begin = max(after + 1, end - depth, 0)
        while begin < end:
            reply = await target.ask_broker(
                broker, read_only_pull(topic, queue_id, begin, DEFAULT_SEARCH_MESSAGES)
            )
            for message in _decode_messages(reply.code, reply.body):
                if message.properties.get(keys.UNIQ_CLIENT_MESSAGE_ID_KEYIDX) == unique_key:
                    return message
            if reply.next_begin_offset <= begin:
                break
            begin = reply.next_begin_offset
    except (RequestError, MessageFormatError):
        return None
    return None


def _decode_messages(code: int, body: bytes) -> Iterator[Message]:
    return iter_messages(body) if code == _PULL_FOUND and body else iter(())


def storage_queue_of(exchange: Exchange, subject: Subject) -> tuple[str, int]:
    """Return the topic and queue that a sent message is first stored in, which may be of a system topic."""
    if subject.half:
        return TRANS_HALF_TOPIC, 0
    if subject.delayed:
        found = decode_properties(
            exchange.request_command.ext.get(header_field_name(exchange.code, "properties")) or ""
        )
        level = found.get(keys.DELAY_TIME_LEVEL, "")
        number = parse_integer_or(level, 0, I32)
        return (SCHEDULE_TOPIC, number - 1) if number > 0 else (TIMER_TOPIC, 0)
    return subject.queue
