"""Requests that store messages."""

from remoting.declare import Header, RpcRequest, TopicRequest, field, i32, i64


class SendMessageReply(Header):
    """The queue and offset of the stored message. Codes 10 to 12: it was stored, but not as durably as requested."""

    msg_id: str
    queue_id: i32
    queue_offset: i64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


class SendFields(TopicRequest[SendMessageReply]):
    """The header fields of a send. Source: SendMessageRequestHeader, 5.4.0."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: i32
    queue_id: i32
    sys_flag: i32
    born_timestamp: i64
    flag: i32
    properties: str | None = None
    reconsume_times: i32 | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: i32 | None = None


class SendFieldsV2(TopicRequest[SendMessageReply]):
    """The header fields of a send under one-letter wire names. Source: SendMessageRequestHeaderV2, 5.4.0."""

    producer_group: str = field(wire="a")
    topic: str = field(wire="b")
    default_topic: str = field(wire="c")
    default_topic_queue_nums: i32 = field(wire="d")
    queue_id: i32 = field(wire="e")
    sys_flag: i32 = field(wire="f")
    born_timestamp: i64 = field(wire="g")
    flag: i32 = field(wire="h")
    properties: str | None = field(wire="i", default=None)
    reconsume_times: i32 | None = field(wire="j", default=None)
    unit_mode: bool | None = field(wire="k", default=None)
    max_reconsume_times: i32 | None = field(wire="l", default=None)
    batch: bool | None = field(wire="m", default=None)
    broker_name: str | None = field(wire="n", default=None)


class SendMessage(SendFields, code=10, accept_codes=(10, 11, 12)):
    """Store the body as one message. Source: SendMessageProcessor."""


class SendMessageV2(SendFieldsV2, code=310, accept_codes=(10, 11, 12)):
    """Store the body as one message; SEND_MESSAGE with one-letter wire names, as clients send it.

    Source: SendMessageProcessor.
    """


class SendBatchMessage(SendFieldsV2, code=320, accept_codes=(10, 11, 12)):
    """Store a batch of messages of one queue; ``msg_id`` of the reply lists their ids, separated by commas.

    Source: SendMessageProcessor.
    """


class ConsumerSendMsgBack(RpcRequest[None], code=36):
    """Have a message that a consumer failed to process delivered again later; ``offset`` is its physical offset.

    Source: SendMessageProcessor.
    """

    offset: i64
    group: str
    delay_level: i32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: i32 | None = None


class SendReplyMessage(SendFields, code=324, accept_codes=(10, 11, 12)):
    """Pass the body to the client that waits for a reply message. Source: ReplyMessageProcessor."""


class SendReplyMessageV2(SendFieldsV2, code=325, accept_codes=(10, 11, 12)):
    """Pass on a reply message; SEND_REPLY_MESSAGE with one-letter wire names. Source: ReplyMessageProcessor."""


class PushReplyMessageToClient(TopicRequest[None], code=326):
    """Deliver a reply message to the client that waits for it. Sent by the broker."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: i32
    queue_id: i32
    sys_flag: i32
    born_timestamp: i64
    flag: i32
    properties: str | None = None
    reconsume_times: i32 | None = None
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: i64 = 0


class RecallMessageReply(Header):
    """The answer to RECALL_MESSAGE. A client leaves a trace of its recall only if the region is in the answer."""

    msg_id: str
    msg_region: str | None = field(wire="MSG_REGION", default=None)


class RecallMessage(TopicRequest[RecallMessageReply], code=370, null_texts={"topic": "", "recallHandle": ""}):
    """Cancel a timer message that has not been delivered yet. Source: RecallMessageProcessor."""

    producer_group: str | None = None
    topic: str
    recall_handle: str
