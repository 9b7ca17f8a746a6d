"""Bodies about queue locks for orderly consumption."""

from remoting.bodies.queues import MessageQueue
from remoting.fields import field
from remoting.json_body import JsonBody


class LockBatchRequestBody(JsonBody):
    """The queues that one client wants to lock."""

    consumer_group: str
    client_id: str
    only_this_broker: bool = False
    mq_set: list[MessageQueue] = field(factory=list)


class LockBatchResponseBody(JsonBody):
    """The queues that are now locked."""

    lock_okmq_set: list[MessageQueue] = field(wire="lockOKMQSet", factory=list)


class UnlockBatchRequestBody(JsonBody):
    """The queues that one client releases."""

    consumer_group: str
    client_id: str
    only_this_broker: bool = False
    mq_set: list[MessageQueue] = field(factory=list)
