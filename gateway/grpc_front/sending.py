"""SendMessage and RecallMessage. Source: SendMessageActivity, RecallMessageActivity, ProducerProcessor, 5.4.0.

Deviation: the answer to several messages has an entry for each; the official one has a single entry for all.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from codec import properties as keys
from codec.batch import encode_batch
from codec.constants import ResponseCode
from codec.hashing import java_hash
from codec.ids import decode_message_id
from codec.properties import encode_properties
from codec.recall_handle import RecallHandle
from codec.sysflag import COMPRESSED, TRANSACTION_PREPARED
from codec.topics import DEFAULT_TOPIC, DLQ_PREFIX, RETRY_PREFIX
from gateway.grpc_front import messages
from gateway.grpc_front.cluster import ServedBroker, ServedCluster, type_of_topic
from gateway.grpc_front.conversion import to_ms
from gateway.grpc_front.names import (
    check_message_type,
    check_tag,
    check_text,
    check_topic,
    has_control_character,
)
from gateway.grpc_front.rpc import Method, Rpc, unary
from gateway.grpc_front.statuses import OK, StatusError, make_status, overall_status
from gateway.grpc_front.transactions import OpenTransaction, OpenTransactions
from remoting.requests.send import RecallMessage, SendBatchMessage, SendMessageReply, SendMessageV2

MAX_USER_PROPERTIES: Final = 128
MAX_USER_PROPERTY_BYTES: Final = 16 * 1024
MAX_MESSAGE_GROUP_BYTES: Final = 64
MAX_DELAY_MS: Final = 24 * 3600 * 1000
MAX_RECOVERY_S: Final = 3600
_DEFAULT_QUEUES: Final = 4
_INCOMPLETE: Final[dict[int, tuple[messages.Code, str]]] = {
    ResponseCode.FLUSH_DISK_TIMEOUT: (messages.MASTER_PERSISTENCE_TIMEOUT, "FLUSH_DISK_TIMEOUT"),
    ResponseCode.SLAVE_NOT_AVAILABLE: (messages.HA_NOT_AVAILABLE, "SLAVE_NOT_AVAILABLE"),
    ResponseCode.FLUSH_SLAVE_TIMEOUT: (messages.SLAVE_PERSISTENCE_TIMEOUT, "FLUSH_SLAVE_TIMEOUT"),
}
"""Codes of messages that were stored, but not as durably as the broker is to store them."""


class SendMethods:
    """The RPCs of producers, except those that end transactions."""

    def __init__(self, cluster: ServedCluster, transactions: OpenTransactions) -> None:
        self._cluster = cluster
        self._transactions = transactions

    def methods(self) -> dict[str, Method]:
        """Return the RPCs by name."""
        return {
            "SendMessage": unary(
                messages.SendMessageRequest,
                messages.SendMessageResponse,
                self.send_message,
                carries_messages=True,
                is_eager=True,
            ),
            "RecallMessage": unary(
                messages.RecallMessageRequest, messages.RecallMessageResponse, self.recall_message
            ),
        }

    async def send_message(
        self, rpc: Rpc, request: messages.SendMessageRequest
    ) -> messages.SendMessageResponse:
        """Store messages of one topic."""
        if not request.messages:
            raise StatusError(messages.MESSAGE_CORRUPTED, "no message to send")
        topic = check_topic(request.messages[0].topic)
        properties = [self._properties_of(rpc, message, request.messages[0]) for message in request.messages]
        config = self._cluster.require_topic(topic)
        if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            for message_properties in properties:
                check_message_type(type_of_topic(config), _type_of(message_properties))
        if len(request.messages) > 1:
            _check_batch(request, properties)
        broker, queue_id = self._choose_queue(request)
        reply = await self._store(rpc, broker, queue_id, request, properties)
        return self._answer(request, broker, reply, properties)

    def _properties_of(self, rpc: Rpc, message: messages.Message, first: messages.Message) -> dict[str, str]:
        if message.topic != first.topic:
            raise StatusError(messages.MESSAGE_CORRUPTED, "topic in message is not same")
        if not message.body:
            raise StatusError(messages.MESSAGE_BODY_EMPTY, "message body cannot be empty")
        most = self._cluster.max_message_bytes
        if len(message.body) > most:
            raise StatusError(
                messages.MESSAGE_BODY_TOO_LARGE,
                f"message body cannot exceed the max {most} (maxMessageSize of the broker)",
            )
        return properties_of(message, self._cluster.clock.now_ms(), rpc.connection.remote)

    def _choose_queue(self, request: messages.SendMessageRequest) -> tuple[ServedBroker, int]:
        """Return the queue for a request: that of the message group, else the next in rotation."""
        group = request.messages[0].system_properties.message_group
        writable = self._cluster.writable_queues(request.messages[0].topic.name, is_ordered=bool(group))
        total = sum(queues for _, queues in writable)
        if not total:
            raise StatusError(messages.FORBIDDEN, "no writable queue")
        number = consistent_hash(java_hash(group), total) if group else self._cluster.next_turn() % total
        for broker, queues in writable:
            if number < queues:
                return broker, number
            number -= queues
        raise AssertionError("the number is below the total")

    async def _store(
        self,
        rpc: Rpc,
        broker: ServedBroker,
        queue_id: int,
        request: messages.SendMessageRequest,
        properties: list[dict[str, str]],
    ) -> SendMessageReply:
        first = request.messages[0]
        is_batch = len(request.messages) > 1
        command = (SendBatchMessage if is_batch else SendMessageV2)(
            producer_group=first.topic.name,
            topic=first.topic.name,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=_DEFAULT_QUEUES,
            queue_id=queue_id,
            sys_flag=sys_flag_of(first),
            born_timestamp=int(properties[0][keys.BORN_TIMESTAMP]),
            flag=0,
            properties=encode_properties(properties[0]).decode(),
            reconsume_times=0,
            batch=is_batch,
            broker_name=broker.name,
        )
        if is_batch:
            entries = zip(request.messages, properties, strict=True)
            command.body = encode_batch((0, message.body, encode_properties(own)) for message, own in entries)
        else:
            command.body = first.body
        language = rpc.metadata.get("x-mq-language", "OTHER")
        return await self._cluster.link(rpc.connection, broker).call(command, rpc.sender, language=language)

    def _answer(
        self,
        request: messages.SendMessageRequest,
        broker: ServedBroker,
        reply: SendMessageReply,
        properties: list[dict[str, str]],
    ) -> messages.SendMessageResponse:
        status = OK
        if reply.code in _INCOMPLETE:
            code, name = _INCOMPLETE[reply.code]
            status = make_status(code, f"send message failed, sendStatus={name}")
        answer = messages.SendMessageResponse(status=overall_status([status]))
        for number, own in enumerate(properties):
            entry = answer.entries.add(status=status)
            if status is OK:
                entry.message_id = own[keys.UNIQ_CLIENT_MESSAGE_ID_KEYIDX]
                entry.transaction_id = reply.transaction_id or ""
                entry.offset = reply.queue_offset + number
                entry.recall_handle = reply.recall_handle or ""
        if status is OK and _type_of(properties[0]) == "TRANSACTION" and reply.transaction_id:
            _, _, physical_offset = decode_message_id(reply.msg_id)
            self._transactions.add(
                request.messages[0].topic.name,
                reply.transaction_id,
                OpenTransaction(broker.name, reply.queue_offset, physical_offset),
            )
        return answer

    async def recall_message(
        self, rpc: Rpc, request: messages.RecallMessageRequest
    ) -> messages.RecallMessageResponse:
        """Cancel a message that is not due yet."""
        topic = check_topic(request.topic)
        check_message_type(type_of_topic(self._cluster.require_topic(topic)), "DELAY")
        try:
            name = RecallHandle.decode(request.recall_handle).broker_name
        except ValueError as error:
            raise StatusError(messages.INTERNAL_SERVER_ERROR, f"recall handle is invalid: {error}") from error
        broker = self._cluster.broker(name)
        if broker is None:
            raise StatusError(messages.BAD_REQUEST, f"this server has no broker {name}")
        link = self._cluster.link(rpc.connection, broker)
        recall = RecallMessage(topic=topic, recall_handle=request.recall_handle, bname=name)
        reply = await link.call(recall, rpc.sender)
        return messages.RecallMessageResponse(status=OK, message_id=reply.msg_id)


def _check_batch(request: messages.SendMessageRequest, properties: list[dict[str, str]]) -> None:
    """Refuse messages that cannot be stored in one queue with the same flags. Raises StatusError.

    Deviation: the official Proxy looks at the first message only, sends messages of one group to any queue, and stores
    all bodies as encoded like the first one.
    """
    first = request.messages[0].system_properties
    kind = _type_of(properties[0])
    if kind not in ("NORMAL", "FIFO") or any(_type_of(own) != kind for own in properties):
        raise StatusError(
            messages.BAD_REQUEST,
            "messages of one request must all be normal or all be ordered; send others one by one",
        )
    for message in request.messages:
        system = message.system_properties
        if system.message_group != first.message_group:
            raise StatusError(
                messages.BAD_REQUEST, "messages of one request must have the same message group"
            )
        if sys_flag_of(message) != sys_flag_of(request.messages[0]):
            raise StatusError(
                messages.BAD_REQUEST, "messages of one request must have the same encoding and type"
            )


def sys_flag_of(message: messages.Message) -> int:
    """Return the flags with which a message is sent to a broker."""
    system = message.system_properties
    flag = COMPRESSED if system.body_encoding == messages.GZIP else 0
    return flag | (TRANSACTION_PREPARED if system.message_type == messages.TRANSACTION else 0)


def _type_of(properties: Mapping[str, str]) -> str:
    """Return the type of a message. Source: TopicMessageType.parseFromMessageProperty, 5.4.0."""
    if properties.get(keys.TRANSACTION_PREPARED) == "true":
        return "TRANSACTION"
    if keys.TIMER_DELIVER_MS in properties:
        return "DELAY"
    if keys.SHARDING_KEY in properties:
        return "FIFO"
    return "PRIORITY" if keys.PRIORITY in properties else "NORMAL"


def properties_of(message: messages.Message, now_ms: int, remote: tuple[str, int]) -> dict[str, str]:
    """Return the properties with which a message is stored. Raises StatusError."""
    system = message.system_properties
    _check_user_properties(message)
    if not system.message_id.strip():
        raise StatusError(messages.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    properties = dict(message.user_properties)
    if system.tag:
        properties[keys.TAGS] = system.tag
    if system.keys:
        properties[keys.KEYS] = keys.KEY_SEPARATOR.join(system.keys)
    properties[keys.UNIQ_CLIENT_MESSAGE_ID_KEYIDX] = system.message_id
    properties.update(_type_properties(system, now_ms))
    properties[keys.RECONSUME_TIME] = str(system.delivery_attempt)
    properties[keys.PRODUCER_GROUP] = message.topic.name
    if system.trace_context:
        properties[keys.TRACE_CONTEXT] = system.trace_context
    properties[keys.BORN_HOST] = system.born_host.strip() or f"{remote[0]}:{remote[1]}"
    born_ms = to_ms(system.born_timestamp) if system.HasField("born_timestamp") else now_ms
    properties[keys.BORN_TIMESTAMP] = str(born_ms)
    for name, value in properties.items():
        if "\x01" in name or "\x02" in name or "\x01" in value or "\x02" in value:
            raise StatusError(
                messages.BAD_REQUEST,
                f"the property {name!r} contains the characters that separate properties",
            )
    return properties


def _type_properties(system: messages.SystemProperties, now_ms: int) -> Iterator[tuple[str, str]]:
    """Yield the properties that make a message transactional, delayed, ordered or urgent."""
    if system.message_type == messages.TRANSACTION:
        yield keys.TRANSACTION_PREPARED, "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            recovery_s = system.orphaned_transaction_recovery_duration.seconds
            if recovery_s > MAX_RECOVERY_S:
                raise StatusError(
                    messages.BAD_REQUEST,
                    f"the max transaction recovery time of message is too large, max is {MAX_RECOVERY_S}",
                )
            yield keys.CHECK_IMMUNITY_TIME_IN_SECONDS, str(recovery_s)
    if system.HasField("delivery_timestamp"):
        due_ms = to_ms(system.delivery_timestamp)
        if due_ms - now_ms > MAX_DELAY_MS:
            raise StatusError(
                messages.ILLEGAL_DELIVERY_TIME,
                f"the max delay time of message is too large, max is {MAX_DELAY_MS}",
            )
        yield keys.TIMER_DELIVER_MS, str(due_ms)
    if system.message_group:
        check_text(system.message_group, "message group", messages.ILLEGAL_MESSAGE_GROUP)
        if len(system.message_group.encode()) >= MAX_MESSAGE_GROUP_BYTES:
            raise StatusError(
                messages.ILLEGAL_MESSAGE_GROUP, f"message group exceed the max size {MAX_MESSAGE_GROUP_BYTES}"
            )
        yield keys.SHARDING_KEY, system.message_group
    if system.HasField("priority"):
        yield keys.PRIORITY, str(system.priority)


def _check_user_properties(message: messages.Message) -> None:
    user, system = message.user_properties, message.system_properties
    if len(user) > MAX_USER_PROPERTIES:
        raise StatusError(
            messages.MESSAGE_PROPERTIES_TOO_LARGE, f"too many user properties, max is {MAX_USER_PROPERTIES}"
        )
    for name, value in user.items():
        if name in keys.RESERVED:
            raise StatusError(messages.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
        for part, text in (("key", name), ("value", value)):
            if has_control_character(text):
                raise StatusError(
                    messages.ILLEGAL_MESSAGE_PROPERTY_KEY,
                    f"the {part} of property cannot contain control character",
                )
    check_tag(system.tag)
    for key in system.keys:
        check_text(key, "key", messages.ILLEGAL_MESSAGE_KEY)
    size = sum(len(name.encode()) + len(value.encode()) for name, value in user.items())
    size += len(system.tag.encode()) + sum(len(key.encode()) for key in system.keys)
    if size > MAX_USER_PROPERTY_BYTES:
        raise StatusError(
            messages.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max is {MAX_USER_PROPERTY_BYTES}",
        )


_HASH_FACTOR: Final = 2862933555777941757
_HASH_MASK: Final = (1 << 64) - 1


def consistent_hash(hashed: int, buckets: int) -> int:
    """Return the bucket of a signed hash code, as the official Proxy does for the queue of a message group.

    Source: com.google.common.hash.Hashing.consistentHash of Guava (Lamping and Veach, "A fast, minimal memory,
    consistent hash algorithm").
    """
    state, candidate = hashed & _HASH_MASK, 0
    while True:
        state = (_HASH_FACTOR * state + 1) & _HASH_MASK
        following = int((candidate + 1) / (((state >> 33) + 1) / (1 << 31)))
        if following >= buckets:
            return candidate
        candidate = following
