"""The driver's queries about a cluster: topics, queues, their offsets, and consumer groups.

Nothing here registers as a consumer. Messages are pulled only to sample their sizes, where a broker does not report
them.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

from codec.constants import ResponseCode
from codec.message import iter_messages, message_end
from codec.topics import SYSTEM_PREFIX, SYSTEM_TOPICS
from remoting.blocking import BlockingClient
from remoting.bodies.heartbeat import CheckClientRequestBody, SubscriptionData
from remoting.bodies.routes import TopicRouteData
from remoting.declare import Request
from remoting.errors import RequestError
from remoting.requests.client import CheckClientConfig, GetConsumerListByGroup
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
from remoting.requests.pull import TOOLS_GROUP, read_only_pull
from remoting.requests.query import QueryConsumeQueue
from spark.endpoint import Address, ClusterEndpoint, Connections
from spark.errors import EndpointError

_READ_PERMISSION: Final = 4
_MAX_SAMPLE_PULL_BYTES: Final = 64 * 1024
_SYSTEM_PREFIXES: Final = (SYSTEM_PREFIX, "RMQ_SYS_")
_REPLY_SUFFIX: Final = "_REPLY_TOPIC"
"""Suffix of the per-cluster system topic for replies of request-reply messages."""


class Queue(NamedTuple):
    """One queue of a topic at one broker, identified by the broker's name."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker}:{self.queue_id}"


class Extent(NamedTuple):
    """Offsets that a queue holds: from `begin` (inclusive) to `end` (exclusive, the next message's offset)."""

    begin: int
    end: int


QueueAddresses = Mapping[Queue, Address]


class ClusterClient:
    """Cluster queries of one thread of the driver. Connections are opened on first use."""

    def __init__(self, endpoint: ClusterEndpoint) -> None:
        self._connections = Connections(endpoint)

    def close(self) -> None:
        """Close all connections. They are reopened when needed."""
        self._connections.close()

    def list_topics(self) -> list[str]:
        """Return the user topics, retry and dead-letter topics included, sorted. Raises EndpointError."""
        names = set(self._connections.request_name_server(GetAllTopicListFromNameserver()).data.topic_list)
        names -= set(self._connections.request_name_server(GetSystemTopicListFromNs()).data.topic_list)
        return sorted(name for name in names if not _is_system(name))

    def find_queues(self, topics: Sequence[str]) -> dict[Queue, Address]:
        """Return the readable queues of topics with the broker to pull from. Unknown topics have none.

        Raises EndpointError if no name server can be reached.
        """
        requests = [GetRouteInfoByTopic(topic=topic) for topic in topics]

        def request_routes(client: BlockingClient) -> dict[Queue, Address]:
            answers = client.send_commands([request.to_command() for request in requests])
            queues: dict[Queue, Address] = {}
            for topic, request, answer in zip(topics, requests, answers, strict=True):
                if answer.code != ResponseCode.TOPIC_NOT_EXIST:
                    queues |= _queues_in_route(topic, request.read_reply(answer).data)
            return queues

        try:
            return self._connections.run_at_name_server(request_routes, "routes")
        except RequestError as error:
            raise EndpointError(f"routes of the name servers: {error}") from error

    def unknown_topic_error(self, topic: str) -> EndpointError:
        """Return the error for an unknown topic; it suggests the topic with the most similar name."""
        near = difflib.get_close_matches(topic, self.list_topics(), 1, 0.6)
        hint = f"; did you mean {near[0]}?" if near else ""
        return EndpointError(f"there is no topic {topic}{hint}")

    def fetch_extents(self, queues: QueueAddresses) -> dict[Queue, Extent]:
        """Return the offsets that each queue holds. Raises EndpointError."""
        begins = self._request_each(
            queues, lambda queue: GetMinOffset(topic=queue.topic, queue_id=queue.queue_id)
        )
        ends = self._request_each(
            queues, lambda queue: GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id)
        )
        return {queue: Extent(begins[queue].offset, ends[queue].offset) for queue in queues}

    def find_offsets_at(self, queues: QueueAddresses, times_ms: Mapping[Queue, int]) -> dict[Queue, int]:
        """Return the offset of the first message stored at or after a time in ms, or the queue's end. Raises
        EndpointError.
        """
        timed_queues = {queue: address for queue, address in queues.items() if queue in times_ms}
        replies = self._request_each(
            timed_queues,
            lambda queue: SearchOffsetByTimestamp(
                topic=queue.topic, queue_id=queue.queue_id, timestamp=times_ms[queue]
            ),
        )
        return {queue: reply.offset for queue, reply in replies.items()}

    def fetch_committed(self, group: str, queues: QueueAddresses) -> dict[Queue, int]:
        """Return a group's committed offsets, for the queues that have one. Raises EndpointError."""
        replies = self._request_each(
            queues,
            lambda queue: QueryConsumerOffset(
                consumer_group=group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                set_zero_if_not_found=False,
            ),
            absent=ResponseCode.QUERY_NOT_FOUND,
        )
        return {queue: reply.offset for queue, reply in replies.items()}

    def commit_offsets(self, group: str, queues: QueueAddresses, offsets: Mapping[Queue, int]) -> None:
        """Commit offsets for a group. Raises EndpointError, also if the broker refuses to create the group.

        One queue of each topic is committed first: if the very first commits of a group arrive concurrently, the
        official broker loses some of them. Source: ConsumerOffsetManager.commitOffset, 5.4.0.
        """
        addresses = {queue: address for queue, address in queues.items() if queue in offsets}
        # A dictionary keeps one queue per topic and broker: the group is created by the first commit it gets there.
        first_queues = dict(
            {(queue.topic, address): (queue, address) for queue, address in addresses.items()}.values()
        )
        other_queues = {queue: address for queue, address in addresses.items() if queue not in first_queues}
        for targets in (first_queues, other_queues):
            self._request_each(
                targets,
                lambda queue: UpdateConsumerOffset(
                    consumer_group=group,
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    commit_offset=offsets[queue],
                ),
            )

    def has_live_consumers(self, group: str, queues: QueueAddresses) -> bool:
        """Tell whether a consumer of this group is connected to one of the brokers. Raises EndpointError."""
        request = GetConsumerListByGroup(consumer_group=group)
        for address in sorted(set(queues.values())):
            answer = self._connections.run_at(
                address, lambda client: client.send_command(request.to_command()), f"consumers of {group}"
            )
            # The broker answers for a group without consumers with an error code.
            if answer.code == ResponseCode.SUCCESS and request.read_reply(answer).data.consumer_id_list:
                return True
        return False

    def sample_sizes(
        self, queues: QueueAddresses, samples: Mapping[Queue, Sequence[tuple[int, int]]]
    ) -> dict[Queue, list[list[int]]]:
        """Return the stored sizes in bytes of each sample's messages. A sample is (first offset, count).

        Reads consume queue entries where the broker allows it, otherwise pulls some messages. Raises EndpointError.
        """
        spots = [(queue, *sample) for queue in samples for sample in samples[queue]]
        sizes_by_queue: dict[Queue, list[list[int]]] = {queue: [] for queue in samples}
        for address in sorted({queues[queue] for queue in samples}):
            local_spots = [spot for spot in spots if queues[spot[0]] == address]
            for (queue, _, _), sizes in zip(local_spots, self._sizes_at(address, local_spots), strict=True):
                sizes_by_queue[queue].append(sizes)
        return sizes_by_queue

    def fingerprint_messages(self, queues: QueueAddresses, offsets: Mapping[Queue, int]) -> dict[Queue, int]:
        """Return a checksum per queue that tells the message at an offset from any other message.

        It covers what a copy in another cluster has as well. Queues that hold no message at the offset are left out.
        Raises EndpointError.
        """
        replies = self._request_each(
            {queue: queues[queue] for queue in offsets},
            lambda queue: read_only_pull(
                queue.topic, queue.queue_id, offsets[queue], 1, max_bytes=_MAX_SAMPLE_PULL_BYTES
            ),
        )
        fingerprints = {}
        for queue, reply in replies.items():
            message = next(iter_messages(reply.body, check_crc=False), None) if reply.body else None
            if message is not None and message.queue_offset == offsets[queue]:
                head = f"{message.born_timestamp} {message.unique_key} "
                fingerprints[queue] = crc32(message.body, crc32(head.encode()))
        return fingerprints

    def check_expression(self, topic: str, address: Address, expression: str) -> None:
        """Raise EndpointError if the broker refuses an SQL92 filter, because it is wrong or because filtering is
        disabled.

        This is the check that consumers make before they start. A pull is not enough: the official broker answers a
        pull with a wrong expression by letting every message through.
        """
        subscription = SubscriptionData(topic=topic, sub_string=expression, expression_type="SQL92")
        body = CheckClientRequestBody(
            client_id=TOOLS_GROUP, group=TOOLS_GROUP, subscription_data=subscription
        )
        command = CheckClientConfig(data=body).to_command()
        answer = self._connections.run_at(
            address, lambda client: client.send_command(command), "check of the filter"
        )
        if answer.code != ResponseCode.SUCCESS:
            raise EndpointError(f"the broker refuses SQL92 {expression!r}: {answer.remark}")

    def _sizes_at(self, address: Address, spots: Sequence[tuple[Queue, int, int]]) -> list[list[int]]:
        requests = [
            QueryConsumeQueue(topic=queue.topic, queue_id=queue.queue_id, index=first, count=count)
            for queue, first, count in spots
        ]
        what = f"sizes of {address[0]}:{address[1]}"
        try:
            replies = self._connections.run_at(address, lambda client: client.pipeline(requests), what)
        except RequestError:  # administrators only, or the queue has no entry yet
            return self._sizes_of_messages(address, spots, what)
        return [[entry.physic_size for entry in reply.data.queue_data] for reply in replies]

    def _sizes_of_messages(
        self, address: Address, spots: Sequence[tuple[Queue, int, int]], what: str
    ) -> list[list[int]]:
        pulls = [
            read_only_pull(queue.topic, queue.queue_id, first, count, max_bytes=_MAX_SAMPLE_PULL_BYTES)
            for queue, first, count in spots
        ]
        try:
            replies = self._connections.run_at(address, lambda client: client.pipeline(pulls), what)
        except RequestError as error:
            raise EndpointError(f"{what}: {error}") from error
        return [_stored_sizes(reply.body) for reply in replies]

    def _request_each(
        self, queues: QueueAddresses, make_request: Callable[[Queue], Request[Any]], absent: int | None = None
    ) -> dict[Queue, Any]:
        """Send one request per queue, pipelined to each broker; leave out queues answered with code `absent`."""
        replies: dict[Queue, Any] = {}
        for address in sorted(set(queues.values())):
            local_queues = [queue for queue, where in queues.items() if where == address]
            replies |= self._request_from(address, local_queues, make_request, absent)
        return replies

    def _request_from(
        self,
        address: Address,
        queues: Sequence[Queue],
        make_request: Callable[[Queue], Request[Any]],
        absent: int | None,
    ) -> dict[Queue, Any]:
        requests = [make_request(queue) for queue in queues]
        what = f"{type(requests[0]).__name__} of {address[0]}:{address[1]}"

        def request_all(client: BlockingClient) -> dict[Queue, Any]:
            answers = client.send_commands([request.to_command() for request in requests])
            return {
                queue: request.read_reply(answer)
                for queue, request, answer in zip(queues, requests, answers, strict=True)
                if answer.code != absent
            }

        try:
            return self._connections.run_at(address, request_all, what)
        except RequestError as error:
            raise EndpointError(f"{what}: {error}") from error


def _queues_in_route(topic: str, route: TopicRouteData) -> dict[Queue, Address]:
    """Return the readable queues of a route, at the broker's master or else at the slave with the lowest id."""
    if route.topic_queue_mapping_by_broker:
        raise EndpointError(
            f"{topic} is a static topic: its queues move between brokers, which is not supported"
        )
    queues: dict[Queue, Address] = {}
    addresses = {broker.broker_name: broker.broker_addrs for broker in route.broker_datas}
    for data in route.queue_datas:
        by_id = addresses.get(data.broker_name)
        if not by_id or not data.perm & _READ_PERMISSION:
            continue
        host, _, port = by_id[min(by_id)].rpartition(":")
        for queue_id in range(data.read_queue_nums):
            queues[Queue(topic, data.broker_name, queue_id)] = (host.strip("[]"), int(port))
    return dict(sorted(queues.items()))


def _is_system(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(_SYSTEM_PREFIXES) or topic.endswith(_REPLY_SUFFIX)


def _stored_sizes(stored: bytes) -> list[int]:
    sizes, position = [], 0
    while position < len(stored):
        end = message_end(stored, position)
        sizes.append(end - position)
        position = end
    return sizes
