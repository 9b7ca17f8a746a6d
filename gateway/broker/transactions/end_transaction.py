"""Transactional messages: half messages wait in a topic of their own until END_TRANSACTION commits or drops them.

A producer that never ends its half message is asked about it; see `transaction_checks.py`.
"""

import logging
from typing import Final

from codec import properties as keys
from codec.command import Command, encode_response
from codec.constants import ResponseCode
from codec.errors import MessageFormatError
from codec.hosts import pack_host
from codec.properties import decode_properties, find_integer, find_property
from codec.sysflag import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK, with_transaction_type
from codec.topics import ROCKSDB_TRANS_HALF_TOPIC, TRANS_CHECK_MAX_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_TOPIC
from gateway.broker.messages.advertised_hosts import AdvertisedHosts
from gateway.broker.messages.answer_gate import without_status
from gateway.broker.messages.message_services import MessageServices
from gateway.broker.messages.message_writer import MessageAppender, MessageDraft, MessageWriter
from gateway.broker.messages.stored_messages import find_in_queue
from gateway.broker.messages.waiting_message import RealQueueWriter, WaitingMessage, parse_real_queue
from gateway.broker.statistics.stored_counts import MessageType
from gateway.broker.topics.name_validation import closed_topic_refusal, topic_name_error
from gateway.broker.topics.topic_table import TopicTable
from gateway.config.process import BrokerConfig
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.header_reader import compile_header_reader
from remoting.requests.transaction import EndTransaction
from storage.append import NewMessage
from storage.clock import Clock
from storage.errors import MessageIllegal, StoreFull

log = logging.getLogger(__name__)

REMOVE_TAG: Final = "d"
"""Tag of an op message whose body names ended half messages. Source: TransactionalMessageUtil, 5.4.0."""
UNSET_REMARK: Final = "not set any response code"
"""Remark of an official answer whose code was set without a remark."""
MAX_ENDED_OFFSETS: Final = 200_000
"""Maximum number of ended half messages remembered for the metric of open ones, until the checks walk over them."""
NO_HALF_REMARK: Final = "Find prepared transaction message failed"
_HALF_TOPIC: Final = TRANS_HALF_TOPIC.encode()
HALF_TOPICS: Final = frozenset(
    topic.encode() for topic in (TRANS_HALF_TOPIC, ROCKSDB_TRANS_HALF_TOPIC, TRANS_CHECK_MAX_TOPIC)
)
"""Topics of messages that can be ended: the last one has those that the broker gave up asking about."""
_IMMUNITY: Final = b"CHECK_IMMUNITY_TIME_IN_SECONDS"
_MARK: Final = "TRAN_MSG\x01true\x02"
_UNIQUE_KEY: Final = "UNIQ_KEY\x01"
_read_header = compile_header_reader(
    EndTransaction, "producer_group", "tran_state_table_offset", "commit_log_offset", "commit_or_rollback",
    "from_transaction_check",
)  # fmt: skip


def is_plain_half(properties: str) -> bool:
    """Tell whether encoded properties mark a half message that needs no other special treatment.

    The search is rough: for some such messages it returns False, which only makes them slower.
    """
    mark, key = properties.find(_MARK), properties.find(_UNIQUE_KEY)
    if mark < 0 or key < 0 or properties.count(_UNIQUE_KEY) != 1:
        return False
    if (mark and properties[mark - 1] != "\x02") or (key and properties[key - 1] != "\x02"):
        return False
    return not (
        properties[key + 9 : key + 10] in ("\x02", "")
        or "DELAY" in properties
        or "TIMER_" in properties
        or "POP_CK" in properties
        or "MSG_REGION" in properties
        or "_SYS_MSG_PRIORITY_" in properties
        or "REAL_" in properties
        or "__transactionId__" in properties
    )


def half_suffix(unique_key: str, topic: str, queue_id: int) -> str:
    """Return the encoded properties that a half message gets besides the producer's own."""
    return f"__transactionId__\x01{unique_key}\x02REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue_id}\x02"


def as_half(message: MessageDraft) -> MessageDraft:
    """Return the message as it waits for its producer's decision.

    Source: TransactionalMessageBridge.parseHalfMessageInner, 5.4.0. Deviation: a delay is waited out after
    the commit; the official broker sends the half message to the delay queue and drops it when it is due.
    """
    properties = dict(message.properties)
    unique_key = properties.get(keys.UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
    if unique_key:
        properties[keys.TRANSACTION_ID] = unique_key
    properties[keys.REAL_TOPIC] = message.topic
    properties[keys.REAL_QUEUE_ID] = str(message.queue_id)
    sys_flag = with_transaction_type(message.sys_flag, TRANSACTION_NONE)
    return message.with_changes(topic=TRANS_HALF_TOPIC, queue_id=0, properties=properties, sys_flag=sys_flag)


class OpMessageWriter:
    """Records ended half messages: their offsets are collected and written to the op queue in batches.

    Source: TransactionalMessageServiceImpl.deletePrepareMessage, batchSendOpMessage and getOpMessage, 5.4.0.
    """

    def __init__(
        self, clock: Clock, appender: MessageAppender, hosts: AdvertisedHosts, max_bytes: int
    ) -> None:
        self._clock = clock
        self._appender = appender
        self._hosts = hosts
        # In dictionaries, since a producer may end a message again and again while the store refuses op messages.
        self._pending: dict[int, dict[str, None]] = {}
        self._pending_bytes = 0
        self._ended: dict[int, set[int]] = {}
        self.max_bytes = max_bytes

    @property
    def pending_bytes(self) -> int:
        """Size of the offsets that are not written yet."""
        return self._pending_bytes

    def count_ended(self, queue_id: int) -> int:
        """Return the number of known ended half messages that the checks have not walked over yet."""
        return len(self._ended.get(queue_id, ()))

    def forget_ended(self, queue_id: int, before: int) -> None:
        """Forget ended half messages before an offset, over which the checks have walked."""
        if queue_id in self._ended:
            self._ended[queue_id] = {offset for offset in self._ended[queue_id] if offset >= before}

    def record_ended(self, queue_id: int, queue_offset: int) -> None:
        """Record that the half message at a queue offset is ended."""
        ended = self._ended.setdefault(queue_id, set())
        if len(ended) < MAX_ENDED_OFFSETS:
            ended.add(queue_offset)
        text = f"{queue_offset},"
        pending = self._pending.setdefault(queue_id, {})
        if text in pending:
            return
        pending[text] = None
        self._pending_bytes += len(text)
        if self._pending_bytes > self.max_bytes:
            self.flush()

    def flush(self) -> None:
        """Write all collected offsets. Those that the store refuses are kept for the next call."""
        for queue_id in list(self._pending):
            try:
                self._flush_queue(queue_id)
            except RequestError as error:
                log.error(
                    "op message refused by the store", extra={"queue_id": queue_id, "reason": error.remark}
                )

    def _flush_queue(self, queue_id: int) -> None:
        pending = self._pending[queue_id]
        texts, at = list(pending), 0
        while at < len(texts):
            end, length = at, 0
            while end < len(texts) and length < self.max_bytes:
                length += len(texts[end])
                end += 1
            self._write(queue_id, "".join(texts[at:end]).encode())
            for text in texts[at:end]:
                del pending[text]
            self._pending_bytes -= length
            at = end
        del self._pending[queue_id]

    def _write(self, queue_id: int, body: bytes) -> None:
        host = pack_host(self._hosts.own_address())
        properties = {keys.WAIT_STORE_MSG_OK: "true", keys.TAGS: REMOVE_TAG}
        self._appender.append(
            NewMessage(
                TRANS_OP_TOPIC,
                queue_id,
                body,
                properties,
                born_timestamp=self._clock.now_ms(),
                born_host=host,
                store_host=host,
            )
        )


class EndTransactionHandler:
    """Ends half messages as their producers decide. Source: EndTransactionProcessor, 5.4.0."""

    def __init__(
        self, config: BrokerConfig, topics: TopicTable, services: MessageServices, writer: MessageWriter
    ) -> None:
        self._config = config
        self._topics = topics
        self._store = services.store
        self._clock = services.store.clock
        self._answers = services.answer_gate
        self._writer = writer
        self._real_queues = RealQueueWriter(
            services.store, services.long_polls, services.stats, MessageType.TRANSACTION
        )
        self._stats = services.stats
        self.op_messages = OpMessageWriter(
            self._clock, writer, services.hosts, config.transaction_op_msg_max_bytes
        )

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply changed settings."""
        self._config = config
        self.op_messages.max_bytes = config.transaction_op_msg_max_bytes

    def end_transaction(self, connection: Connection, command: Command) -> bytes | None:
        """Commit or roll back a half message. Return None, thus no answer, while its producer is undecided."""
        group, queue_offset, physical_offset, decision, from_check = _read_header(command.ext)
        if decision == TRANSACTION_NONE:
            return None
        if decision not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            raise RequestError(ResponseCode.SYSTEM_ERROR, "commitOrRollback field wrong")
        half = self._find_half(physical_offset)
        if not from_check:
            self._refuse_late(half)
        self._check_ownership(half, group, queue_offset)
        if decision == TRANSACTION_COMMIT and self._is_for_deleted_topic(half):
            self._record_ended(half)
            raise RequestError(ResponseCode.SYSTEM_ERROR, NO_HALF_REMARK)
        if decision == TRANSACTION_ROLLBACK:
            self._record_ended(half)
            topic = find_property(half.properties, b"REAL_TOPIC") or b""
            self._stats.rolled_back[topic.decode("utf-8", "replace")].count_messages(1, 0)
            return encode_response(command.opaque, 0, None, b"", UNSET_REMARK)
        real_topic = self._write_real_message(half, physical_offset)
        self._record_ended(half)
        self._stats.committed[real_topic].count_messages(1, 0)
        latency_ms = max(0, self._clock.now_ms() - half.born_timestamp)
        self._stats.commit_latencies_s[real_topic].record(latency_ms / 1000)
        answer = None if command.is_oneway else encode_response(command.opaque, 0, None, b"", None)
        if not self._answers.must_wait:
            return answer
        return self._answers.hold(connection, answer, self._store.max_physical_offset, without_status)

    def _find_half(self, physical_offset: int) -> WaitingMessage:
        """Return the half message at a physical offset.

        Deviation: only a message in a queue of half messages is found. The official broker ends any message that has
        the right properties, so that a producer could have one written to a topic that is closed to producers.
        """
        half = find_in_queue(self._store, physical_offset)
        if half is None or half.topic not in HALF_TOPICS:
            raise RequestError(ResponseCode.SYSTEM_ERROR, NO_HALF_REMARK)
        return half

    def _refuse_late(self, half: WaitingMessage) -> None:
        """Refuse a decision after the message's own immunity: from then on only check-backs decide.

        Source: EndTransactionProcessor.rejectCommitOrRollback, 5.4.0.
        """
        if _IMMUNITY not in half.properties:
            return
        immunity_s = find_integer(half.properties, _IMMUNITY, 0)
        immunity_ms = max(immunity_s * 1000, self._config.transaction_timeout_ms)
        if self._clock.now_ms() - half.born_timestamp > immunity_ms:
            raise RequestError(ResponseCode.ILLEGAL_OPERATION, UNSET_REMARK)

    @staticmethod
    def _check_ownership(half: WaitingMessage, group: str, queue_offset: int) -> None:
        """Refuse a decision by another group or about another queue offset.

        Source: EndTransactionProcessor.checkPrepareMessage, 5.4.0. Deviation: a message without a group is refused as
        one of another group; the official broker throws a NullPointerException.
        """
        if find_property(half.properties, b"PGROUP") != group.encode():
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != queue_offset:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")

    def _is_for_deleted_topic(self, half: WaitingMessage) -> bool:
        topic = (find_property(half.properties, b"REAL_TOPIC") or b"").decode("utf-8", "replace")
        return self._store.is_for_deleted_topic(topic, half.physical_offset, half.store_timestamp)

    def _record_ended(self, half: WaitingMessage) -> None:
        """Record that a half message is ended. A given-up one, which is in another topic, needs no op message.
        Source: EndTransactionProcessor.deletePrepareMessage, 5.4.0.
        """
        if half.topic == _HALF_TOPIC:
            self.op_messages.record_ended(half.queue_id, half.queue_offset)

    def _write_real_message(self, half: WaitingMessage, physical_offset: int) -> str:
        """Store the real message of a half message in its queue, and return its topic. Raises RequestError."""
        try:
            topic, queue_id, properties = parse_real_queue(half.properties)
        except MessageFormatError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, NO_HALF_REMARK) from error
        if topic_name_error(topic) is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, NO_HALF_REMARK)
        if self._topics.is_closed_to_producers(topic):
            raise closed_topic_refusal(topic)
        try:
            if b"DELAY" in properties or b"TIMER_" in properties:
                self._writer.write(_as_committed(half, topic, queue_id, properties, physical_offset))
            else:
                self._real_queues.append(
                    half,
                    topic,
                    queue_id,
                    properties,
                    sys_flag=with_transaction_type(half.sys_flag, TRANSACTION_COMMIT),
                    prepared_transaction_offset=physical_offset,
                )
        except (MessageIllegal, StoreFull) as error:
            raise self._store_refusal(error) from error
        return topic

    def _store_refusal(self, error: Exception) -> RequestError:
        """Return the refusal for an error of the store. Source: EndTransactionProcessor.sendFinalMessage, 5.4.0."""
        if isinstance(error, StoreFull):
            return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "Service not available now.")
        return RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            "The message is illegal, maybe msg body or properties length not matched. msg body length limit "
            f"{self._config.store.max_message_size_bytes}B, msg properties length limit 32KB.",
        )


def _as_committed(
    half: WaitingMessage, topic: str, queue_id: int, properties: bytes, physical_offset: int
) -> MessageDraft:
    """Return the real message of a half message that also requests a delay."""
    return NewMessage(
        topic,
        queue_id,
        half.body,
        decode_properties(properties),
        half.flag,
        with_transaction_type(half.sys_flag, TRANSACTION_COMMIT),
        half.born_timestamp,
        half.born_host,
        half.store_host,
        half.reconsume_times,
        prepared_transaction_offset=physical_offset,
    )
