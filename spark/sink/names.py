"""What topic and group names a producer may use, in the words of the official client.

Not responsible for which topics there are. Source: Validators, TopicValidator, 5.4.0.
"""

import re
from typing import Final

_ALLOWED: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_ALLOWED_TEXT: Final = "^[%|a-zA-Z0-9_-]+$"
_TOPIC_LENGTH: Final = 127
_GROUP_LENGTH: Final = 120
_FORBIDDEN: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)


def topic_fault(topic: str | None) -> str | None:
    """Why nothing can be sent to a topic of this name; None when it can."""
    if topic is None or not topic.strip():
        return "The specified topic is blank"
    if len(topic) > _TOPIC_LENGTH:
        return f"The specified topic is longer than topic max length {_TOPIC_LENGTH}."
    if not _ALLOWED.fullmatch(topic):
        return f"The specified topic[{topic}] contains illegal characters, allowing only {_ALLOWED_TEXT}"
    if topic in _FORBIDDEN:
        return f"Sending message to topic[{topic}] is forbidden."
    return None


def group_fault(group: str) -> str | None:
    """Why this cannot be the name of a producer group; None when it can."""
    if not group.strip():
        return "the specified group is blank"
    if len(group) > _GROUP_LENGTH:
        return f"the specified group[{group}] is longer than group max length: {_GROUP_LENGTH}."
    if not _ALLOWED.fullmatch(group):
        return f"the specified group[{group}] contains illegal characters, allowing only {_ALLOWED_TEXT}"
    return None
