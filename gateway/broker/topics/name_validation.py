"""Validation of topic and group names, with the refusal texts of the official server."""

from collections.abc import Container
from typing import Final

from codec.constants import ResponseCode
from codec.java_numbers import quoted
from codec.topics import (
    DLQ_PREFIX,
    MAX_GROUP_CHARS,
    MAX_TOPIC_CHARS,
    NAME_PATTERN,
    NAME_PATTERN_TEXT,
    RETRY_PREFIX,
    is_closed_to_producers,
    is_system_group,
)
from remoting.errors import RequestError

MAX_CLIENT_ID_CHARS: Final = 1024
_MAX_DERIVED_TOPIC_LENGTH: Final = 255


def topic_name_error(topic: str | None) -> str | None:
    """Return the reason why a topic name is refused, None for a valid one.

    Source: TopicValidator.validateTopic, 5.4.0.
    """
    if topic is None or not topic.strip():
        return "The specified topic is blank."
    if not NAME_PATTERN.fullmatch(topic):
        return f"The specified topic: {topic}, contains illegal characters, allowing only {NAME_PATTERN_TEXT}"
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        if len(topic) > _MAX_DERIVED_TOPIC_LENGTH:
            return (
                f"The specified topic is DLQ or Retry topic: {topic}, and it's longer than topic max length: "
                f"{_MAX_DERIVED_TOPIC_LENGTH}"
            )
    elif len(topic) > MAX_TOPIC_CHARS:
        return f"The specified topic: {topic}, is longer than topic max length: {MAX_TOPIC_CHARS}"
    return None


def group_name_error(group: str | None) -> str | None:
    """Return the reason why a group name is refused, None for a valid one.

    Source: TopicValidator.validateGroup, 5.4.0.
    """
    if group is None or not group.strip():
        return "The specified group is blank."
    if not NAME_PATTERN.fullmatch(group):
        return f"The specified group: {group}, contains illegal characters, allowing only {NAME_PATTERN_TEXT}"
    if len(group) > MAX_GROUP_CHARS:
        return f"The specified group: {group}, is longer than group max length: {MAX_GROUP_CHARS}"
    return None


def closed_topic_refusal(topic: str) -> RequestError:
    """Return the refusal of a message for a topic that producers may not write to.

    Source: AbstractSendMessageProcessor.msgCheck, 5.4.0.
    """
    return RequestError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")


def check_may_commit(group: str, topic: str) -> None:
    """Raise RequestError NO_PERMISSION for consumer offsets at which the broker itself goes on after a start.

    Deviation: the official broker takes them from anybody, so that half messages or outstanding pops are skipped.
    """
    if is_system_group(group) and is_closed_to_producers(topic):
        remark = f"the offsets of group[{group}] in topic[{topic}] are the broker's own"
        raise RequestError(ResponseCode.NO_PERMISSION, remark)


def check_topic_name(topic: str | None, existing: Container[str] = ()) -> None:
    """Raise RequestError INVALID_PARAMETER for an invalid topic name, unless an existing topic has it."""
    fault = None if topic in existing else topic_name_error(topic)
    if fault is not None:
        raise RequestError(ResponseCode.INVALID_PARAMETER, fault)


def check_group_name(group: str | None, existing: Container[str] = ()) -> None:
    """Raise RequestError INVALID_PARAMETER for an invalid group name, unless an existing group has it."""
    fault = None if group in existing else group_name_error(group)
    if fault is not None:
        raise RequestError(ResponseCode.INVALID_PARAMETER, fault)


def check_client_id(client_id: str) -> None:
    """Raise RequestError INVALID_PARAMETER for a client id that is longer than `MAX_CLIENT_ID_CHARS`."""
    if len(client_id) > MAX_CLIENT_ID_CHARS:
        remark = f"the client id {quoted(client_id)} is longer than {MAX_CLIENT_ID_CHARS}"
        raise RequestError(ResponseCode.INVALID_PARAMETER, remark)
