"""Pulls of messages. The work is done in `gateway/broker/requests/pull_handler.py`."""

from gateway.broker.broker import Broker
from remoting.connection import Handler
from remoting.handler_table import HandlerTable
from remoting.requests.pull import LitePullMessage, PullMessage

handlers: HandlerTable[Broker] = HandlerTable()


@handlers.register_raw(PullMessage.code, LitePullMessage.code)
def pull(broker: Broker) -> Handler:
    """Return the handler of pulls, the hot path of consumers: it gets the raw command and reads its header itself."""
    return broker.pull_handler.pull
