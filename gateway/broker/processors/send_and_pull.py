"""Raw handlers of sends and pulls: no typed header is built, because they are the hot path."""

from gateway.broker.broker import Broker
from remoting.connection import Handler
from remoting.handler_table import HandlerTable

handlers: HandlerTable[Broker] = HandlerTable()

SEND_MESSAGE, PULL_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE, LITE_PULL_MESSAGE = 10, 11, 310, 320, 361


@handlers.register_raw(SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE)
def send(broker: Broker) -> Handler:
    """Handle one message or one batch."""
    return broker.send_handler.send


@handlers.register_raw(PULL_MESSAGE, LITE_PULL_MESSAGE)
def pull(broker: Broker) -> Handler:
    """Handle a pull of messages of one queue."""
    return broker.pull_handler.pull
