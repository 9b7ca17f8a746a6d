"""Looks at the brokers of a test: messages of a topic, lag of a group; and waits for them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

import trio

from codec.errors import MessageFormatError
from codec.message import Message, iter_messages
from codec.sysflag import COMPRESSED
from codec.topics import READ_WRITE
from gateway.broker.broker import Broker
from remoting.bodies.topics import TopicConfig
from storage.queue_read import ReadStatus

MESSAGES_PER_READ: Final = 256
POLL_S: Final = 0.002
DEFAULT_TIMEOUT_S: Final = 10.0
"""The longest wait for messages or for a group, unless the test says how long."""
RunningBrokers = Callable[[], list[Broker]]
"""Returns the brokers that run now; they may stop and start while a test waits."""


class WaitTimeout(TimeoutError):
    """Something that a test waits for did not happen in time; the text says what there is instead."""


def read_messages(brokers: Iterable[Broker], topic: str) -> list[Message]:
    """Return all messages of a topic in the order in which they were stored, with bodies as they were sent."""
    messages = [message for broker in brokers for message in _read_topic(broker, topic)]
    return sorted(messages, key=lambda message: (message.store_timestamp, message.physical_offset))


def _queue_ids(broker: Broker, topic: str) -> range:
    config = broker.topics.get(topic)
    return range(max(config.read_queue_nums, config.write_queue_nums) if config else 0)


def _read_topic(broker: Broker, topic: str) -> Iterator[Message]:
    for queue_id in _queue_ids(broker, topic):
        offset = broker.store.min_offset(topic, queue_id)
        while True:
            result = broker.store.read(topic, queue_id, offset, MESSAGES_PER_READ)
            if result.status is not ReadStatus.FOUND:
                break
            for chunk in result.chunks:
                for message in iter_messages(chunk):
                    yield _with_plain_body(message)
            offset = result.next_offset


def _with_plain_body(message: Message) -> Message:
    try:
        body = message.decompressed_body()
    except MessageFormatError:  # compressed by LZ4 or Zstandard: left as it is
        return message
    return replace(message, body=body, sys_flag=message.sys_flag & ~COMPRESSED)


def count_messages(brokers: Iterable[Broker], topic: str) -> int:
    """Return the number of messages that a topic has."""
    return sum(
        broker.store.max_offset(topic, queue_id) - broker.store.min_offset(topic, queue_id)
        for broker in brokers
        for queue_id in _queue_ids(broker, topic)
    )


def consumer_lag(brokers: Iterable[Broker], group: str, topic: str | None = None) -> int:
    """Return the number of messages that a group has not consumed, of one topic, or of all that it reads.

    That is, by its committed offsets and its members' subscriptions; its retry topic counts as well. A message that
    waits for its retry does not count until it is due.
    """
    return sum(
        broker.store.max_offset(topic_name, queue_id) - _consumed_offset(broker, group, topic_name, queue_id)
        for broker in brokers
        for topic_name in ([topic] if topic is not None else _topics_of_group(broker, group))
        for queue_id in _queue_ids(broker, topic_name)
    )


def _topics_of_group(broker: Broker, group: str) -> set[str]:
    members = broker.clients.consumer_group(group)
    return broker.offsets.topics_of_group(group) | set(members.subscriptions if members is not None else ())


def _consumed_offset(broker: Broker, group: str, topic: str, queue_id: int) -> int:
    first = broker.store.min_offset(topic, queue_id)
    return max(first, broker.offsets.query_offset(group, topic, queue_id))


def create_topic(
    brokers: Iterable[Broker], topic: str, queues: int, ordered: bool, attributes: dict[str, str]
) -> None:
    """Create a topic on all brokers, or change it. Raises ValueError for what a broker cannot have."""
    for broker in brokers:
        broker.topics.update(
            [
                TopicConfig(
                    topic_name=topic,
                    read_queue_nums=queues,
                    write_queue_nums=queues,
                    perm=READ_WRITE,
                    order=ordered,
                    attributes={f"+{key}": value for key, value in attributes.items()},
                )
            ]
        )


async def wait_until(is_so: Callable[[], bool], timeout_s: float, describe: Callable[[], str]) -> None:
    """Wait for a condition. Raises WaitTimeout with the description of what there is at the end."""
    with trio.move_on_after(timeout_s):
        while not is_so():  # noqa: ASYNC110 - it depends on tables and queues, which have no events of their own
            await trio.sleep(POLL_S)
        return
    raise WaitTimeout(f"{describe()} after {timeout_s:g} s")


async def wait_for_messages(
    running: RunningBrokers, topic: str, count: int, timeout_s: float
) -> list[Message]:
    """Wait until a topic has ``count`` messages or more, and return them. Raises WaitTimeout."""
    await wait_until(
        lambda: count_messages(running(), topic) >= count,
        timeout_s,
        lambda: f"topic {topic} has {count_messages(running(), topic)} of {count} messages",
    )
    return read_messages(running(), topic)


async def wait_until_consumed(
    running: RunningBrokers, group: str, topic: str | None, timeout_s: float
) -> None:
    """Wait until a group has consumed every message. Raises WaitTimeout."""

    def is_consumed() -> bool:
        # A group that has never committed an offset has consumed nothing.
        is_known = any(broker.offsets.topics_of_group(group) for broker in running())
        return is_known and consumer_lag(running(), group, topic) == 0

    await wait_until(
        is_consumed,
        timeout_s,
        lambda: f"group {group} has a lag of {consumer_lag(running(), group, topic)} messages",
    )
