"""Requests of pop consumption."""

from remoting.bodies.pop import (
    BatchAckMessageRequestBody,
    MessageRequestModeSerializeWrapper,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from remoting.declare import Header, Request, TopicRequest, i32, i64


class PopMessageReply(Header):
    """The popped messages, in the body, with the fields of their receipt handles."""

    pop_time: i64
    invisible_time: i64
    revive_qid: i32
    rest_num: i64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class PopMessage(TopicRequest[PopMessageReply], code=200050, accept_codes=(209, 210)):
    """Pop messages, hiding them from others for ``invisible_time`` ms. Source: PopMessageProcessor."""

    consumer_group: str
    topic: str
    queue_id: i32 = 0
    max_msg_nums: i32 = 0
    invisible_time: i64 = 0
    poll_time: i64 = 0
    born_time: i64 = 0
    init_mode: i32 = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class AckMessage(TopicRequest[None], code=200051, null_texts={"consumerGroup": "", "extraInfo": ""}):
    """Acknowledge a popped message. Source: AckMessageProcessor."""

    consumer_group: str
    topic: str
    queue_id: i32
    extra_info: str
    offset: i64
    lite_topic: str | None = None


class BatchAckMessage(Request[None], code=200151):
    """Acknowledge several popped messages. Source: AckMessageProcessor."""

    data: BatchAckMessageRequestBody | None


class PeekMessageReply(Header):
    """The answer to PEEK_MESSAGE."""

    pop_time: i64
    invisible_time: i64
    revive_qid: i32
    rest_num: i64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class PeekMessage(TopicRequest[PeekMessageReply], code=200052, accept_codes=(19,)):
    """Return messages without popping them. Source: PeekMessageProcessor."""

    topic: str
    queue_id: i32 = 0
    max_msg_nums: i32 = 0
    consumer_group: str


class ChangeMessageInvisibletimeReply(Header):
    """The answer to CHANGE_MESSAGE_INVISIBLETIME."""

    pop_time: i64
    invisible_time: i64
    revive_qid: i32


class ChangeMessageInvisibletime(TopicRequest[ChangeMessageInvisibletimeReply], code=200053):
    """Change a popped message's invisible time. Source: ChangeInvisibleTimeProcessor."""

    consumer_group: str
    topic: str
    queue_id: i32
    extra_info: str
    offset: i64
    invisible_time: i64
    lite_topic: str | None = None
    suspend: bool = False


class NotificationReply(Header):
    """The answer to NOTIFICATION."""

    has_msg: bool
    polling_full: bool = False


class Notification(TopicRequest[NotificationReply], code=200054):
    """Wait until there are messages. Source: NotificationProcessor."""

    consumer_group: str
    topic: str
    queue_id: i32 = 0
    poll_time: i64 = 0
    born_time: i64 = 0
    order: bool = False
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class PollingInfoReply(Header):
    """The answer to POLLING_INFO."""

    polling_num: i32


class PollingInfo(TopicRequest[PollingInfoReply], code=200055):
    """Return the number of waiting pops. Source: PollingInfoProcessor."""

    consumer_group: str
    topic: str
    queue_id: i32 = 0


class PopRollback(Request[None], code=200056):
    """Move pop state from RocksDB back to files. Source: AdminBrokerProcessor.transferPopToFsStore."""


class QueryAssignmentReply(Header):
    """The answer to QUERY_ASSIGNMENT."""

    data: QueryAssignmentResponseBody


class QueryAssignment(Request[QueryAssignmentReply], code=400):
    """Return the queues assigned to a client. Source: QueryAssignmentProcessor.queryAssignment."""

    data: QueryAssignmentRequestBody


class SetMessageRequestMode(Request[None], code=401):
    """Make a group pull or pop a topic. Source: QueryAssignmentProcessor.setMessageRequestMode."""

    data: SetMessageRequestModeRequestBody


class GetAllMessageRequestModeReply(Header):
    """The answer to GET_ALL_MESSAGE_REQUEST_MODE."""

    data: MessageRequestModeSerializeWrapper


class GetAllMessageRequestMode(Request[GetAllMessageRequestModeReply], code=402):
    """Return the request mode of every group, for the slave. Source: AdminBrokerProcessor.getAllMessageRequestMode."""
