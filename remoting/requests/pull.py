"""Requests that pull messages of a queue, also without leaving a trace, as the official tools do."""

from typing import Final

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


TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""The group of the official tools: every broker has it and lets it read. Source: MixAll.TOOLS_CONSUMER_GROUP, 5.4.0."""
PULL_FLAG_SUSPEND: Final = 2
PULL_FLAG_SUBSCRIPTION: Final = 4
"""Flags of a pull: the broker may wait for a message; the request contains the filter. Source: PullSysFlag, 5.4.0."""


def read_only_pull(
    topic: str,
    queue_id: int,
    offset: int,
    count: int,
    *,
    wait_ms: int = 0,
    group: str = TOOLS_GROUP,
    subscription: str = "*",
    expression_type: str = "TAG",
    max_bytes: int | None = None,
) -> PullMessage:
    """Build a pull that commits nothing, contains its filter and waits at most ``wait_ms`` for a message.

    ``max_bytes`` bounds its answer where the broker's own bound is higher; a larger message is returned alone.
    """
    return PullMessage(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=PULL_FLAG_SUBSCRIPTION | (PULL_FLAG_SUSPEND if wait_ms else 0),
        suspend_timeout_millis=wait_ms,
        subscription=subscription,
        expression_type=expression_type,
        max_msg_bytes=max_bytes,
    )
