"""Receipt handles of popped messages, and the names of the topics and groups of pop consumption.

Source: KeyBuilder, PopAckConstants and ExtraInfoUtil, 5.4.0.
"""

from typing import Final, NamedTuple, Self

from codec.constants import ResponseCode
from codec.java_numbers import I32, parse_java_integer
from codec.topics import RETRY_PREFIX, SYSTEM_GROUP_PREFIX, SYSTEM_PREFIX
from gateway.broker.pop.checkpoint import MAX_NAME_CHARS
from remoting.errors import RequestError

ORDER_REVIVE_QUEUE: Final = 999
"""The revive queue in receipt handles of messages popped in order. No such queue exists."""
REVIVE_GROUP: Final = f"{SYSTEM_GROUP_PREFIX}REVIVE_GROUP"
SEEN_GROUP: Final = f"{SYSTEM_GROUP_PREFIX}REVIVE_SEEN"
"""Private to this broker: a group whose offset in a revive queue says up to which pop record the saved consumer offsets
of all groups are current.
"""
NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
_SEPARATORS: Final = {RETRY_V1: "_", RETRY_V2: "+"}


def revive_topic(cluster: str) -> str:
    """Return the topic for the checkpoints and acks of a cluster's brokers."""
    return f"{SYSTEM_PREFIX}REVIVE_LOG_{cluster}"


def pop_retry_topic(topic: str, group: str, *, v2: bool) -> str:
    """Return the topic for messages that a group popped and did not ack in time."""
    return f"{RETRY_PREFIX}{group}{_SEPARATORS[RETRY_V2 if v2 else RETRY_V1]}{topic}"


def is_shared_retry_topic(topic: str, group: str, retry_topic: str) -> bool:
    """Tell whether another group and topic may have the same retry topic: ``_`` separates names that may contain it.

    Group ``g`` with topic ``a_t`` and group ``g_a`` with topic ``t`` share ``%RETRY%g_a_t``. Each group has its own
    offset in it, and takes the messages that carry its own name (``ORIGIN_GROUP``) only. Source: KeyBuilder, 5.4.0, in
    which one group gets the other's messages unless ``enableRetryTopicV2`` is on.
    """
    return "_" in group + topic and retry_topic == pop_retry_topic(topic, group, v2=False)


def retry_kind(topic: str) -> str:
    """Return the topic's kind in receipt handles: 0 for a normal topic, 1 or 2 for retry topics of either naming."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def topic_of_kind(topic: str, group: str, kind: str) -> str:
    """Return the topic of a message whose receipt handle names `kind`. Raises RequestError for an unknown kind."""
    if kind == NORMAL:
        return topic
    if kind not in _SEPARATORS:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "getRetry fail, format is wrong")
    return pop_retry_topic(topic, group, v2=kind == RETRY_V2)


def original_topic(topic: str, group: str) -> str:
    """Return the topic from which messages of a pop retry topic came; other topics unchanged."""
    if not topic.startswith(RETRY_PREFIX):
        return topic
    return topic[len(RETRY_PREFIX) + len(group) + 1 :]


def _check_broker_name(name: str) -> str:
    """Return a broker name of a receipt handle, which is kept in a pop record. Raises ValueError for a long one."""
    if len(name) > MAX_NAME_CHARS:
        raise ValueError(f"a broker name of {len(name)} characters")
    return name


class ReceiptHandle(NamedTuple):
    """A client's reference to a message it popped (``extraInfo``). Times are in ms."""

    start_offset: int
    pop_time: int
    invisible_time: int
    revive_queue_id: int
    kind: str
    broker_name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``startOffset popTime invisibleTime reviveQueue kind broker …``. Raises RequestError."""
        parts = text.split(" ")
        try:
            return cls(
                parse_java_integer(parts[0]),
                parse_java_integer(parts[1]),
                parse_java_integer(parts[2]),
                parse_java_integer(parts[3], I32),
                parts[4],
                _check_broker_name(parts[5]),
            )
        except (ValueError, IndexError) as error:
            remark = f"the extra info cannot be read, its length is {len(parts)}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark) from error

    @property
    def is_ordered(self) -> bool:
        """True when the message was popped in order, so that it has no checkpoint."""
        return self.revive_queue_id == ORDER_REVIVE_QUEUE
