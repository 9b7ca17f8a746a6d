"""ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME.

Source: AckMessageProcessor, ChangeInvisibleTimeProcessor, 5.4.0. Deviation: an ack of a message that was already
revived is not written to the revive topic, because it would have no effect there; a batch that names more messages of
one pop than a pop can have is refused, as are more than MAX_BATCHES_PER_ACK batches.
"""

from typing import Final

from codec.bit_set import decode_bit_set
from codec.constants import ResponseCode
from gateway.broker.consumers.broker_tables import BrokerTables
from gateway.broker.messages.message_services import MessageServices
from gateway.broker.pop.checkpoint import MAX_POP_MESSAGES, AckRecord, PopCheckpoint, PopKey
from gateway.broker.pop.ordered_pops import NOT_POPPED
from gateway.broker.pop.receipts import ORDER_REVIVE_QUEUE, ReceiptHandle, original_topic, topic_of_kind
from gateway.broker.pop.state import PopState
from remoting.bodies.pop import BatchAck, BatchAckMessageRequestBody
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.requests.pop import AckMessage, ChangeMessageInvisibletime, ChangeMessageInvisibletimeReply

MAX_BATCHES_PER_ACK: Final = 1_024
"""Pops that one BATCH_ACK_MESSAGE may name. Each can take a record in the revive topic, about 50 µs."""


class AckHandler:
    """Ends or prolongs the time for which a consumer holds popped messages."""

    def __init__(self, tables: BrokerTables, services: MessageServices, state: PopState) -> None:
        self._clock = services.store.clock
        self._store = services.store
        self._acked = services.stats.acked
        self._offsets = tables.offsets
        self._reviver = state.reviver
        self._ordered_pops = state.ordered_pops
        self._waiting_pops = state.waiting_pops
        self._pop_offsets = state.pop_offsets
        self._checks = state.checks

    # -- acks -----------------------------------------------------------------------------------------------

    def ack_message(self, connection: Connection, request: AckMessage) -> None:
        """Record that one message is consumed. Raises RequestError."""
        topic, queue_id, offset = request.topic, request.queue_id, request.offset
        low, high = self._checks.check_popped(connection, topic, queue_id)
        if not low <= offset <= high:
            remark = f"offset is illegal, key:{topic}@{queue_id}, commit:{offset}, store:{low}~{high}"
            raise RequestError(ResponseCode.NO_MESSAGE, remark)
        receipt = ReceiptHandle.parse(request.extra_info)
        group = request.consumer_group
        self._checks.check_group_name(group)
        self._acked.count_messages(1, 0)
        if receipt.is_ordered:
            self._ack_ordered(connection, topic, group, queue_id, offset, receipt.pop_time)
            return
        key = _pop_key(topic, group, queue_id, receipt)
        self._reviver.record_acks(receipt.revive_queue_id, AckRecord(key, [offset]), receipt.invisible_time)

    def batch_ack(self, connection: Connection, body: BatchAckMessageRequestBody | None) -> None:
        """Record that several messages are consumed. Raises RequestError, for instance when none is named."""
        if body is None or not body.acks:
            raise RequestError(ResponseCode.NO_MESSAGE, None)
        if len(body.acks) > MAX_BATCHES_PER_ACK:
            remark = f"{len(body.acks)} pops in one request, at most {MAX_BATCHES_PER_ACK}: use several"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
        for batch in body.acks:
            self._ack_batch(connection, batch, body.broker_name or "")

    def _ack_batch(self, connection: Connection, batch: BatchAck, broker_name: str) -> None:
        group, queue_id = batch.consumer_group or "", batch.queue_id
        topic = topic_of_kind(batch.topic or "", group, batch.retry or "")
        if not self._checks.is_queue(topic, queue_id):
            return  # The official broker does not refuse it either.
        self._checks.check_group_name(group)
        low, high = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        named = (batch.start_offset + bit for bit in _set_bits(batch.bit_set))
        offsets = [offset for offset in named if low <= offset <= high]
        self._acked.count_messages(len(offsets), 0)
        if batch.revive_queue_id == ORDER_REVIVE_QUEUE:
            for offset in offsets:
                self._ack_ordered(connection, topic, group, queue_id, offset, batch.pop_time)
        elif offsets:
            key = PopKey(topic, group, queue_id, batch.start_offset, batch.pop_time, broker_name)
            self._reviver.record_acks(batch.revive_queue_id, AckRecord(key, offsets), batch.invisible_time)

    def _ack_ordered(
        self, connection: Connection, topic: str, group: str, queue_id: int, offset: int, pop_time: int
    ) -> None:
        """Record that a message popped in order is consumed. Source: AckMessageProcessor.ackOrderly, 5.4.0."""
        before = self._offsets.query_offset(group, topic, queue_id)
        if offset < before or self._is_of_deleted_topic(topic, pop_time):
            return
        after = self._ordered_pops.record_ack(topic, group, queue_id, offset, pop_time)
        if after == NOT_POPPED:
            host, port = connection.remote
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{topic}@{group}@{queue_id}, old:{before}, commit:{offset}, "
                f"next:{after}, /{host}:{port}",
            )
        if after >= 0:
            if not self._offsets.has_reset(group, topic, queue_id):
                self._offsets.commit_offset(group, topic, queue_id, after)
            self._wake_when_visible(topic, group, queue_id)

    def _is_of_deleted_topic(self, topic: str, pop_time: int) -> bool:
        """Tell whether a message was popped from a topic that was deleted since.

        A deletion in the future means that the clock was set back: then the times do not tell, and the ack counts.
        """
        deleted_ms = self._store.topic_deleted_ms(topic)
        return deleted_ms is not None and pop_time < deleted_ms <= self._clock.now_ms()

    def _wake_when_visible(self, topic: str, group: str, queue_id: int) -> None:
        """Answer waiting pops of a queue now, or when its unacked messages become visible again."""
        self._pop_offsets.wake_when_visible(topic, group, queue_id)
        if self._ordered_pops.blocked_until_ms(topic, group, queue_id) is None:
            self._waiting_pops.answer_waiting(original_topic(topic, group), group)

    # -- invisible times ------------------------------------------------------------------------------------

    def change_invisible_time(
        self, connection: Connection, request: ChangeMessageInvisibletime
    ) -> ChangeMessageInvisibletimeReply:
        """Start a new invisible time for a message. The reply has the fields of its next receipt handle.

        Raises RequestError.
        """
        topic, queue_id, offset = request.topic, request.queue_id, request.offset
        low, high = self._checks.check_popped(connection, topic, queue_id)
        if not low <= offset < high:
            raise RequestError(ResponseCode.NO_MESSAGE, None)
        receipt, group = ReceiptHandle.parse(request.extra_info), request.consumer_group
        self._checks.require_group(group)
        self._checks.check_invisible_time(request.invisible_time)
        if self._is_of_deleted_topic(topic, receipt.pop_time):
            raise RequestError(ResponseCode.NO_MESSAGE, None)
        if receipt.is_ordered:
            return self._change_ordered(request, receipt)
        if self._reviver.count_outstanding(topic, group, queue_id) > high - low:
            # More checkpoints than messages: a client prolongs one message over and over, with handles of former pops.
            raise RequestError(ResponseCode.SYSTEM_ERROR, "too many outstanding pops of the queue")
        key = PopKey(topic, group, queue_id, offset, self._clock.now_ms(), receipt.broker_name)
        key = self._reviver.unused_key(receipt.revive_queue_id, key)
        try:
            checkpoint = PopCheckpoint(key, request.invisible_time, [0])
            self._reviver.record_pop(receipt.revive_queue_id, checkpoint, is_repeated=True)
        except RequestError as refused:
            raise RequestError(ResponseCode.SYSTEM_ERROR, None) from refused
        before = _pop_key(topic, group, queue_id, receipt)
        self._reviver.record_acks(
            receipt.revive_queue_id, AckRecord(before, [offset]), receipt.invisible_time
        )
        return ChangeMessageInvisibletimeReply(
            pop_time=key.pop_time, invisible_time=request.invisible_time, revive_qid=receipt.revive_queue_id
        )

    def _change_ordered(
        self, request: ChangeMessageInvisibletime, receipt: ReceiptHandle
    ) -> ChangeMessageInvisibletimeReply:
        """Change the invisible time of a message popped in order.

        Source: ChangeInvisibleTimeProcessor.processChangeInvisibleTimeForOrder, 5.4.0.
        """
        topic, group, queue_id = request.topic, request.consumer_group, request.queue_id
        if request.offset < self._offsets.query_offset(group, topic, queue_id):
            return ChangeMessageInvisibletimeReply(pop_time=0, invisible_time=0, revive_qid=0)
        until_ms = self._clock.now_ms() + request.invisible_time
        self._ordered_pops.change_visible_time(
            topic, group, queue_id, request.offset, receipt.pop_time, until_ms
        )
        self._wake_when_visible(topic, group, queue_id)
        return ChangeMessageInvisibletimeReply(
            pop_time=receipt.pop_time,
            invisible_time=until_ms - receipt.pop_time,
            revive_qid=receipt.revive_queue_id,
        )


def _pop_key(topic: str, group: str, queue_id: int, receipt: ReceiptHandle) -> PopKey:
    """Return the key of the pop that a receipt handle names."""
    return PopKey(topic, group, queue_id, receipt.start_offset, receipt.pop_time, receipt.broker_name)


def _set_bits(text: str | None) -> list[int]:
    """Return the numbers of the messages that a batch names, at most those of one pop. Raises RequestError."""
    try:
        return decode_bit_set(text or "", MAX_POP_MESSAGES)
    except ValueError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the bit set cannot be read: {error}") from error
