"""Names of topics and groups: reserved ones, retry and dead-letter names, permission bits, allowed characters.

Refusal texts for invalid names live in `gateway/broker/topics/name_validation.py`.
"""

import re
from typing import Final

NAME_PATTERN: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
"""Matches a whole name of a topic or group. Source: TopicValidator, 5.4.0."""
NAME_PATTERN_TEXT: Final = "^[%|a-zA-Z0-9_-]+$"
"""The pattern as refusals quote it."""
MAX_TOPIC_CHARS: Final = 127
MAX_GROUP_CHARS: Final = 120

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"

DEFAULT_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ROCKSDB_TRANS_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
ROCKSDB_TRANS_OP_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
SYSTEM_PREFIX: Final = "rmq_sys_"
CLOUD_TRACE_PREFIX: Final = "rmq_sys_TRACE_DATA_"
"""Precedes the region in the trace topic of clients with AccessChannel.CLOUD. Source: TraceConstants, 5.4.0."""

SYSTEM_TOPICS: Final = frozenset(
    {
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        TRANS_HALF_TOPIC,
        TRACE_TOPIC,
        TRANS_OP_TOPIC,
        TRANS_CHECK_MAX_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
        ROCKSDB_TRANS_HALF_TOPIC,
        ROCKSDB_TRANS_OP_TOPIC,
    }
)

CLOSED_TO_PRODUCERS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_TOPIC,
        TRANS_CHECK_MAX_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        ROCKSDB_TRANS_HALF_TOPIC,
        ROCKSDB_TRANS_OP_TOPIC,
    }
)
"""Source: TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET, 5.4.0."""

PERM_PRIORITY: Final = 8
PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1
READ_WRITE: Final = PERM_READ | PERM_WRITE

SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
TRANS_GROUP: Final = "CID_RMQ_SYS_TRANS"
PREDEFINED_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANS_GROUP,
)

TOOL_GROUPS: Final = frozenset(
    (*PREDEFINED_GROUPS, "DEFAULT_CONSUMER", "SCHEDULE_CONSUMER", "__MONITOR_CONSUMER")
)


def is_closed_to_producers(topic: str) -> bool:
    """Return True for topics whose messages only a broker may write, because it acts on them.

    Deviation: TopicValidator.isNotAllowedSendTopic, 5.4.0, only knows `CLOSED_TO_PRODUCERS`. A message that a producer
    writes to a topic with the system prefix counts as the broker's own there: as a pop checkpoint, or a timer message.
    """
    return topic in CLOSED_TO_PRODUCERS or (
        topic.startswith(SYSTEM_PREFIX) and not topic.startswith(CLOUD_TRACE_PREFIX)
    )


def retry_topic(group: str) -> str:
    """Return the topic in which messages that a group failed to consume wait for their next attempt."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the topic for messages that a group gave up on."""
    return DLQ_PREFIX + group


def group_of_retry_topic(topic: str) -> str:
    """Return the group of a ``%RETRY%`` topic.

    Source: KeyBuilder.parseGroup, 5.4.0 (pop retry topics append ``+topic`` to the group).
    """
    return topic.removeprefix(RETRY_PREFIX).split("+", 1)[0]


def is_system_topic(topic: str) -> bool:
    """Return True for the broker's own topics. Source: TopicValidator.isSystemTopic, 5.4.0."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def is_system_group(group: str) -> bool:
    """Return True for groups reserved for the broker. Source: MixAll.isSysConsumerGroup, 5.4.0."""
    return group.startswith(SYSTEM_GROUP_PREFIX)


def may_always_pull(group: str) -> bool:
    """Return True for groups of the broker and of official tools.

    Source: MixAll.isSysConsumerGroupPullMessage, 5.4.0.
    """
    return is_system_group(group) or group in TOOL_GROUPS


def permission_text(perm: int) -> str:
    """Return the ``RWX``-like text of permission bits. Source: PermName.perm2String, 5.4.0."""
    read = "R" if perm & PERM_READ else "-"
    write = "W" if perm & PERM_WRITE else "-"
    return read + write + ("X" if perm & PERM_INHERIT else "-")
