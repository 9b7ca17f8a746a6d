"""Checks of topic and group names, with the official client's error texts.

Source: Validators, TopicValidator, 5.4.0.
"""

from codec.topics import (
    CLOSED_TO_PRODUCERS,
    MAX_GROUP_CHARS,
    MAX_TOPIC_CHARS,
    NAME_PATTERN,
    NAME_PATTERN_TEXT,
)


def topic_name_error(topic: str | None) -> str | None:
    """Return why no message can be sent to a topic of this name, or None if it can."""
    if topic is None or not topic.strip():
        return "The specified topic is blank"
    if len(topic) > MAX_TOPIC_CHARS:
        return f"The specified topic is longer than topic max length {MAX_TOPIC_CHARS}."
    if not NAME_PATTERN.fullmatch(topic):
        return f"The specified topic[{topic}] contains illegal characters, allowing only {NAME_PATTERN_TEXT}"
    if topic in CLOSED_TO_PRODUCERS:
        return f"Sending message to topic[{topic}] is forbidden."
    return None


def group_name_error(group: str) -> str | None:
    """Return why this is not a valid producer group, or None if it is."""
    if not group.strip():
        return "the specified group is blank"
    if len(group) > MAX_GROUP_CHARS:
        return f"the specified group[{group}] is longer than group max length: {MAX_GROUP_CHARS}."
    if not NAME_PATTERN.fullmatch(group):
        return f"the specified group[{group}] contains illegal characters, allowing only {NAME_PATTERN_TEXT}"
    return None
