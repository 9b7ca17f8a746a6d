"""Dead letters: messages that a group failed to consume too often, in a topic of the group's own."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from codec import properties as names
from codec.message import Message
from codec.properties import properties_text
from codec.sysflag import COMPRESSED, COMPRESSION_MASK
from codec.topics import DEFAULT_TOPIC, DLQ_PREFIX, PERM_READ, PERM_WRITE, dlq_topic, retry_topic
from gateway.admin.consuming import ReadOptions, TopicReader
from gateway.admin.errors import AdminError, NotFound, Refused
from gateway.admin.producing import PRODUCER_GROUP
from remoting.requests.namesrv import GetAllTopicListFromNameserver
from remoting.requests.send import SendMessageV2
from remoting.requests.topics import GetTopicStatsInfo

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient

TO_GROUP: Final = "group"
TO_ORIGIN: Final = "origin"
KEPT_SYSTEM_PROPERTIES: Final = frozenset(
    {
        names.KEYS,
        names.TAGS,
        names.UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
        names.WAIT_STORE_MSG_OK,
        names.ORIGIN_MESSAGE_ID,
        names.BUYER_ID,
        names.INSTANCE_ID,
        names.CORRELATION_ID,
        names.MESSAGE_REPLY_TO_CLIENT,
    }
)
"""Properties of the system that a message sent again keeps. The others describe its former deliveries and delays."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter and its broker."""

    message: Message
    broker: str

    @property
    def origin_topic(self) -> str:
        """The topic from which the message came; empty if no property contains it."""
        properties = self.message.properties
        topic = properties.get(names.RETRY_TOPIC) or properties.get(names.DLQ_ORIGIN_TOPIC) or ""
        return "" if topic.startswith(DLQ_PREFIX) else topic


def list_dead_letters(client: "AdminClient", pattern: str = "*") -> list[dict[str, Any]]:
    """Return a row for each group with dead letters."""
    topics = client.ask_namesrv(GetAllTopicListFromNameserver()).data.topic_list
    groups = sorted({topic.removeprefix(DLQ_PREFIX) for topic in topics if topic.startswith(DLQ_PREFIX)})
    groups = [group for group in groups if fnmatchcase(group, pattern)]
    rows = {
        group: {"group": group, "topic": dlq_topic(group), "messages": 0, "lastStoredMs": None}
        for group in groups
    }

    def read(broker: str) -> list[Any]:
        requests = [GetTopicStatsInfo(topic=dlq_topic(group)) for group in groups]
        return client.ask_many(client.master(broker), requests)

    brokers = list(client.masters)
    for answers in client.map_brokers(brokers, read):
        for group, stats in zip(groups, answers, strict=True):
            if isinstance(stats, Refused):
                continue  # the broker has no dead letters of the group
            row: dict[str, Any] = rows[group]
            for offsets in stats.data.offset_table.values():
                row["messages"] += offsets.max_offset - offsets.min_offset
                row["lastStoredMs"] = max(row["lastStoredMs"] or 0, offsets.last_update_timestamp) or None
    return list(rows.values())


def open_dead_letters(client: "AdminClient", group: str, options: ReadOptions) -> TopicReader:
    """Return a reader of a group's dead letters. Raises NotFound without any, AdminError if they cannot be read."""
    topic = dlq_topic(group)
    try:
        route = client.route(topic)
    except NotFound:
        raise NotFound(f'group "{group}" has no dead letters; see "rmq-gateway dlq list"') from None
    if not any(queue_data.perm & PERM_READ for queue_data in route.queue_datas):
        raise AdminError(
            f"{topic} is not readable, as older brokers create it; allow it with "
            f'"rmq-gateway topic alter {topic} --perm rw"'
        )
    return TopicReader(client, topic, options)


def select_dead_letters(
    reader: TopicReader, *, ids: Iterable[str] = (), count: int | None = None
) -> Iterator[DeadLetter]:
    """Yield the dead letters that a reader returns: all, or those with one of the ids (of producer or broker)."""
    selected_ids = set(ids)
    number = 0
    for message, broker in reader.read():
        if selected_ids and not selected_ids & {message.unique_key, message.msg_id}:
            continue
        yield DeadLetter(message, broker)
        number += 1
        if number == count:
            return


def properties_to_resend(letter: DeadLetter, to: str) -> dict[str, str]:
    """Return the properties of the message that is sent again."""
    properties = {
        name: value
        for name, value in letter.message.properties.items()
        if name not in names.RESERVED or name in KEPT_SYSTEM_PROPERTIES
    }
    if to == TO_GROUP and letter.origin_topic:
        properties[names.RETRY_TOPIC] = letter.origin_topic  # the client shows the message under this topic
    return properties


class Resender:
    """Sends dead letters again: to the retry topic of their group, which no other group reads, or to their own."""

    def __init__(self, client: "AdminClient", group: str, to: str) -> None:
        self._client = client
        self._to = to
        self._retry_topic = retry_topic(group)
        self._brokers: dict[str, list[tuple[str, int]]] = {}

    def target_topic(self, letter: DeadLetter) -> str:
        """Return the topic that a dead letter is sent to. Raises AdminError if its origin is unknown."""
        if self._to == TO_GROUP:
            return self._retry_topic
        if not letter.origin_topic:
            raise AdminError(
                f"dead letter {letter.message.unique_key or letter.message.msg_id} has no property with its topic; "
                "send it to the group (--to group), or print it with dlq peek --json and produce it"
            )
        return letter.origin_topic

    def check(self, letter: DeadLetter) -> None:
        """Raise AdminError if the dead letter could not be sent."""
        self._queues_of(self.target_topic(letter))

    def send(self, letter: DeadLetter) -> str:
        """Send one dead letter, to its own broker if that has the topic; return the id of the stored copy."""
        topic = self.target_topic(letter)
        queues = self._queues_of(topic)
        broker, count = next((queue for queue in queues if queue[0] == letter.broker), queues[0])
        message = letter.message
        request = SendMessageV2(
            producer_group=PRODUCER_GROUP,
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=4,
            queue_id=message.queue_offset % count,
            sys_flag=message.sys_flag & (COMPRESSED | COMPRESSION_MASK),  # the body is sent as it is stored
            born_timestamp=message.born_timestamp,
            flag=message.flag,
            properties=properties_text(properties_to_resend(letter, self._to)),
            reconsume_times=0,
            unit_mode=False,
            batch=False,
            broker_name=broker,
        )
        request.body = message.body
        return self._client.ask_broker(broker, request).msg_id

    def _queues_of(self, topic: str) -> list[tuple[str, int]]:
        if topic not in self._brokers:
            try:
                route = self._client.route(topic)
            except NotFound:
                advice = (
                    "start a consumer of the group once, which creates it, or pass --to origin"
                    if topic == self._retry_topic
                    else "create it, or pass --to group"
                )
                raise NotFound(f'topic "{topic}" does not exist: {advice}') from None
            self._brokers[topic] = [
                (queue_data.broker_name, queue_data.write_queue_nums)
                for queue_data in route.queue_datas
                if queue_data.perm & PERM_WRITE and queue_data.write_queue_nums
            ]
            if not self._brokers[topic]:
                raise AdminError(f'topic "{topic}" is not writable; see "rmq-gateway topic describe {topic}"')
        return self._brokers[topic]
