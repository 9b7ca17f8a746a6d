"""Helpers for cases that use our own typed client (`remoting.blocking`): requests with defaults for every field."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

from codec.batch import encode_batch
from codec.command import Command
from codec.hashing import java_hash
from codec.message import Message, iter_messages
from codec.properties import properties_text
from compat_tests.clients.request_guard import check_request
from compat_tests.server import ServerUnderTest, eventually, split_address
from remoting.blocking import BlockingClient
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from remoting.errors import REQUEST_FAILURES, RemotingClosed, RemotingTimeout, RequestError
from remoting.requests.admin import UpdateBrokerConfig
from remoting.requests.client import GetConsumerListByGroup, HeartBeat, HeartbeatReply
from remoting.requests.groups import (
    DeleteSubscriptionGroup,
    GetAllSubscriptionGroupConfig,
    UpdateAndCreateSubscriptionGroup,
)
from remoting.requests.namesrv import (
    DeleteTopicInNamesrv,
    GetAllTopicListFromNameserver,
    GetBrokerClusterInfo,
    GetRouteInfoByTopic,
)
from remoting.requests.offsets import GetConsumeStats, GetMaxOffset
from remoting.requests.pull import LitePullMessage, PullMessage, PullMessageReply
from remoting.requests.send import SendBatchMessage, SendMessageReply, SendMessageV2
from remoting.requests.topics import DeleteTopicInBroker, UpdateAndCreateTopic

# Bits of a pull's system flag.
COMMIT, SUSPEND, SUBSCRIPTION, CLASS_FILTER, LITE = 1, 2, 4, 8, 16
READ, WRITE = 4, 2


def connect(where: str, *, binary: bool = False, timeout_s: float = 10.0) -> BlockingClient:
    host, port = split_address(where)
    return BlockingClient(host, port, timeout_s=timeout_s, binary=binary, sign=check_request)


def create_topic(server: ServerUnderTest, topic: str, queues: int, *, perm: int = READ | WRITE) -> None:
    """Create a topic on the broker, and wait until the namesrv knows it."""
    with connect(server.broker) as broker:
        broker.ask(topic_request(topic, queues, perm=perm))
    with connect(server.namesrv) as namesrv:
        eventually(lambda: has_route(namesrv, topic), 20)


def create_group(broker: BlockingClient, group: str, **fields: Any) -> str:
    """Create a consumer group and return its name."""
    broker.ask(UpdateAndCreateSubscriptionGroup(data=SubscriptionGroupConfig(group_name=group, **fields)))
    return group


def topic_request(topic: str, queues: int = 4, **fields: Any) -> UpdateAndCreateTopic:
    values = {"perm": READ | WRITE, "topic_filter_type": "SINGLE_TAG", "topic_sys_flag": 0, **fields}
    return UpdateAndCreateTopic(
        topic=topic, default_topic="TBW102", read_queue_nums=queues, write_queue_nums=queues, **values
    )


def has_route(namesrv: BlockingClient, topic: str) -> bool:
    try:
        namesrv.ask(GetRouteInfoByTopic(topic=topic))
    except RequestError as error:
        if error.code != 17:
            raise
        return False
    return True


def delete_created(server: ServerUnderTest) -> None:
    """Delete the topics and groups that cases created; they stay if the server grants no admin rights.

    Groups are listed too: a server creates those that clients merely name.
    """
    try:
        with connect(server.broker) as broker, connect(server.namesrv) as namesrv:
            cluster = next(iter(namesrv.ask(GetBrokerClusterInfo()).data.cluster_addr_table), None)
            topics = namesrv.ask(GetAllTopicListFromNameserver()).data.topic_list
            mine = [topic for topic in topics if server.prefix in topic]
            broker.pipeline([DeleteTopicInBroker(topic=topic) for topic in mine], timeout_s=60)
            namesrv.pipeline([DeleteTopicInNamesrv(topic=topic, cluster_name=cluster) for topic in mine])
            listed = broker.ask(GetAllSubscriptionGroupConfig()).data.subscription_group_table
            groups = {*server.groups, *(group for group in listed if server.prefix in group)}
            for group in sorted(groups):
                broker.ask(DeleteSubscriptionGroup(group_name=group, clean_offset=True))
    except (RequestError, RemotingClosed, RemotingTimeout):
        return


def restore_timer_engine(broker: BlockingClient) -> None:
    """Undo what switching to the timer engine that is in use leaves in the official broker's configuration."""
    set_broker_config(broker, timerRocksDBStopScan="false")


def set_broker_config(broker: BlockingClient, **settings: str) -> None:
    """Change settings of a broker that runs."""
    request = UpdateBrokerConfig()
    request.body = "".join(f"{key}={value}\n" for key, value in settings.items()).encode()
    broker.ask(request)


def send_request(topic: str, body: bytes = b"x", **fields: Any) -> SendMessageV2:
    """Return a send request like a stock client's; `properties` may be a dict."""
    return SendMessageV2(**_send_fields(topic, fields), body=body)


def batch_request(
    topic: str, messages: Iterable[tuple[bytes, dict[str, str]]], **fields: Any
) -> SendBatchMessage:
    entries = [(0, body, properties_text(properties).encode()) for body, properties in messages]
    return SendBatchMessage(**_send_fields(topic, {"batch": True, **fields}), body=encode_batch(entries))


def _send_fields(topic: str, fields: dict[str, Any]) -> dict[str, Any]:
    values = {
        "producer_group": "compat_producer",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": int(time.time() * 1000),
        "flag": 0,
        "properties": "",
        "reconsume_times": 0,
        "unit_mode": False,
        "batch": False,
        **fields,
    }
    if isinstance(values["properties"], dict):
        values["properties"] = properties_text(values["properties"])
    return values


def send(broker: BlockingClient, topic: str, body: bytes = b"x", **fields: Any) -> SendMessageReply:
    return broker.ask(send_request(topic, body, **fields))


def send_readable(broker: BlockingClient, topic: str, body: bytes = b"x", **fields: Any) -> SendMessageReply:
    """Send a message and wait until it can be read: the official server fills its queues after it has answered."""
    sent = send(broker, topic, body, **fields)
    last = GetMaxOffset(topic=topic, queue_id=sent.queue_id)
    eventually(lambda: broker.ask(last).offset > sent.queue_offset, 30, every_s=0.002)
    return sent


def committed_messages(server: ServerUnderTest, group: str, topic: str) -> int:
    """Return the sum of a group's committed offsets over all queues of a topic; 0 if the broker cannot tell."""
    try:
        with connect(server.broker) as broker:
            table = broker.ask(GetConsumeStats(consumer_group=group, topic=topic)).data.offset_table
    except REQUEST_FAILURES:
        return 0
    return sum(offsets.consumer_offset for offsets in table.values())


def send_many(
    broker: BlockingClient, topic: str, bodies: Iterable[bytes], **fields: Any
) -> list[SendMessageReply]:
    return broker.pipeline([send_request(topic, body, **fields) for body in bodies])


def pull_request(
    topic: str, offset: int = 0, *, lite: bool = False, **fields: Any
) -> PullMessage | LitePullMessage:
    """Return a pull request; `suspend_ms` makes it wait, `tags` is its subscription (None: use the heartbeat's)."""
    tags = fields.pop("tags", "*")
    suspend_ms = fields.pop("suspend_ms", 0)
    flag = (SUSPEND if suspend_ms else 0) | (SUBSCRIPTION if tags is not None else 0) | (LITE if lite else 0)
    values = {
        "consumer_group": f"group_{topic}",
        "topic": topic,
        "queue_id": 0,
        "queue_offset": offset,
        "max_msg_nums": 32,
        "sys_flag": flag,
        "commit_offset": 0,
        "suspend_timeout_millis": suspend_ms,
        "subscription": tags,
        "sub_version": 0,
        "expression_type": "TAG",
        **fields,
    }
    return (LitePullMessage if lite else PullMessage)(**values)


def pull(
    broker: BlockingClient, topic: str, offset: int = 0, *, timeout_s: float | None = None, **fields: Any
) -> PullMessageReply:
    return broker.ask(pull_request(topic, offset, **fields), timeout_s=timeout_s)


def messages(reply: PullMessageReply) -> list[Message]:
    return list(iter_messages(reply.body))


def iter_queue(broker: BlockingClient, topic: str, queue: int) -> Iterator[Message]:
    """Yield every message of a queue; none if there is no such topic or queue. Creates no consumer group."""
    offset = 0
    while True:
        try:
            reply = pull(broker, topic, offset, queue_id=queue, consumer_group="TOOLS_CONSUMER")
        except RequestError:
            return
        if reply.code != 0:
            return
        yield from messages(reply)
        offset = reply.next_begin_offset


def bodies(reply: PullMessageReply) -> list[bytes]:
    return [message.body for message in messages(reply)]


def read_first_message(broker: BlockingClient, topic: str, **fields: Any) -> Message:
    """Wait for the first message of a queue and return it."""
    return eventually(lambda: messages(pull(broker, topic, **fields)), 10)[0]


def heartbeat_request(
    client_id: str, group: str = "", topic: str = "", *, tags: str = "*", producer: str = "", **fields: Any
) -> HeartBeat:
    """Return the heartbeat of a push consumer of one topic and its retry topic, or of a producer."""
    version = fields.pop("sub_version", int(time.time() * 1000))
    consumers = []
    if group:
        subscriptions = [
            subscription(topic, tags, version),
            subscription(f"%RETRY%{group}", "*", version),
        ]
        consumers.append(
            ConsumerData(
                group_name=group,
                consume_type=fields.pop("consume_type", "CONSUME_PASSIVELY"),
                message_model=fields.pop("message_model", "CLUSTERING"),
                consume_from_where="CONSUME_FROM_FIRST_OFFSET",
                subscription_data_set=fields.pop("subscriptions", subscriptions),
            )
        )
    producers = [ProducerData(group_name=producer)] if producer else []
    data = HeartbeatData(
        client_id=client_id, producer_data_set=producers, consumer_data_set=consumers, **fields
    )
    return HeartBeat(data=data)


def subscription(topic: str, tags: str, version: int, **fields: Any) -> SubscriptionData:
    names = [] if tags == "*" else [tag.strip() for tag in tags.split("||")]
    return SubscriptionData(
        topic=topic,
        sub_string=tags,
        tags_set=names,
        code_set=[java_hash(name) for name in names],
        sub_version=version,
        **fields,
    )


def send_heartbeat(client: BlockingClient, *arguments: Any, **fields: Any) -> HeartbeatReply:
    return client.ask(heartbeat_request(*arguments, **fields))


def consumer_ids(client: BlockingClient, group: str) -> set[str]:
    """Return the client ids of a group; empty if it has no members."""
    try:
        return set(client.ask(GetConsumerListByGroup(consumer_group=group)).data.consumer_id_list)
    except RequestError as error:
        if error.code != 1:  # the official broker's answer for a group without consumers
            raise
        return set()


def expect_refusal(client: BlockingClient, request: Any) -> RequestError:
    """Send a request and return its refusal. Raises AssertionError if it is accepted."""
    try:
        reply = client.ask(request)
    except RequestError as error:
        return error
    raise AssertionError(f"accepted, code {getattr(reply, 'code', 0)}")


def send_plain(client: BlockingClient, code: int, **ext: str) -> Command:
    """Send a command with exactly these header fields and return the answer, whatever its code."""
    return client.send_command(Command(code, ext=ext, language="JAVA"))
