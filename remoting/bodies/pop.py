"""Bodies of pop consumption."""

from remoting.bodies.queues import MessageQueue
from remoting.fields import field, i32, i64
from remoting.json_body import JsonBody


class BatchAck(JsonBody):
    """Acknowledges messages of one pop: bit n is ``start_offset + n``; times in ms."""

    consumer_group: str | None = field(wire="c", default=None)
    topic: str | None = field(wire="t", default=None)
    retry: str | None = field(wire="r", default=None)
    start_offset: i64 = field(wire="so", default=0)
    queue_id: i32 = field(wire="q", default=0)
    revive_queue_id: i32 = field(wire="rq", default=0)
    pop_time: i64 = field(wire="pt", default=0)
    invisible_time: i64 = field(wire="it", default=0)
    bit_set: str | None = field(wire="b", default=None)


class BatchAckMessageRequestBody(JsonBody):
    """The body of BATCH_ACK_MESSAGE."""

    broker_name: str | None = None
    acks: list[BatchAck] = field(factory=list)


class QueryAssignmentRequestBody(JsonBody):
    """Names the client whose queue assignment is requested."""

    topic: str | None = None
    consumer_group: str | None = None
    client_id: str | None = None
    strategy_name: str | None = None
    message_model: str | None = None


class MessageQueueAssignment(JsonBody):
    """A queue assigned to a client; ``mode`` is PULL or POP."""

    message_queue: MessageQueue | None = None
    mode: str = "PULL"
    attachments: dict[str, str] | None = None


class QueryAssignmentResponseBody(JsonBody):
    """The queues a client gets; None tells it to keep those it has."""

    message_queue_assignments: list[MessageQueueAssignment] | None = None


class SetMessageRequestModeRequestBody(JsonBody):
    """Makes a group pull or pop a topic."""

    topic: str | None = None
    consumer_group: str | None = None
    mode: str = "PULL"
    pop_share_queue_num: i32 = 0


class MessageRequestModeSerializeWrapper(JsonBody):
    """Modes by topic and group."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = field(factory=dict)
