"""Sends and pulls: raw handlers, because they are the hot path. Not responsible for what they do: send and pull are."""

from gateway.broker.processors.broker import Broker
from remoting.connection import Handler
from remoting.handler_table import HandlerTable

routes: HandlerTable[Broker] = HandlerTable()

SEND_MESSAGE, PULL_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE, LITE_PULL_MESSAGE = 10, 11, 310, 320, 361


@routes.register_raw(SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE)
def send(broker: Broker) -> Handler:
    """One message or one batch."""
    return broker.send_handler.send


@routes.register_raw(PULL_MESSAGE, LITE_PULL_MESSAGE)
def pull(broker: Broker) -> Handler:
    """Messages of one queue from an offset on."""
    return broker.pull_handler.pull
