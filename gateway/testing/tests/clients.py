"""A blocking client of a RocketMQ under test, for the requests that its tests need."""

import time
from typing import Any

from codec.message import Message, iter_messages
from gateway.testing import RocketMQ
from gateway.tests.cluster import message, pull
from gateway.tests.popping import pop_request
from remoting.blocking import BlockingClient
from remoting.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from remoting.errors import RequestError
from remoting.requests.client import HeartBeat
from remoting.requests.namesrv import GetRouteInfoByTopic
from remoting.requests.offsets import UpdateConsumerOffset
from remoting.requests.send import ConsumerSendMsgBack, SendMessageReply

TIMEOUT_S = 10.0


def now_ms() -> int:
    return round(time.time() * 1000)


def split_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def open_client(address: str) -> BlockingClient:
    return BlockingClient(*split_address(address), timeout_s=TIMEOUT_S)


class Client(BlockingClient):
    """A client of the first broker."""

    def __init__(self, rocketmq: RocketMQ) -> None:
        super().__init__(*split_address(rocketmq.broker_address), timeout_s=TIMEOUT_S)

    def send(self, topic: str = "orders", body: bytes = b"hello", **more: Any) -> SendMessageReply:
        return self.ask(message(topic, body, **{"born_timestamp": now_ms(), **more}))

    def pull_bodies(self, topic: str = "orders", **more: Any) -> list[bytes]:
        return [bytes(each.body) for each in self.pull_messages(topic, **more)]

    def pull_messages(self, topic: str = "orders", **more: Any) -> list[Message]:
        reply = self.ask(pull(topic, **more))
        return list(iter_messages(reply.body)) if reply.body else []

    def pop_bodies(self, topic: str = "orders", **more: Any) -> list[bytes]:
        try:
            reply = self.ask(pop_request(topic, **{"born_time": now_ms(), **more}))
        except RequestError:  # nothing is there
            return []
        return [bytes(each.body) for each in iter_messages(reply.body)]

    def beat(self, client_id: str, group: str = "GID", topic: str = "orders", producer: str = "PID") -> None:
        """Report a consumer and a producer."""
        consumer = ConsumerData(
            group_name=group,
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            subscription_data_set=[SubscriptionData(topic=topic, sub_version=1)],
        )
        producers = [ProducerData(group_name=producer)]
        data = HeartbeatData(client_id=client_id, consumer_data_set=[consumer], producer_data_set=producers)
        self.ask(HeartBeat(data=data))

    def commit(self, offset: int, topic: str = "orders", group: str = "GID", queue_id: int = 0) -> None:
        self.ask(
            UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset)
        )

    def send_back(self, got: Message, group: str = "GID", delay_level: int = 3) -> None:
        self.ask(
            ConsumerSendMsgBack(
                offset=got.physical_offset,
                group=group,
                delay_level=delay_level,
                origin_msg_id=got.unique_key,
                origin_topic=got.topic,
                max_reconsume_times=16,
            )
        )


def route_of(rocketmq: RocketMQ, topic: str) -> Any:
    """Return the route of a topic as the namesrv answers it."""
    with open_client(rocketmq.namesrv_address) as client:
        return client.ask(GetRouteInfoByTopic(topic=topic)).data
