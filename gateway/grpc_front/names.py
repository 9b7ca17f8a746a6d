"""Checks names and values of requests, with the official codes and texts.

Source: GrpcValidator, DefaultTopicMessageTypeValidator, 5.4.0.
"""

import re
from typing import Final

from codec.topics import SYSTEM_PREFIX, SYSTEM_TOPICS, is_system_group
from gateway.broker.topics.name_validation import group_name_error, topic_name_error
from gateway.grpc_front import messages
from gateway.grpc_front.statuses import StatusError

MAX_INVISIBLE_MS: Final = 12 * 3600 * 1000
MIN_RECEIVE_INVISIBLE_MS: Final = 10_000
MAX_NAMESPACE_CHARS: Final = 255
"""Longest namespace of a topic: answers about routes repeat it for each queue."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_topic(resource: messages.Resource) -> str:
    """Return the name of a topic that clients may use. Raises StatusError."""
    name: str = resource.name
    fault = topic_name_error(name)
    if fault is not None:
        raise StatusError(messages.ILLEGAL_TOPIC, fault)
    if name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX):
        raise StatusError(messages.ILLEGAL_TOPIC, "cannot access system topic")
    if len(resource.resource_namespace) > MAX_NAMESPACE_CHARS:
        raise StatusError(messages.ILLEGAL_TOPIC, f"a namespace has at most {MAX_NAMESPACE_CHARS} characters")
    return name


def check_group(resource: messages.Resource) -> str:
    """Return the name of a consumer group that clients may use. Raises StatusError."""
    name: str = resource.name
    fault = group_name_error(name)
    if fault is not None:
        raise StatusError(messages.ILLEGAL_CONSUMER_GROUP, fault)
    if is_system_group(name):
        raise StatusError(messages.ILLEGAL_CONSUMER_GROUP, "cannot use system consumer group")
    return name


def has_control_character(text: str) -> bool:
    """Return True if a text has a control character of ISO 8859."""
    return _CONTROL.search(text) is not None


def check_text(text: str, what: str, code: messages.Code) -> None:
    """Refuse a tag, key or message group of whitespace, or with a control character."""
    if text and not text.strip():
        raise StatusError(code, f"{what} cannot be the char sequence of whitespace")
    if has_control_character(text):
        raise StatusError(code, f"{what} cannot contain control character")


def check_tag(tag: str) -> None:
    """Refuse a tag that brokers would read as several tags. Raises StatusError."""
    check_text(tag, "tag", messages.ILLEGAL_MESSAGE_TAG)
    if "|" in tag:
        raise StatusError(messages.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")


def check_invisible_time(invisible_ms: int, min_ms: int = 0) -> None:
    """Refuse an invisible time out of range. Raises StatusError."""
    if invisible_ms < min_ms:
        raise StatusError(messages.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {min_ms}")
    if invisible_ms > MAX_INVISIBLE_MS:
        raise StatusError(
            messages.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {MAX_INVISIBLE_MS}"
        )


def check_message_type(topic_type: str, message_type: str) -> None:
    """Refuse a message of another type than its topic has. Raises StatusError."""
    if message_type != topic_type and topic_type != "MIXED":
        raise StatusError(
            messages.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"TopicMessageType validate failed, the expected type is {topic_type}, "
            f"but actual type is {message_type}. The type of a topic is its attribute message.type",
        )
