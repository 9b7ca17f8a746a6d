"""END_TRANSACTION, a raw handler for speed, and the request that makes a given-up half message wait again."""

from codec import properties as keys
from codec.constants import ResponseCode
from codec.errors import MessageFormatError
from codec.ids import decode_message_id
from codec.message import Message
from codec.topics import TRANS_CHECK_MAX_TOPIC, TRANS_HALF_TOPIC
from gateway.broker.broker import Broker
from gateway.broker.messages.answer_gate import without_status
from gateway.broker.messages.stored_messages import find_in_queue, find_message
from remoting.connection import Handler
from remoting.errors import RequestError
from remoting.handler_table import AnswersLater, Call, HandlerTable
from remoting.requests.transaction import ResumeCheckHalfMessage
from storage.append import NewMessage

handlers: HandlerTable[Broker] = HandlerTable()

END_TRANSACTION = 37


@handlers.register_raw(END_TRANSACTION)
def end_transaction(broker: Broker) -> Handler:
    """Handle a producer's decision about its half message."""
    return broker.transactions.end_transaction


@ResumeCheckHalfMessage.on(handlers)
def resume_check(broker: Broker, request: ResumeCheckHalfMessage, call: Call) -> AnswersLater | None:
    """Write a given-up message to the half messages again, as if it had never been checked.

    Source: AdminBrokerProcessor.resumeCheckHalfMessage, 5.4.0. Deviation: only a message that the broker gave up asking
    about is found; the official broker makes a half message of any, and another of a half message that still waits.
    """
    message = _find_given_up(broker, request.msg_id)
    if message is None:
        remark = f"Exception was thrown when putting message back to {TRANS_HALF_TOPIC}."
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
    message.properties[keys.TRANSACTION_CHECK_TIMES] = "0"
    try:
        broker.writer.append(NewMessage.from_stored(message, TRANS_HALF_TOPIC, 0))
    except RequestError as error:
        remark = f"Put message back to {TRANS_HALF_TOPIC} failed."
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark) from error
    if not broker.answer_gate.must_wait:
        return None
    return broker.answer_gate.hold_reply(call, None, broker.store.max_physical_offset, without_status)


def _find_given_up(broker: Broker, message_id: str | None) -> Message | None:
    try:
        _, _, physical_offset = decode_message_id(message_id or "")
    except MessageFormatError:
        return None
    queued = find_in_queue(broker.store, physical_offset)
    if queued is None or queued.topic != TRANS_CHECK_MAX_TOPIC.encode():
        return None
    return find_message(broker.store, physical_offset)
