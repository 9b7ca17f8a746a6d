"""SEND_MESSAGE in its three forms (codes 10, 310, 320).

Plain messages, half messages and batches take a fast path that never parses their properties. Retry topics, delays,
timers and messages without a unique key take the special path through `message_writer.py`.
Source: SendMessageProcessor and AbstractSendMessageProcessor, 5.4.0.
"""

import itertools
import os
import random
from datetime import datetime
from typing import Any, Final

import trio

from codec.command import Command, ResponseTemplate, encode_response, json_text
from codec.constants import FAQ, ResponseCode
from codec.ids import make_unique_key
from codec.properties import decode_properties
from codec.sysflag import INNER_BATCH, MULTI_TAGS, TRANSACTION_MASK
from codec.topics import (
    PERM_WRITE,
    RETRY_PREFIX,
    TRANS_HALF_TOPIC,
    permission_text,
)
from gateway.broker.delayed.timer_scheduler import TIMER_KEYS, encode_recall_handle
from gateway.broker.messages.advertised_hosts import HOST_VIEW, HostView
from gateway.broker.messages.message_services import MessageServices
from gateway.broker.messages.message_writer import (
    MessageDraft,
    MessageWriter,
    read_delay_level,
    store_refusal,
)
from gateway.broker.requests.retry_rules import RetryRules
from gateway.broker.statistics.stored_counts import MessageType, message_type_of
from gateway.broker.topics.name_validation import check_topic_name, closed_topic_refusal
from gateway.broker.topics.topic_table import TopicTable, unit_flags
from gateway.broker.transactions.end_transaction import as_half, half_suffix, is_plain_half
from gateway.config.process import BrokerConfig
from remoting.bodies.topics import TopicConfig
from remoting.connection import Connection, encode_failure
from remoting.errors import RequestError
from remoting.header_reader import compile_header_reader
from remoting.requests.send import SendMessage, SendMessageV2
from storage.append import NewMessage, check_batch_in_slices, has_more_messages
from storage.clock import Clock
from storage.errors import MessageIllegal, StoreFull
from toolkit.times import elapsed_in_month_ms

_FIELDS_READ: Final = (
    "topic", "queue_id", "sys_flag", "born_timestamp", "flag", "properties", "reconsume_times", "batch",
)  # fmt: skip
"""The header fields that a send needs, of those that `remoting/requests/send.py` declares. `_check_request` makes a
`NewMessage` of them.
"""
_BATCH: Final = _FIELDS_READ.index("batch")
_read_v1 = compile_header_reader(SendMessage, *_FIELDS_READ)
_read_v2 = compile_header_reader(SendMessageV2, *_FIELDS_READ)
SEND_V1, SEND_REPLY_V1, SEND_BATCH = 10, 324, 320
UNIQUE_KEY: Final = "UNIQ_KEY\x01"
SHARDING_KEY: Final = "__SHARDINGKEY\x01"
ANSWER_FIELDS: Final[dict[str, type[int] | type[str]]] = {
    "msgId": str,
    "queueId": int,
    "queueOffset": int,
    "transactionId": str,
    "MSG_REGION": str,
    "TRACE_ON": str,
}
WAIT: Final = "WAIT\x01"
MAX_BATCH_TOPIC_LENGTH: Final = 127
INNER_NUMBER: Final = "INNER_NUM"
MAX_TURN_MESSAGES: Final = 2048
"""Messages of a batch that are stored in one turn, which takes about 6 ms; 4 MiB may hold 190,000 empty ones."""
SentMessage = NewMessage[str]
"""The message of a send, with its properties as the producer sent them."""


def _needs_special_path(properties: str) -> bool:
    """Tell whether a property may need the special path. It searches for text, so it may be True without need.

    Messages of stock clients rarely contain MSG, so that one search stands for three.
    """
    return (
        "DELAY" in properties
        or "TIMER_" in properties
        or "POP_CK" in properties
        or INNER_NUMBER in properties
        or ("MSG" in properties and _has_special_msg_name(properties))
    )


def _has_special_msg_name(properties: str) -> bool:
    return "TRAN_MSG" in properties or "MSG_REGION" in properties or "_SYS_MSG_PRIORITY_" in properties


def _unit_flags_of(topic: str, unit_mode: bool | None) -> int:
    """Return the sys flag for a topic that this request creates.

    Unit mode marks topics and retry topics differently.
    """
    if not unit_mode:
        return 0
    is_retry = topic.startswith(RETRY_PREFIX)
    return unit_flags(unit=not is_retry, subscribed=is_retry)


def format_topic(config: TopicConfig) -> str:
    """Format a topic as refusals show it. Source: TopicConfig.toString, 5.4.0."""
    attributes = ", ".join(f"{name}={value}" for name, value in config.attributes.items())
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={permission_text(config.perm)}, "
        f"topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag}, "
        f"order={str(config.order).lower()}, attributes={{{attributes}}}]"
    )


def _refuse_inner_batch(message: SentMessage) -> None:
    """Refuse a batch that is stored as one message, because topics with batch queues are not supported.
    Source: HookUtils.checkInnerBatch, 5.4.0.
    """
    properties = message.properties
    counts = INNER_NUMBER in properties and INNER_NUMBER in decode_properties(properties)
    if counts or message.sys_flag & INNER_BATCH:
        raise MessageIllegal("no topic of batch queues")


def _is_wait_declined(properties: str) -> bool:
    """Tell whether a producer does not want to wait until its message is on the disk and on replicas."""
    return WAIT in properties and decode_properties(properties).get("WAIT", "true").lower() != "true"


def _read_fields(command: Command) -> tuple[Any, ...]:
    """Return the values of a send's header. Raises RequestError for one that cannot be read."""
    read = _read_v1 if command.code in (SEND_V1, SEND_REPLY_V1) else _read_v2
    return read(command.ext)


def _parse_request(command: Command) -> SendMessage | SendMessageV2:
    """Return the whole header of a send, for the rare sends that need more of it. Raises RequestError."""
    return (SendMessage if command.code in (SEND_V1, SEND_REPLY_V1) else SendMessageV2).from_ext(command.ext)


class UniqueKeyGenerator:
    """Generates unique keys for messages that were sent without one.

    They consist of the broker's address, its process id, the time since the start of the month and a counter
    (`codec/ids.py`), so that no client generates the same key. Source: MessageClientIDSetter.createUniqID, 5.4.0.
    """

    def __init__(self, clock: Clock, address: str = "127.0.0.1") -> None:
        self._clock = clock
        self._address = address
        self._loader_hash = random.getrandbits(31)
        self._counter = itertools.count(1)

    def next_key(self) -> str:
        """Return a new key of 32 (IPv4) or 56 (IPv6) hexadecimal digits."""
        elapsed_ms = elapsed_in_month_ms(self._clock.now_ms())
        count = next(self._counter) & 0xFFFF
        return make_unique_key(self._address, os.getpid() & 0xFFFF, self._loader_hash, elapsed_ms, count)


class SendHandler:
    """Stores the messages that producers send, and answers them."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        services: MessageServices,
        writer: MessageWriter,
        retry_rules: RetryRules,
        unique_keys: UniqueKeyGenerator,
    ) -> None:
        self._topics = topics
        self._store = services.store
        self._long_polls = services.long_polls
        self._answers = services.answer_gate
        self._hosts = services.hosts
        self._put_stats = services.stats.stored
        self._writer = writer
        self._retry_rules = retry_rules
        self._unique_keys = unique_keys
        self._quick_answer = ResponseTemplate(ANSWER_FIELDS)
        self.reconfigure(config)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply changed settings."""
        self._config = config
        self._own_properties = {
            "MSG_REGION": config.region_id,
            "TRACE_ON": "true" if config.trace_on else "false",
            "CLUSTER": config.broker_cluster_name,
        }
        self._suffix = "".join(f"{name}\x01{value}\x02" for name, value in self._own_properties.items())
        self.own_properties_bytes = self._suffix.encode()
        self._common_answer_fields = {name: self._own_properties[name] for name in ("MSG_REGION", "TRACE_ON")}
        self._region, self._trace = (json_text(value) for value in self._common_answer_fields.values())

    def send(self, connection: Connection, command: Command) -> bytes | None:
        """Store one message or batch. Return the answer, or None when it waits for the disk or for replicas.

        Raises RequestError, with the header of every answer to a producer if the request could be read.
        """
        fields = _read_fields(command)
        try:
            view = connection.state.get(HOST_VIEW) or self._hosts.view_of(connection)
            message = self._check_request(connection, command, view, fields)
            if self._store.disk_full:
                raise StoreFull("nearly full")
            if self._answers.must_wait:
                connection.check_outstanding_limit()
                if self._answers.may_refuse and not _is_wait_declined(message.properties):
                    self._answers.check_append()
            if command.code == SEND_BATCH or fields[_BATCH]:
                return self._send_batch(connection, command, view, message)
            return self._send_one(connection, command, view, message)
        except RequestError as error:
            error.fields = self._common_answer_fields
            raise
        except (MessageIllegal, StoreFull) as error:
            raise self._store_refusal(error) from error

    def _store_refusal(self, error: Exception) -> RequestError:
        # Made here, because a variable of the frame that raises it would make a cycle: each refused message would stay
        # in memory until a garbage collection.
        refusal = store_refusal(error, self._config.store.max_message_size_bytes)
        refusal.fields = self._common_answer_fields
        return refusal

    # -- reading and checking -------------------------------------------------------------------------------------

    def read_message(self, connection: Connection, command: Command) -> SentMessage:
        """Return the message of a send whose header is allowed; its topic is created if need be.

        Raises RequestError.
        """
        view = self._hosts.view_of(connection)
        return self._check_request(connection, command, view, _read_fields(command))

    @property
    def answer_parts(self) -> tuple[bytes, ...]:
        """The texts between id, queue, offset, unique key and opaque in the usual answer, for native code."""
        *texts, before_region, before_trace, before_opaque, last = self._quick_answer.texts()
        constant = b"".join((before_region, self._region, before_trace, self._trace, before_opaque))
        return (*texts, constant, last)

    @property
    def common_answer_fields(self) -> dict[str, str]:
        """The header fields of every answer to a producer, refusals included."""
        return self._common_answer_fields

    def _check_request(
        self, connection: Connection, command: Command, view: HostView, fields: tuple[Any, ...]
    ) -> SentMessage:
        topic, queue_id, sys_flag, born_timestamp, flag, properties, reconsume_times, _ = fields
        if self._config.start_accept_send_timestamp_ms:
            self._refuse_before_start()
        config = self._topics.get(topic)
        closed = topic in self._topics.closed_to_producers
        if config is None or closed or not self._config.broker_permission & PERM_WRITE:
            config = self._resolve_topic(connection, command, topic)
        if queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums:
            self._refuse_queue(connection, config, queue_id)
        if queue_id < 0:
            if config.write_queue_nums < 1:
                self._refuse_queue(connection, config, queue_id)
            queue_id = random.randrange(config.write_queue_nums)
        if config.topic_filter_type == "MULTI_TAG":
            sys_flag |= MULTI_TAGS
        return NewMessage(
            topic,
            queue_id,
            command.body,
            properties or "",
            flag,
            sys_flag,
            born_timestamp,
            view.born_host,
            view.store_host,
            reconsume_times or 0,
        )

    def _refuse_before_start(self) -> None:
        start_ms = self._config.start_accept_send_timestamp_ms
        if self._store.clock.now_ms() < start_ms:
            start = datetime.fromtimestamp(start_ms // 1000)
            text = f"{start:%Y-%m-%d %H:%M:%S},{start_ms % 1000:03d}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {text}")

    def _resolve_topic(self, connection: Connection, command: Command, topic: str) -> TopicConfig:
        """Return the topic of a send that the fast checks did not accept; create it if that is allowed.

        Raises RequestError.
        """
        if not self._config.broker_permission & PERM_WRITE and self._topics.is_ordered(topic):
            host = self._hosts.address_for(connection)[0]
            raise RequestError(ResponseCode.NO_PERMISSION, f"the broker[{host}] sending message is forbidden")
        check_topic_name(topic)
        if self._topics.is_closed_to_producers(topic):
            raise closed_topic_refusal(topic)
        request = _parse_request(command)
        flags = _unit_flags_of(topic, request.unit_mode)
        config = self._topics.get(topic) or self._topics.create_for_send(
            topic, request.default_topic, request.default_topic_queue_nums, flags
        )
        if config is None and topic.startswith(RETRY_PREFIX):
            config = self._topics.create_for_send_back(topic, 1, sys_flag=flags)
        if config is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!{FAQ}"
            )
        return config

    @staticmethod
    def _refuse_queue(connection: Connection, config: TopicConfig, queue_id: int) -> None:
        host, port = connection.remote
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{queue_id}] is illegal, {format_topic(config)} Producer: {host}:{port}",
        )

    # -- storing --------------------------------------------------------------------------------------------------

    def _send_one(
        self, connection: Connection, command: Command, view: HostView, message: SentMessage
    ) -> bytes | None:
        topic, queue_id, properties = message.topic, message.queue_id, message.properties
        if properties[-1:] != "\x02":
            properties += "\x02"
        # The answer names the unique key. Searching for it in the text takes a tenth of parsing all properties.
        start = properties.find(UNIQUE_KEY)
        unique_key = properties[start + 9 : properties.find("\x02", start)]
        # The second condition: it is the end of another property's name.
        if (
            start < 0
            or (start and properties[start - 1] != "\x02")
            or topic[0] == "%"
            or not unique_key
            or not command.body
            or message.sys_flag & INNER_BATCH
            or _needs_special_path(properties)
        ):
            return self._send_special(connection, command, view, message)
        message.properties = properties + self._suffix
        offset, physical_offset, size, _ = self._store.append(message)
        self._long_polls.mark_grown(topic, queue_id)
        if SHARDING_KEY in properties:
            self._put_stats[topic].count_fifo(size)
        else:
            self._put_stats[topic].count_message(size)
        answer = self._encode_answer(command, view.message_id(physical_offset), queue_id, offset, unique_key)
        return self._answer_when_safe(connection, command, answer, properties)

    def _send_special(
        self, connection: Connection, command: Command, view: HostView, message: SentMessage
    ) -> bytes | None:
        """Store a message that needs its properties parsed: retry topics, delays, timers, no unique key."""
        if not command.body:  # A frame cannot tell an absent body from an empty one.
            raise MessageIllegal("no body")
        _refuse_inner_batch(message)
        queue_id, sent_properties = message.queue_id, message.properties
        if is_plain_half(sent_properties) and message.topic[0] != "%":
            return self._send_half(connection, command, view, message)
        properties = decode_properties(sent_properties)
        kind = message_type_of(properties)
        properties.pop("POP_CK", None)
        properties.update(self._own_properties)
        unique_key = properties.setdefault("UNIQ_KEY", "") or self._unique_keys.next_key()
        properties["UNIQ_KEY"] = unique_key
        draft = message.replace_properties(properties)
        is_half = self._check_is_half(connection, draft)
        if draft.topic.startswith(RETRY_PREFIX):
            max_times = _parse_request(command).max_reconsume_times
            draft = self._retry_rules.redirect_to_dead_letters(draft, command.version, max_times)
        draft = as_half(draft) if is_half else self._writer.apply_schedule(draft)
        offset, physical_offset, size, _ = self._writer.append(draft)
        # A message that waits counts for the topic in which it waits, and for its real topic once it is delivered.
        self._put_stats[draft.topic].count_request(kind, size)
        recall = encode_recall_handle(draft.properties, self._config.broker_name)
        message_id = view.message_id(physical_offset)
        answer = self._encode_answer(command, message_id, queue_id, offset, unique_key, recall)
        return self._answer_when_safe(connection, command, answer, sent_properties)

    def _send_half(
        self, connection: Connection, command: Command, view: HostView, message: SentMessage
    ) -> bytes | None:
        """Store a plain half message in the form that `as_half` gives it, without parsing its properties."""
        topic, queue_id, properties = message.topic, message.queue_id, message.properties
        self._refuse_half(connection)
        if properties[-1:] != "\x02":
            properties += "\x02"
        start = properties.find(UNIQUE_KEY) + 9
        unique_key = properties[start : properties.find("\x02", start)]
        message.topic, message.queue_id = TRANS_HALF_TOPIC, 0
        message.properties = properties + self._suffix + half_suffix(unique_key, topic, queue_id)
        message.sys_flag &= ~TRANSACTION_MASK
        offset, physical_offset, size, _ = self._store.append(message)
        self._long_polls.mark_grown(TRANS_HALF_TOPIC, 0)
        self._put_stats[TRANS_HALF_TOPIC].count_request(MessageType.TRANSACTION, size)
        answer = self._encode_answer(command, view.message_id(physical_offset), queue_id, offset, unique_key)
        return self._answer_when_safe(connection, command, answer, properties)

    def _check_is_half(self, connection: Connection, message: MessageDraft) -> bool:
        """Tell whether a message is a half message. Delayed redeliveries of clients before 4.6.1 only look like one."""
        if message.properties.get("TRAN_MSG", "").lower() != "true":
            return False
        if read_delay_level(message.properties) > 0 and message.reconsume_times > 0:
            return False
        self._refuse_half(connection)
        return True

    def _refuse_half(self, connection: Connection) -> None:
        if self._config.reject_transaction_message:
            host = self._hosts.address_for(connection)[0]
            remark = f"the broker[{host}] sending transaction message is forbidden"
            raise RequestError(ResponseCode.NO_PERMISSION, remark)

    def _send_batch(
        self, connection: Connection, command: Command, view: HostView, message: SentMessage
    ) -> bytes | None:
        own_properties = self._check_batch(message)
        body = bytes(command.body)
        if has_more_messages(body, MAX_TURN_MESSAGES):
            connection.spawn_alone(
                self._send_large_batch, connection, command, view, message, own_properties, body
            )
            return None
        offset, physical_offsets, size = self._append_batch(message, body)
        message_ids = view.message_ids(physical_offsets)
        self._put_stats[message.topic].count_request(
            message_type_of(own_properties), size, len(physical_offsets)
        )
        unique_key = own_properties.get("UNIQ_KEY")
        answer = self._encode_answer(command, message_ids, message.queue_id, offset, unique_key)
        return self._answer_when_safe(connection, command, answer, message.properties)

    def _append_batch(self, message: SentMessage, body: bytes) -> tuple[int, list[int], int]:
        """Store the messages of a batch body; return the first queue offset, the physical offsets and the size."""
        topic, queue_id = message.topic, message.queue_id
        offset, physical_offsets, _ = self._store.append_batch(
            topic,
            queue_id,
            body,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_host=message.store_host,
            reconsume_times=message.reconsume_times,
            properties_suffix=self.own_properties_bytes,
        )
        self._long_polls.mark_grown(topic, queue_id)
        return offset, physical_offsets, self._store.max_physical_offset - physical_offsets[0]

    async def _send_large_batch(
        self,
        connection: Connection,
        command: Command,
        view: HostView,
        message: SentMessage,
        own_properties: dict[str, str],
        body: bytes,
    ) -> None:
        """Store a batch in parts, between which other tasks run, and answer it.

        All of it is checked before the first part is stored. Deviation: messages of other producers may come between
        two parts, and after an error (a full disk, a deleted topic) the parts before it are stored.
        """
        try:
            answer = await self._store_in_parts(connection, command, view, message, own_properties, body)
        except (RequestError, MessageIllegal, StoreFull) as error:
            refusal = error if isinstance(error, RequestError) else self._store_refusal(error)
            refusal.fields = self._common_answer_fields
            if not command.is_oneway:
                connection.write(encode_failure(command, refusal))
        else:
            if answer is not None and not command.is_oneway:
                connection.write(answer)

    async def _store_in_parts(
        self,
        connection: Connection,
        command: Command,
        view: HostView,
        message: SentMessage,
        own_properties: dict[str, str],
        body: bytes,
    ) -> bytes | None:
        parts = []
        max_bytes = self._config.store.max_message_size_bytes
        for part in check_batch_in_slices(body, self.own_properties_bytes, max_bytes, MAX_TURN_MESSAGES):
            parts.append(part)
            await trio.lowlevel.checkpoint()
        first_offset, count, total_bytes, message_ids = -1, 0, 0, []
        for start, end in parts:
            if self._topics.get(message.topic) is None:
                raise RequestError(
                    ResponseCode.TOPIC_NOT_EXIST, f"topic[{message.topic}] was deleted during the send"
                )
            if self._store.disk_full:
                raise StoreFull("nearly full")
            offset, physical_offsets, size = self._append_batch(message, body[start:end])
            first_offset = offset if first_offset < 0 else first_offset
            count, total_bytes = count + len(physical_offsets), total_bytes + size
            message_ids.append(view.message_ids(physical_offsets))
            await trio.lowlevel.checkpoint()
        kind = message_type_of(own_properties)
        self._put_stats[message.topic].count_request(kind, total_bytes, count)
        unique_key = own_properties.get("UNIQ_KEY")
        answer = self._encode_answer(
            command, ",".join(message_ids), message.queue_id, first_offset, unique_key
        )
        return self._answer_when_safe(connection, command, answer, message.properties)

    @staticmethod
    def _check_batch(message: SentMessage) -> dict[str, str]:
        """Refuse messages that cannot be sent in a batch. Return the properties of the batch itself."""
        topic = message.topic
        if len(topic) > MAX_BATCH_TOPIC_LENGTH:
            remark = f"message topic length too long {len(topic)}"
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, remark)
        if topic.startswith(RETRY_PREFIX):
            remark = f"batch request does not support retry group {topic}"
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, remark)
        _refuse_inner_batch(message)
        properties = decode_properties(message.properties) if message.properties else {}
        is_timed = read_delay_level(properties) > 0 or any(key in properties for key in TIMER_KEYS)
        if is_timed or message.sys_flag & TRANSACTION_MASK:
            raise MessageIllegal("a batch can be neither delayed nor transactional")
        return properties

    # -- answering ------------------------------------------------------------------------------------------------

    def _encode_answer(
        self,
        command: Command,
        message_id: str,
        queue_id: int,
        queue_offset: int,
        unique_key: str | None,
        recall: str | None = None,
    ) -> bytes:
        if unique_key is not None and unique_key.isalnum() and recall is None:
            return self._quick_answer(
                command.opaque,
                f'"{message_id}"'.encode(),
                queue_id,
                queue_offset,
                f'"{unique_key}"'.encode(),
                self._region,
                self._trace,
            )
        ext = {"msgId": message_id, "queueId": str(queue_id), "queueOffset": str(queue_offset)}
        if unique_key is not None:
            ext["transactionId"] = unique_key
        if recall is not None:
            ext["recallHandle"] = recall
        ext.update(self._common_answer_fields)
        return encode_response(command.opaque, 0, ext, b"", None)

    def _answer_when_safe(
        self, connection: Connection, command: Command, answer: bytes, properties: str
    ) -> bytes | None:
        """Return the answer, or None when the answer gate sends it once the message just appended is safe."""
        if not self._answers.must_wait:
            return answer
        position = self._store.max_physical_offset
        if _is_wait_declined(properties):
            self._answers.hold(connection, None, position)
            return answer
        return self._answers.hold(connection, None if command.is_oneway else answer, position)
