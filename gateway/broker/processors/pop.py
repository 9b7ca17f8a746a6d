"""Requests of pop consumption. The work is done in `gateway/broker/pop/`."""

from gateway.broker.broker import Broker
from remoting.connection import Handler
from remoting.handler_table import AnswersLater, Call, HandlerTable
from remoting.requests.pop import (
    AckMessage,
    BatchAckMessage,
    ChangeMessageInvisibletime,
    ChangeMessageInvisibletimeReply,
    Notification,
    NotificationReply,
    PeekMessage,
    PeekMessageReply,
    PollingInfo,
    PollingInfoReply,
    PopMessage,
)

handlers: HandlerTable[Broker] = HandlerTable()


@handlers.register_raw(PopMessage.code)
def pop(broker: Broker) -> Handler:
    """Return the handler of POP_MESSAGE, which decodes its header fields itself."""
    return broker.pop.pop_handler.pop


@AckMessage.on(handlers)
def ack(broker: Broker, request: AckMessage, call: Call) -> None:
    """Record that one message is consumed."""
    broker.pop.ack_handler.ack_message(call.connection, request)


@BatchAckMessage.on(handlers)
def batch_ack(broker: Broker, request: BatchAckMessage, call: Call) -> None:
    """Record that several messages are consumed."""
    broker.pop.ack_handler.batch_ack(call.connection, request.data)


@ChangeMessageInvisibletime.on(handlers)
def change_invisible_time(
    broker: Broker, request: ChangeMessageInvisibletime, call: Call
) -> ChangeMessageInvisibletimeReply:
    """Start a new invisible time for a message."""
    return broker.pop.ack_handler.change_invisible_time(call.connection, request)


@Notification.on(handlers)
def notification(broker: Broker, request: Notification, call: Call) -> NotificationReply | AnswersLater:
    """Tell whether there is a message to pop, now or within the request's poll time."""
    return broker.pop.queries.handle_notification(request, call)


@PeekMessage.on(handlers)
def peek(broker: Broker, request: PeekMessage, call: Call) -> PeekMessageReply:
    """Return messages that could be popped."""
    return broker.pop.queries.handle_peek(request, call)


@PollingInfo.on(handlers)
def polling_info(broker: Broker, request: PollingInfo, call: Call) -> PollingInfoReply:
    """Return the number of waiting pops of a queue."""
    return broker.pop.queries.handle_polling_info(request, call)
