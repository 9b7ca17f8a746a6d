"""Requests that pull messages of a queue."""

from remoting.declare import Header, TopicRequest, i32, i64


class PullMessageReply(Header):
    """The next offset to pull; the body holds messages. Codes: 19 not found, 20 retry at once, 21 offset moved."""

    suggest_which_broker_id: i64
    next_begin_offset: i64
    min_offset: i64
    max_offset: i64
    offset_delta: i64 | None = None
    topic_sys_flag: i32 | None = None
    group_sys_flag: i32 | None = None
    forbidden_type: i32 | None = None


class PullFields(TopicRequest[PullMessageReply]):
    """The header fields of a pull. Source: PullMessageRequestHeader, 5.4.0."""

    consumer_group: str
    topic: str
    lite_topic: str | None = None
    queue_id: i32
    queue_offset: i64
    max_msg_nums: i32
    sys_flag: i32
    commit_offset: i64 = 0
    suspend_timeout_millis: i64 = 0
    subscription: str | None = None
    sub_version: i64 = 0
    expression_type: str | None = None
    max_msg_bytes: i32 | None = None
    request_source: i32 | None = None
    proxy_froward_client_id: str | None = None


class PullMessage(PullFields, code=11, accept_codes=(19, 20, 21)):
    """Return messages of a queue from ``queue_offset`` on. Source: PullMessageProcessor."""


class LitePullMessage(PullFields, code=361, accept_codes=(19, 20, 21)):
    """Pull for a consumer that assigns its queues itself; as PULL_MESSAGE. Source: PullMessageProcessor."""
