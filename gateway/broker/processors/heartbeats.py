"""Requests of clients about themselves and their groups: heartbeat, unregister, check subscription, list members."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from codec.command import Command
from codec.constants import ResponseCode
from codec.java_numbers import quoted
from codec.topics import retry_topic
from gateway.auth.access_control import CONSUMES_ONLY
from gateway.broker.broker import Broker
from gateway.broker.consumers.client_protocol import protocol_of
from gateway.broker.consumers.client_registry import GroupMember
from gateway.broker.filters.filter_cache import ExpressionTooLong
from gateway.broker.filters.message_filter import is_tag_type
from gateway.broker.filters.sql92 import SqlError
from gateway.broker.processors.turns import end_turn
from gateway.broker.topics.limit_errors import limit_error
from gateway.broker.topics.name_validation import check_client_id
from gateway.broker.topics.topic_table import unit_flags
from remoting.bodies.groups import GetConsumerListByGroupResponseBody
from remoting.bodies.heartbeat import ConsumerData, ProducerData, ReceivedHeartbeat, SubscriptionData
from remoting.connection import Connection, Handler
from remoting.errors import RequestError
from remoting.handler_table import Call, HandlerTable, encode_reply
from remoting.requests.client import (
    CheckClientConfig,
    GetConsumerListByGroup,
    GetConsumerListByGroupReply,
    HeartBeat,
    HeartbeatReply,
    UnregisterClient,
)

handlers: HandlerTable[Broker] = HandlerTable()

GROUPS_PER_SLICE: Final = 32
MAX_GROUP_NAME_CHARS: Final = 255
MAX_ENUM_CHARS: Final = 64


@handlers.register_raw(HeartBeat.code)
def choose_heartbeat_handler(broker: Broker) -> Handler:
    """Return the handler of heartbeats.

    One heartbeat may bring thousands of groups, which are decoded and registered in slices. What cannot be registered
    does not keep the other groups from it; the first refusal is the answer.
    Source: ClientManageProcessor.heartBeat, 5.4.0.
    """

    def handle(connection: Connection, command: Command) -> bytes | None:
        registration = HeartbeatRegistration(broker, connection, command)
        if registration.group_count > GROUPS_PER_SLICE:
            connection.spawn(_register_in_slices, registration, Call(connection, command))
            return None
        for _ in registration.register_groups():
            pass
        return encode_reply(command, registration.reply())

    return handle


async def _register_in_slices(registration: "HeartbeatRegistration", call: Call) -> None:
    try:
        for number, _ in enumerate(registration.register_groups()):
            await end_turn(number, GROUPS_PER_SLICE)
        call.reply(registration.reply())
    except RequestError as error:
        call.fail(error)


class HeartbeatRegistration:
    """Registers the groups of one heartbeat, one after the other.

    A fingerprint makes the heartbeat one of version 2, which may omit subscriptions. Expressions are not compiled here:
    a heartbeat may bring thousands.
    Deviation: a heartbeat of version 2 without subscriptions for a group that is unknown here (the broker restarted) is
    answered so that the client sends them.
    """

    def __init__(self, broker: Broker, connection: Connection, command: Command) -> None:
        self._broker = broker
        self._connection = connection
        self._command = command
        self._beat = beat = ReceivedHeartbeat.from_json(command.body, connection.limits.max_json_values)
        self._is_second_version = beat.heartbeat_fingerprint != 0
        self._with_subscriptions = not (self._is_second_version and beat.without_sub)
        self._needs_subscriptions = False
        self._refusal: RequestError | None = None
        self.group_count = len(beat.consumer_data_set) + len(beat.producer_data_set)
        max_groups = broker.config.limits.max_groups_per_client
        if self.group_count > max_groups:
            raise limit_error("maxGroupsPerClient", max_groups, "groups of one client", "use several clients")
        check_client_id(beat.client_id)

    def register_groups(self) -> Iterator[None]:
        """Register one group at a time; yield after each."""
        for data in self._beat.consumer_data_set:
            self._try(self._register_consumer, data)
            yield
        for data in self._beat.producer_data_set:
            self._try(self._register_producer, data)
            yield

    def reply(self) -> HeartbeatReply:
        """Return the answer, or raise the first refusal, after all groups."""
        if self._refusal is not None:
            raise RequestError(self._refusal.code, self._refusal.remark)
        changed = self._needs_subscriptions or not self._is_second_version
        return HeartbeatReply(is_support_heart_beat_v2=True, is_sub_change=changed)

    def _try(self, register: Callable[[Any], None], data: Any) -> None:
        try:
            register(data)
        except RequestError as error:
            # A copy: the trace of the error leads back here, which would keep the heartbeat until a garbage collection.
            self._refusal = self._refusal or RequestError(error.code, error.remark)

    def _member(self) -> GroupMember:
        command = self._command
        protocol = protocol_of(self._connection, command)
        return GroupMember(
            self._connection, self._beat.client_id, command.language, command.version, protocol
        )

    def _register_producer(self, data: Any) -> None:
        group = ProducerData.from_value(data).group_name
        _check_text("groupName", group, MAX_GROUP_NAME_CHARS)
        clients = self._broker.clients
        if self._connection.state.get(CONSUMES_ONLY):
            # The right may have been withdrawn: a membership without heartbeats would close the consumer's connection.
            clients.unregister_producer(group, self._connection)
        else:
            clients.register_producer(group, self._member())

    def _register_consumer(self, data: Any) -> None:
        broker, consumer = self._broker, ConsumerData.from_value(data)
        if consumer.consume_type == "CONSUME_ACTIVELY" and broker.config.reject_pull_consumer_enable:
            return
        _check_consumer(broker, consumer)
        name, fingerprint = consumer.group_name, self._beat.heartbeat_fingerprint
        group = broker.clients.consumer_group(name)
        if group is None or not group.subscriptions:
            self._needs_subscriptions |= not self._with_subscriptions
        if group is not None:
            self._needs_subscriptions |= group.fingerprint not in (None, fingerprint)
        if self._update_tables(consumer):
            group = broker.clients.consumer_group(name)
        if group is not None:
            group.fingerprint = fingerprint

    def _update_tables(self, consumer: ConsumerData) -> bool:
        """Register the consumer if its group exists or may be created; return whether it was."""
        broker = self._broker
        config = broker.groups.find_or_create(consumer.group_name)
        if config is None:
            return False
        ordered = any(
            broker.topics.is_ordered(subscription.topic) for subscription in consumer.subscription_data_set
        )
        broker.topics.create_for_send_back(
            retry_topic(consumer.group_name),
            config.retry_queue_nums,
            order=ordered,
            sys_flag=unit_flags(unit=False, subscribed=consumer.unit_mode),
        )
        broker.clients.register_consumer(
            self._member(),
            consumer,
            notify=config.notify_consumer_ids_changed_enable,
            subscriptions=self._with_subscriptions,
        )
        if self._with_subscriptions:
            broker.consumer_filters.register(consumer.group_name, consumer.subscription_data_set)
        return True


def _check_consumer(broker: Broker, consumer: ConsumerData) -> None:
    for name in (consumer.consume_type, consumer.message_model, consumer.consume_from_where):
        _check_text("consumerDataSet", name or "", MAX_ENUM_CHARS)
    for subscription in consumer.subscription_data_set:
        _check_subscription(broker, subscription)


def _check_text(name: str, text: str, max_chars: int) -> None:
    if len(text) > max_chars:
        remark = f"{name} {quoted(text)} of a heartbeat is longer than {max_chars}"
        raise RequestError(ResponseCode.INVALID_PARAMETER, remark)


def _check_subscription(broker: Broker, subscription: SubscriptionData) -> None:
    """Refuse an expression that is too long, with the tags and their hashes that the client found in it."""
    try:
        broker.filter_cache.check_subscription(subscription)
    except ExpressionTooLong as error:
        remark = f"the subscription to {quoted(subscription.topic)} is refused: {error}"
        raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark) from error


@UnregisterClient.on(handlers)
def unregister_client(broker: Broker, request: UnregisterClient, call: Call) -> None:
    """Remove a stopping client from its groups. Source: ClientManageProcessor.unregisterClient, 5.4.0."""
    if request.producer_group is not None:
        broker.clients.unregister_producer(request.producer_group, call.connection)
    if request.consumer_group is not None:
        config = broker.groups.get(request.consumer_group)
        notify = config is None or config.notify_consumer_ids_changed_enable
        broker.clients.unregister_consumer(request.consumer_group, call.connection, notify=notify)


@CheckClientConfig.on(handlers)
def check_client_config(broker: Broker, request: CheckClientConfig) -> None:
    """Refuse a subscription by which this broker cannot filter.

    Source: ClientManageProcessor.checkClientConfig, 5.4.0. Deviation: an unknown type of expression is
    refused by name; the official broker answers with a NullPointerException.
    """
    subscription = None if request.data is None else request.data.subscription_data
    if subscription is None:
        return
    _check_subscription(broker, subscription)
    if is_tag_type(subscription.expression_type):
        return
    if not broker.config.enable_property_filter:
        remark = f"The broker does not support consumer to filter message by {subscription.expression_type}"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
    try:
        broker.filter_cache.sql_filter(subscription.expression_type, subscription.sub_string)
    except (SqlError, ExpressionTooLong) as error:
        raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error


@GetConsumerListByGroup.on(handlers)
def get_consumer_list_by_group(
    broker: Broker, request: GetConsumerListByGroup
) -> GetConsumerListByGroupReply:
    """Return the client ids of a group's online members.

    Source: ConsumerManageProcessor.getConsumerListByGroup, 5.4.0.
    """
    group = broker.clients.consumer_group(request.consumer_group)
    if group is None:
        remark = f"no consumer for this group, {request.consumer_group}"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
    return GetConsumerListByGroupReply(
        data=GetConsumerListByGroupResponseBody(consumer_id_list=group.client_ids())
    )
