"""What topic and group names may look like, which ones belong to the system, and permission bits.

Not responsible for which topics and groups exist (topics and groups are).
"""

from typing import Final

from codec import topics
from codec.constants import ResponseCode
from codec.topics import GROUP_LENGTH, NAME, NAME_TEXT, TOPIC_LENGTH
from remoting.errors import RequestError

RETRY_PREFIX: Final = topics.RETRY_PREFIX
DLQ_PREFIX: Final = topics.DLQ_PREFIX
DEFAULT_TOPIC: Final = topics.DEFAULT_TOPIC
SCHEDULE_TOPIC: Final = topics.SCHEDULE_TOPIC
BENCHMARK_TOPIC: Final = topics.BENCHMARK_TOPIC
SELF_TEST_TOPIC: Final = topics.SELF_TEST_TOPIC
OFFSET_MOVED_TOPIC: Final = topics.OFFSET_MOVED_TOPIC
TRACE_TOPIC: Final = topics.TRACE_TOPIC
TRANS_HALF_TOPIC: Final = topics.TRANS_HALF_TOPIC
TRANS_OP_TOPIC: Final = topics.TRANS_OP_TOPIC
ROCKSDB_TRANS_HALF_TOPIC: Final = topics.ROCKSDB_TRANS_HALF_TOPIC
ROCKSDB_TRANS_OP_TOPIC: Final = topics.ROCKSDB_TRANS_OP_TOPIC
TRANS_CHECK_MAX_TOPIC: Final = topics.TRANS_CHECK_MAX_TOPIC
CHECKPOINT_TOPIC: Final = topics.CHECKPOINT_TOPIC
TIMER_TOPIC: Final = topics.TIMER_TOPIC
SYSTEM_PREFIX: Final = topics.SYSTEM_PREFIX
SYSTEM_TOPICS: Final = topics.SYSTEM_TOPICS
CLOSED_TO_PRODUCERS: Final = topics.CLOSED_TO_PRODUCERS

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

FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

_DERIVED_TOPIC_LENGTH: Final = 255


def retry_topic(group: str) -> str:
    """Where messages a group failed to consume wait for their next attempt."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Where messages a group gave up on are kept."""
    return DLQ_PREFIX + group


def group_of_retry_topic(topic: str) -> str:
    """The group of a ``%RETRY%`` topic.

    Source: KeyBuilder.parseGroup, 5.4.0 (pop retry topics append ``+topic`` to the group).
    """
    return topic.removeprefix(RETRY_PREFIX).split("+", 1)[0]


def topic_fault(topic: str | None) -> str | None:
    """Why a topic name is not acceptable, None when it is. Source: TopicValidator.validateTopic, 5.4.0."""
    if topic is None or not topic.strip():
        return "The specified topic is blank."
    if not NAME.fullmatch(topic):
        return f"The specified topic: {topic}, contains illegal characters, allowing only {NAME_TEXT}"
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        if len(topic) > _DERIVED_TOPIC_LENGTH:
            return (
                f"The specified topic is DLQ or Retry topic: {topic}, and it's longer than topic max length: "
                f"{_DERIVED_TOPIC_LENGTH}"
            )
    elif len(topic) > TOPIC_LENGTH:
        return f"The specified topic: {topic}, is longer than topic max length: {TOPIC_LENGTH}"
    return None


def group_fault(group: str | None) -> str | None:
    """Why a group name is not acceptable, None when it is. Source: TopicValidator.validateGroup, 5.4.0."""
    if group is None or not group.strip():
        return "The specified group is blank."
    if not NAME.fullmatch(group):
        return f"The specified group: {group}, contains illegal characters, allowing only {NAME_TEXT}"
    if len(group) > GROUP_LENGTH:
        return f"The specified group: {group}, is longer than group max length: {GROUP_LENGTH}"
    return None


def check_topic(topic: str | None) -> None:
    """Raises RequestError INVALID_PARAMETER for a name that is not acceptable."""
    fault = topic_fault(topic)
    if fault is not None:
        raise RequestError(ResponseCode.INVALID_PARAMETER, fault)


def check_group(group: str | None) -> None:
    """Raises RequestError INVALID_PARAMETER for a name that is not acceptable."""
    fault = group_fault(group)
    if fault is not None:
        raise RequestError(ResponseCode.INVALID_PARAMETER, fault)


def is_system_group(group: str) -> bool:
    """Groups the broker keeps for itself. Source: MixAll.isSysConsumerGroup, 5.4.0."""
    return group.startswith(SYSTEM_GROUP_PREFIX)


def may_always_pull(group: str) -> bool:
    """Groups of the broker and of official tools. Source: MixAll.isSysConsumerGroupPullMessage, 5.4.0."""
    return is_system_group(group) or group in TOOL_GROUPS


def perm_text(perm: int) -> str:
    """``RWX``-like text of permission bits. Source: PermName.perm2String, 5.4.0."""
    read = "R" if perm & PERM_READ else "-"
    write = "W" if perm & PERM_WRITE else "-"
    return read + write + ("X" if perm & PERM_INHERIT else "-")
