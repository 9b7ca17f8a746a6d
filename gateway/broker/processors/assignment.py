"""Queue assignment for clients that let the broker assign queues: which ones, and whether to pull or to pop them.
Source: QueryAssignmentProcessor, 5.4.0. Deviation: the topic's route is queried each time, so that a queue that was
added or removed counts at once. The strategies live in `pop/queue_assignment.py`.
"""

import logging

from codec.constants import ResponseCode
from codec.java_numbers import quoted
from codec.topics import PERM_READ, RETRY_PREFIX
from gateway.broker.broker import Broker
from gateway.broker.pop.queue_assignment import STRATEGIES, assign_for_pop, assign_queues
from gateway.broker.processors.turns import check_listed_queues, end_turn
from gateway.config.pop import POP, PULL
from remoting.bodies.pop import (
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from remoting.bodies.queues import MessageQueue
from remoting.errors import RequestError
from remoting.handler_table import HandlerTable
from remoting.requests.pop import (
    QueryAssignment,
    QueryAssignmentReply,
    SetMessageRequestMode,
)

log = logging.getLogger(__name__)

handlers: HandlerTable[Broker] = HandlerTable()


@QueryAssignment.on(handlers)
async def query_assignment(broker: Broker, request: QueryAssignment) -> QueryAssignmentReply:
    """Return the queues that a client should consume now. Without a list the client keeps the queues it has."""
    body = request.data
    mode = _request_mode(broker, body.topic or "", body.consumer_group or "")
    queues = _assigned_queues(broker, body, mode, await _readable_queues(broker, body.topic or ""))
    assignments = None
    if queues is not None:
        assignments = [MessageQueueAssignment(message_queue=queue, mode=mode.mode) for queue in queues]
    return QueryAssignmentReply(data=QueryAssignmentResponseBody(message_queue_assignments=assignments))


def _request_mode(broker: Broker, topic: str, group: str) -> SetMessageRequestModeRequestBody:
    """Return the mode set for the group, else the broker's default. Retry topics are always pulled."""
    chosen = broker.pop.request_modes.find_mode(topic, group)
    if chosen is not None:
        return chosen
    mode = PULL if topic.startswith(RETRY_PREFIX) else broker.config.pop.default_message_request_mode
    shared = broker.config.pop.default_pop_share_queue_num if mode == POP else 0
    return SetMessageRequestModeRequestBody(
        topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=shared
    )


async def _readable_queues(broker: Broker, topic: str) -> list[MessageQueue] | None:
    """Return every readable queue of the topic on all brokers; None when the topic has no route."""
    route = await broker.routes.find_route(topic)
    if route is None:
        return None
    queues: list[MessageQueue] = []
    for number, data in enumerate(sorted(route.queue_datas, key=lambda data: data.broker_name)):
        if data.perm & PERM_READ:
            queues += [
                MessageQueue(topic=topic, broker_name=data.broker_name, queue_id=queue_id)
                for queue_id in broker.topics.queue_ids(data.read_queue_nums)
            ]
        check_listed_queues(len(queues))
        await end_turn(number, 1)
    return queues


def _assigned_queues(
    broker: Broker,
    body: QueryAssignmentRequestBody,
    mode: SetMessageRequestModeRequestBody,
    queues: list[MessageQueue] | None,
) -> list[MessageQueue] | None:
    """Return the client's share; None when it cannot be computed."""
    if queues is None or body.message_model == "BROADCASTING":
        return queues
    if not broker.config.pop.server_load_balancer_enable:
        return queues
    members = broker.clients.consumer_group(body.consumer_group or "")
    strategy = STRATEGIES.get(body.strategy_name or "")
    client = body.client_id or ""
    if members is None or strategy is None or not client.strip() or not queues:
        extra = {"group": body.consumer_group, "topic": body.topic, "strategy": body.strategy_name}
        log.warning("queues cannot be assigned", extra=extra)
        return None
    clients = members.sorted_client_ids()
    if mode.mode == POP:
        return assign_for_pop(strategy, client, queues, clients, mode.pop_share_queue_num)
    return assign_queues(strategy, client, queues, clients)


@SetMessageRequestMode.on(handlers)
async def set_message_request_mode(broker: Broker, request: SetMessageRequestMode) -> None:
    """Set whether a group pulls or pops a topic."""
    body = request.data
    topic, group = body.topic or "", body.consumer_group or ""
    if topic.startswith(RETRY_PREFIX):
        raise RequestError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
    if body.mode not in (PULL, POP):
        raise RequestError(
            ResponseCode.INVALID_PARAMETER, f"mode [{quoted(body.mode)}] is not {PULL} or {POP}"
        )
    if topic not in broker.topics:
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
    if broker.groups.find_or_create(group) is None:
        raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
    async with broker.pop.request_modes.stored_change():
        broker.pop.request_modes.set_mode(body)
