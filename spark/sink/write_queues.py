"""Queues that a topic's messages can be sent to, in the order in which stock producers count them."""

from dataclasses import dataclass
from typing import Final

from codec.constants import ResponseCode
from remoting.bodies.routes import TopicRouteData
from remoting.errors import RequestError
from remoting.requests.namesrv import GetRouteInfoByTopic
from spark.endpoint import Address, Connections, master_address
from spark.errors import EndpointError

_WRITE_PERMISSION: Final = 2


@dataclass(frozen=True, slots=True)
class WriteQueue:
    """One queue. `address` is that of its broker's master, or None while there is none."""

    topic: str
    broker: str
    queue_id: int
    address: Address | None


@dataclass(frozen=True, slots=True)
class TopicPublishInfo:
    """The queues of one topic, at least one."""

    topic: str
    queues: tuple[WriteQueue, ...]

    def queue_by_hash(self, hashed: int) -> WriteQueue:
        """Return the queue of all messages with a key of this hash. Source: SelectMessageQueueByHash.select, 5.4.0."""
        return self.queues[abs(hashed) % len(self.queues)]

    def queue_by_id(self, queue_id: int, broker: str | None) -> WriteQueue:
        """Return the queue with this number at this broker, or at the first that has it. Raises EndpointError."""
        for queue in self.queues:
            if queue.queue_id == queue_id and broker in (None, queue.broker):
                return queue
        described = f"queue {queue_id}" + (f" at broker {broker}" if broker else "")
        raise EndpointError(f"topic {self.topic} has no {described} to send to")


def publish_info_from_route(
    topic: str, route: TopicRouteData, only_broker: str | None = None
) -> TopicPublishInfo:
    """Return the writable queues of a route, at one broker or all. Raises EndpointError if there are none.

    Source: MQClientInstance.topicRouteData2TopicPublishInfo, 5.4.0.
    """
    if route.topic_queue_mapping_by_broker and route.order_topic_conf is None:
        raise EndpointError(f"topic {topic} is a static topic, which the sink does not support")
    masters = {data.broker_name: address for data in route.broker_datas if (address := master_address(data))}
    queues = [
        WriteQueue(topic, broker, queue_id, masters.get(broker))
        for broker, count in _queue_counts(route, masters)
        if only_broker in (None, broker)
        for queue_id in range(count)
    ]
    if not queues:
        raise EndpointError(f"topic {topic} has no writable queue")
    return TopicPublishInfo(topic, tuple(queues))


def _queue_counts(route: TopicRouteData, masters: dict[str, Address]) -> list[tuple[str, int]]:
    """Return the number of queues at each broker, in order."""
    if route.order_topic_conf:
        pairs = [item.split(":") for item in route.order_topic_conf.split(";")]
        return [(broker, int(count)) for broker, count in pairs]
    datas = sorted(route.queue_datas, key=lambda data: data.broker_name)
    return [
        (data.broker_name, data.write_queue_nums)
        for data in datas
        if data.perm & _WRITE_PERMISSION and data.broker_name in masters
    ]


class PublishInfoCache:
    """Queues of all topics of a task, looked up on first use and again after a failure."""

    def __init__(self, connections: Connections, only_broker: str | None = None) -> None:
        self._connections = connections
        self._only_broker = only_broker
        self._infos: dict[str, TopicPublishInfo] = {}

    def publish_info(self, topic: str) -> TopicPublishInfo:
        """Return a topic's queues. Raises EndpointError, with the official text, for a topic without a route."""
        if topic not in self._infos:
            self._infos[topic] = self._fetch_route(topic)
        return self._infos[topic]

    def forget_topic(self, topic: str) -> None:
        """Look the topic up again on its next use."""
        self._infos.pop(topic, None)

    def _fetch_route(self, topic: str) -> TopicPublishInfo:
        try:
            reply = self._connections.request_name_server(GetRouteInfoByTopic(topic=topic))
        except RequestError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise EndpointError(f"route of topic {topic}: {error}") from error
            raise EndpointError(f"No route info of this topic: {topic}; create it first") from error
        return publish_info_from_route(topic, reply.data, self._only_broker)
