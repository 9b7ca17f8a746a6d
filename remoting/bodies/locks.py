"""Locks of queues for orderly consumption; who holds which is kept elsewhere."""

from remoting.bodies.queues import MessageQueue
from remoting.body import Body
from remoting.fields import field


class LockBatchRequestBody(Body):
    """Queues one client wants to hold alone."""

    consumer_group: str
    client_id: str
    only_this_broker: bool = False
    mq_set: list[MessageQueue] = field(factory=list)


class LockBatchResponseBody(Body):
    """The queues that are now held."""

    lock_okmq_set: list[MessageQueue] = field(wire="lockOKMQSet", factory=list)


class UnlockBatchRequestBody(Body):
    """Queues one client gives up."""

    consumer_group: str
    client_id: str
    only_this_broker: bool = False
    mq_set: list[MessageQueue] = field(factory=list)
