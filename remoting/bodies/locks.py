"""Locks of queues for orderly consumption; who holds which is kept elsewhere."""

from remoting.bodies.queues import MessageQueue
from remoting.fields import field
from remoting.json_body import JsonBody


class LockBatchRequestBody(JsonBody):
    """Queues one client wants to hold alone."""

    consumer_group: str
    client_id: str
    only_this_broker: bool = False
    mq_set: list[MessageQueue] = field(factory=list)


class LockBatchResponseBody(JsonBody):
    """The queues that are now held."""

    lock_okmq_set: list[MessageQueue] = field(wire="lockOKMQSet", factory=list)


class UnlockBatchRequestBody(JsonBody):
    """Queues one client gives up."""

    consumer_group: str
    client_id: str
    only_this_broker: bool = False
    mq_set: list[MessageQueue] = field(factory=list)
