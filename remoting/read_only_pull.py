"""Builds pulls that read a queue without leaving a trace, as the official tools do."""

from typing import Final

from remoting.requests.pull import PullMessage

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
