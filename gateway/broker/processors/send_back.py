"""CONSUMER_SEND_MSG_BACK: a consumer returns a message that it failed to consume."""

from codec.constants import ResponseCode
from codec.topics import PERM_WRITE
from gateway.broker.broker import Broker
from gateway.broker.messages.stored_messages import find_message
from remoting.errors import RequestError
from remoting.handler_table import Call, HandlerTable
from remoting.requests.send import ConsumerSendMsgBack

handlers: HandlerTable[Broker] = HandlerTable()


@ConsumerSendMsgBack.on(handlers)
def send_back(broker: Broker, request: ConsumerSendMsgBack, call: Call) -> None:
    """Store the message again, in the retry topic or as a dead letter.

    Source: AbstractSendMessageProcessor.consumerSendMsgBack, 5.4.0. As there, the answer does not wait for the disk.
    """
    broker.retry_rules.require_group(request.group)
    if not broker.config.broker_permission & PERM_WRITE:
        host = broker.hosts.address_for(call.connection)[0]
        raise RequestError(ResponseCode.NO_PERMISSION, f"the broker[{host}] sending message is forbidden")
    broker.retry_rules.check_retry_topic(request)
    found = find_message(broker.store, request.offset)
    if found is None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {request.offset}")
    message = broker.retry_rules.make_retry_message(request, call.command.version, found)
    if message is not None:
        message.store_host = broker.hosts.view_of(call.connection).store_host
        broker.writer.write(message)
        broker.stats.sent_back[request.group, request.origin_topic or message.topic].count_messages(1, 0)
