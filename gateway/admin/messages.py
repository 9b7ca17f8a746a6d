"""Finds single messages: by the id of the producer or the broker, by key, by offset, and by time."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from codec.constants import ResponseCode
from codec.errors import MessageFormatError
from codec.hosts import format_host
from codec.ids import decode_message_id
from codec.message import Message, iter_messages
from gateway.admin.consuming import QueuePosition, ReadOptions, TopicReader
from gateway.admin.errors import Refused
from gateway.admin.groups import read_progress
from remoting.requests.query import QueryMessage, ViewMessageById
from remoting.requests.topics import QueryTopicConsumeByWho
from toolkit.progress import show_progress

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient

LocatedMessage = tuple[Message, str]
"""A message and the name of its broker."""
MAX_MATCHES: Final = 64
MAX_TIME_MS: Final = 2**63 - 1


def get_message(client: "AdminClient", topic: str, message_id: str) -> list[LocatedMessage]:
    """Return the messages with an id: a broker's id names one message, a producer's id also its copies."""
    route = client.route(topic)
    addresses = {
        address: data.broker_name for data in route.broker_datas for address in data.broker_addrs.values()
    }
    try:
        host, port, offset = decode_message_id(message_id)
    except MessageFormatError:
        return find_by_key(client, topic, message_id, is_unique=True)
    address = format_host((host, port))
    if address in addresses:
        message = _view(client, address, topic, offset)
        if message is not None:
            return [(message, addresses[address])]
    return find_by_key(client, topic, message_id, is_unique=True)


def _view(client: "AdminClient", address: str, topic: str, offset: int) -> Message | None:
    try:
        body = client.ask(address, ViewMessageById(topic=topic, offset=offset)).body
    except Refused as refused:
        if refused.code not in (ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND):
            raise
        return None
    message = next(iter_messages(body), None)
    return message if message is not None and message.topic == topic else None


def find_by_key(
    client: "AdminClient",
    topic: str,
    key: str,
    *,
    is_unique: bool = False,
    begin_ms: int = 0,
    end_ms: int = MAX_TIME_MS,
    count: int = MAX_MATCHES,
) -> list[LocatedMessage]:
    """Return the newest messages with a key, ordered by time.

    Keys are compared here as well, because brokers compare only their hashes.
    """
    request = QueryMessage(
        topic=topic,
        key=key,
        max_num=count,
        begin_timestamp=begin_ms,
        end_timestamp=end_ms,
        unique_key_query=is_unique or None,
    )

    def query(broker: str) -> list[LocatedMessage]:
        try:
            body = client.ask_broker(broker, request).body
        except Refused as refused:
            if refused.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            return []
        return [(message, broker) for message in iter_messages(body)]

    brokers = [
        queue_data.broker_name
        for queue_data in client.route(topic).queue_datas
        if queue_data.broker_name in client.masters
    ]
    candidates = [candidate for part in client.map_brokers(brokers, query) for candidate in part]
    matches = [
        (message, broker)
        for message, broker in candidates
        if message.topic == topic and (message.unique_key == key if is_unique else key in message.keys)
    ]
    return sorted(matches, key=lambda item: item[0].store_timestamp)[-count:]


def get_at_offset(
    client: "AdminClient", topic: str, broker: str, queue_id: int, offset: int
) -> list[LocatedMessage]:
    """Return the message at an offset of a queue, or an empty list."""
    position = QueuePosition(topic, broker, queue_id, offset, None)
    messages = position.accept(client.ask_broker(broker, position.pull_request(ReadOptions(), 0)))
    return [(message, broker) for message in messages if message.queue_offset == offset]


def find_by_time(
    client: "AdminClient", topic: str, begin_ms: int, end_ms: int | None, count: int
) -> Iterator[LocatedMessage]:
    """Yield at most ``count`` messages stored in [begin, end), those of a queue in order; None stands for no end."""
    number = 0
    options = ReadOptions(start="", start_ms=begin_ms, end_ms=end_ms)
    with (
        TopicReader(client, topic, options) as reader,
        show_progress("reading", lambda: reader.total) as count_read,
    ):
        for message, broker in reader.read():
            count_read(1)
            if begin_ms <= message.store_timestamp < (MAX_TIME_MS if end_ms is None else end_ms):
                yield message, broker
                number += 1
                if number == count:
                    return


def consumption_of(client: "AdminClient", message: Message, broker: str) -> list[dict[str, Any]]:
    """Return a row for each group of the message's topic: its offset, and if that lies after the message."""
    groups = client.ask_broker(broker, QueryTopicConsumeByWho(topic=message.topic)).data.group_list
    rows = []
    for group in sorted(groups):
        offsets = {
            (queue.topic, queue.queue_id): offsets.consumer_offset
            for queue, offsets in read_progress(client, broker, group, message.topic).offset_table.items()
        }
        offset = offsets.get((message.topic, message.queue_id), -1)
        rows.append({"group": group, "consumed": offset > message.queue_offset, "offset": offset})
    return rows
