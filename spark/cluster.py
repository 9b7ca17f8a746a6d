"""What the driver asks an endpoint about: topics, queues, where these begin and end, what was when, what a group did.

Nothing here reads messages or registers as a consumer. Not responsible for which positions a query starts or ends at.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from codec.constants import ResponseCode
from remoting.bodies.routes import TopicRouteData
from remoting.declare import Request
from remoting.errors import RequestError
from remoting.requests.client import GetConsumerListByGroup
from remoting.requests.namesrv import (
    GetAllTopicListFromNameserver,
    GetRouteInfoByTopic,
    GetSystemTopicListFromNs,
)
from remoting.requests.offsets import (
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)
from spark.endpoint import Address, Connections, Endpoint
from spark.errors import EndpointError

_READ: Final = 4
_SYSTEM: Final = frozenset(
    (
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    )
)
_SYSTEM_PREFIXES: Final = ("rmq_sys_", "RMQ_SYS_", "%SYS%")


class Queue(NamedTuple):
    """One queue of a topic at one broker, known by its name."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker}:{self.queue_id}"


class Extent(NamedTuple):
    """Where a queue begins and where its next message will be: what it holds is [begin, end)."""

    begin: int
    end: int


Queues = Mapping[Queue, Address]


class Cluster:
    """An endpoint as one thread of the driver sees it; connections are opened at the first question."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._connections = Connections(endpoint)

    def close(self) -> None:
        """Close all connections; they are opened again when needed."""
        self._connections.close()

    def topics(self) -> list[str]:
        """The topics users made, those of retries and dead letters included, sorted. Raises EndpointError."""
        every = set(self._connections.ask_name_server(GetAllTopicListFromNameserver()).data.topic_list)
        every -= set(self._connections.ask_name_server(GetSystemTopicListFromNs()).data.topic_list)
        return sorted(name for name in every if name not in _SYSTEM and not name.startswith(_SYSTEM_PREFIXES))

    def queues(self, topic: str) -> dict[Queue, Address]:
        """The queues of a topic that can be read, with the broker to ask; none for a topic nobody knows.

        Raises EndpointError when the name servers cannot be asked.
        """
        try:
            route = self._connections.ask_name_server(GetRouteInfoByTopic(topic=topic)).data
        except RequestError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise EndpointError(f"route of {topic}: {error}") from error
            return {}
        if route.topic_queue_mapping_by_broker:
            raise EndpointError(
                f"{topic} is a static topic, whose queues move between brokers: not readable here"
            )
        return _queues_of(topic, route)

    def unknown(self, topic: str) -> EndpointError:
        """The error for a topic nobody knows, with the name that is nearest to it."""
        near = difflib.get_close_matches(topic, self.topics(), 1, 0.6)
        hint = f"; did you mean {near[0]}?" if near else ""
        return EndpointError(f"there is no topic {topic}{hint}")

    def extents(self, queues: Queues) -> dict[Queue, Extent]:
        """Where each queue begins and ends. Raises EndpointError."""
        begins = self._ask_each(
            queues, lambda queue: GetMinOffset(topic=queue.topic, queue_id=queue.queue_id)
        )
        ends = self._ask_each(queues, lambda queue: GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id))
        return {queue: Extent(begins[queue].offset, ends[queue].offset) for queue in queues}

    def at_time(self, queues: Queues, times_ms: Mapping[Queue, int]) -> dict[Queue, int]:
        """The first message stored at or after a time, ms; the queue's end without one. Raises EndpointError."""
        asked = {queue: address for queue, address in queues.items() if queue in times_ms}
        found = self._ask_each(
            asked,
            lambda queue: SearchOffsetByTimestamp(
                topic=queue.topic, queue_id=queue.queue_id, timestamp=times_ms[queue]
            ),
        )
        return {queue: reply.offset for queue, reply in found.items()}

    def committed(self, group: str, queues: Queues) -> dict[Queue, int]:
        """Where a group goes on, of the queues it committed anything for. Raises EndpointError."""
        found = self._ask_each(
            queues,
            lambda queue: QueryConsumerOffset(
                consumer_group=group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                set_zero_if_not_found=False,
            ),
            absent=ResponseCode.QUERY_NOT_FOUND,
        )
        return {queue: reply.offset for queue, reply in found.items()}

    def commit(self, group: str, queues: Queues, offsets: Mapping[Queue, int]) -> None:
        """Let a group go on at these offsets. Raises EndpointError, also for a group the broker does not make."""
        self._ask_each(
            {queue: address for queue, address in queues.items() if queue in offsets},
            lambda queue: UpdateConsumerOffset(
                consumer_group=group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                commit_offset=offsets[queue],
            ),
        )

    def is_live(self, group: str, queues: Queues) -> bool:
        """Whether anybody consumes as this group at one of the brokers. Raises EndpointError."""
        for address in set(queues.values()):
            try:
                reply = self._connections.ask(address, GetConsumerListByGroup(consumer_group=group))
            except RequestError:  # what brokers answer for a group without consumers
                continue
            if reply.data.consumer_id_list:
                return True
        return False

    def _ask_each(
        self, queues: Queues, request: Callable[[Queue], Request[Any]], absent: int | None = None
    ) -> dict[Queue, Any]:
        """The answer for each queue, asked broker by broker in one go; `absent` is the code of one that has none."""
        found: dict[Queue, Any] = {}
        for address in sorted(set(queues.values())):
            there = [queue for queue, where in queues.items() if where == address]
            found |= self._ask_one(address, there, request, absent)
        return found

    def _ask_one(
        self,
        address: Address,
        queues: Sequence[Queue],
        request: Callable[[Queue], Request[Any]],
        absent: int | None,
    ) -> dict[Queue, Any]:
        requests = [request(queue) for queue in queues]
        what = f"{type(requests[0]).__name__} of {address[0]}:{address[1]}"

        def ask(client: Any) -> dict[Queue, Any]:
            answers = client.send_commands([each.to_command() for each in requests])
            return {
                queue: asked.read_reply(answer)
                for queue, asked, answer in zip(queues, requests, answers, strict=True)
                if answer.code != absent
            }

        try:
            return self._connections.use(address, ask, what)
        except RequestError as error:
            raise EndpointError(f"{what}: {error}") from error


def _queues_of(topic: str, route: TopicRouteData) -> dict[Queue, Address]:
    """Of each broker the master; while it is gone the slave a stock consumer would turn to."""
    found: dict[Queue, Address] = {}
    addresses = {broker.broker_name: broker.broker_addrs for broker in route.broker_datas}
    for data in route.queue_datas:
        by_id = addresses.get(data.broker_name)
        if not by_id or not data.perm & _READ:
            continue
        host, _, port = by_id[min(by_id)].rpartition(":")
        for queue_id in range(data.read_queue_nums):
            found[Queue(topic, data.broker_name, queue_id)] = (host.strip("[]"), int(port))
    return dict(sorted(found.items()))
