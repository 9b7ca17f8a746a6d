"""QueryRoute and QueryAssignment. Source: RouteActivity, LocalTopicRouteService, 5.4.0.

Only queues of the served brokers are answered: those of this process, or those that its namesrv knows. Their endpoints
are those by which the client reached this port, so they are right whatever maps the port.
"""

import ipaddress
from collections.abc import Iterator
from typing import Final

from codec.hosts import Host
from codec.topics import PERM_READ, PERM_WRITE
from gateway.broker.processors.turns import end_turn
from gateway.grpc_front import messages
from gateway.grpc_front.cluster import ServedBroker, ServedCluster, type_of_topic
from gateway.grpc_front.long_work import LongWork
from gateway.grpc_front.names import check_group, check_topic
from gateway.grpc_front.rpc import Method, Rpc, unary
from gateway.grpc_front.statuses import OK, StatusError
from remoting.bodies.topics import TopicConfig

_MIXED_TYPES: Final = (messages.NORMAL, messages.FIFO, messages.DELAY, messages.TRANSACTION)
_TYPES: Final[dict[str, tuple[int, ...]]] = {
    "NORMAL": (messages.NORMAL,),
    "FIFO": (messages.FIFO,),
    "DELAY": (messages.DELAY,),
    "TRANSACTION": (messages.TRANSACTION,),
    "PRIORITY": (messages.PRIORITY,),
    "MIXED": _MIXED_TYPES,
}
_PERMISSIONS: Final = {
    PERM_READ | PERM_WRITE: messages.READ_WRITE,
    PERM_READ: messages.READ,
    PERM_WRITE: messages.WRITE,
    0: messages.NONE,
}
ANY_QUEUE: Final = -1
MAX_ENDPOINTS_BYTES: Final = 1024
"""Longest endpoints that a client may name: the answer repeats them for each queue."""


class RouteMethods:
    """The RPCs about routes."""

    def __init__(self, cluster: ServedCluster) -> None:
        self._cluster = cluster
        self._long_answers = LongWork()

    def methods(self) -> dict[str, Method]:
        """Return the RPCs by name."""
        return {
            "QueryRoute": unary(messages.QueryRouteRequest, messages.QueryRouteResponse, self.query_route),
            "QueryAssignment": unary(
                messages.QueryAssignmentRequest, messages.QueryAssignmentResponse, self.query_assignment
            ),
        }

    async def query_route(self, rpc: Rpc, request: messages.QueryRouteRequest) -> messages.QueryRouteResponse:
        """Return all queues of a topic."""
        topic = check_topic(request.topic)
        answer = messages.QueryRouteResponse(status=OK)
        endpoints = _endpoints_for(rpc, request.endpoints)
        brokers = await self._brokers_of(rpc, topic)
        async with self._long_answers.lock_for(sum(_count_queues(config) for _, config in brokers)):
            await self._list_queues(request.topic, brokers, endpoints, answer)
        return answer

    async def _list_queues(
        self,
        topic: messages.Resource,
        brokers: list[tuple[ServedBroker, TopicConfig]],
        endpoints: messages.Endpoints,
        answer: messages.QueryRouteResponse,
    ) -> None:
        for broker, config in brokers:
            described = messages.Broker(name=broker.name, id=0, endpoints=endpoints)
            types = _TYPES.get(type_of_topic(config), (messages.MESSAGE_TYPE_UNSPECIFIED,))
            for queue_id, permission in enumerate(_queue_permissions(config)):
                await end_turn(queue_id)
                answer.message_queues.add(
                    topic=topic,
                    id=queue_id,
                    permission=permission,
                    broker=described,
                    accept_message_types=types,
                )

    async def query_assignment(
        self, rpc: Rpc, request: messages.QueryAssignmentRequest
    ) -> messages.QueryAssignmentResponse:
        """Return the queues that a consumer receives from: any queue of each broker, or all in order."""
        topic, group = check_topic(request.topic), check_group(request.group)
        group_config = self._cluster.find_group(group)
        is_ordered = group_config is not None and group_config.consume_message_orderly
        answer = messages.QueryAssignmentResponse(status=OK)
        endpoints = _endpoints_for(rpc, request.endpoints)
        brokers = await self._brokers_of(rpc, topic)
        queues = sum(_count_queues(config) for _, config in brokers) if is_ordered else 0
        async with self._long_answers.lock_for(queues):
            await self._list_assignments(request.topic, brokers, endpoints, answer, is_ordered=is_ordered)
        if not answer.assignments:
            raise StatusError(messages.FORBIDDEN, "no readable queue")
        return answer

    async def _list_assignments(
        self,
        topic: messages.Resource,
        brokers: list[tuple[ServedBroker, TopicConfig]],
        endpoints: messages.Endpoints,
        answer: messages.QueryAssignmentResponse,
        *,
        is_ordered: bool,
    ) -> None:
        for broker, config in brokers:
            if not config.perm & PERM_READ or config.read_queue_nums <= 0:
                continue
            described = messages.Broker(name=broker.name, id=0, endpoints=endpoints)
            for queue_id in range(config.read_queue_nums) if is_ordered else (ANY_QUEUE,):
                await end_turn(queue_id)
                answer.assignments.add().message_queue.MergeFrom(
                    messages.MessageQueue(
                        topic=topic,
                        id=queue_id,
                        permission=_PERMISSIONS[config.perm & (PERM_READ | PERM_WRITE)],
                        broker=described,
                    )
                )

    async def _brokers_of(self, rpc: Rpc, topic: str) -> list[tuple[ServedBroker, TopicConfig]]:
        """Return the served brokers that have a topic. Raises StatusError, RequestError."""
        await self._cluster.check_route(rpc.connection, topic, rpc.sender)
        return self._cluster.require_brokers_of(topic)


def _count_queues(config: TopicConfig) -> int:
    return max(config.read_queue_nums, config.write_queue_nums)


def _queue_permissions(config: TopicConfig) -> Iterator[int]:
    """Yield the permission of each queue: first those that are only read, then those only written to, then both."""
    readable = config.read_queue_nums if config.perm & PERM_READ else 0
    writable = config.write_queue_nums if config.perm & PERM_WRITE else 0
    both = min(readable, writable)
    yield from [messages.READ] * (readable - both)
    yield from [messages.WRITE] * (writable - both)
    yield from [messages.READ_WRITE] * both
    if not config.perm & (PERM_READ | PERM_WRITE):
        yield from [messages.NONE] * max(1, config.read_queue_nums, config.write_queue_nums)


def _endpoints_for(rpc: Rpc, dialled: messages.Endpoints) -> messages.Endpoints:
    """Return the endpoints by which a client says that it reaches this port, else the address that it dialled."""
    if dialled.addresses:
        if dialled.ByteSize() > MAX_ENDPOINTS_BYTES:
            raise StatusError(
                messages.ILLEGAL_ACCESS_POINT, f"the endpoints take more than {MAX_ENDPOINTS_BYTES} bytes"
            )
        return dialled
    return endpoints_of(rpc.connection.local)


def endpoints_of(address: Host) -> messages.Endpoints:
    """Return one address as the protocol names it."""
    host, port = address
    try:
        scheme = messages.IPv6 if ipaddress.ip_address(host).version == 6 else messages.IPv4
    except ValueError:
        scheme = messages.DOMAIN_NAME
    return messages.Endpoints(scheme=scheme, addresses=[messages.Address(host=host, port=port)])
