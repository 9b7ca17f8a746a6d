"""The topics in which a group's failed messages wait: one of the group, and two of group and topic for those popped.

Not responsible for what is done with them.
"""

from codec.topics import RETRY_PREFIX, retry_topic


def pop_retry_topics(group: str, topic: str) -> tuple[str, str]:
    """Where popped messages of a topic come again; a broker uses the one or the other.

    Source: KeyBuilder.buildPopRetryTopicV1 and buildPopRetryTopicV2, 5.4.0.
    """
    return f"{RETRY_PREFIX}{group}_{topic}", f"{RETRY_PREFIX}{group}+{topic}"


def retry_topics(group: str, topic: str) -> tuple[str, ...]:
    """All topics of retries of what a group consumes of a topic."""
    return (retry_topic(group), *pop_retry_topics(group, topic))


def is_retry_topic_of(topic: str, group: str) -> bool:
    """Whether a topic that a group consumes holds its retries, of whatever topic."""
    return topic.startswith(retry_topic(group))


def original_topic(topic: str, group: str) -> str:
    """The topic that a message was in at first, by the name of the one it was popped from."""
    rest = topic.removeprefix(retry_topic(group))
    return rest[1:] if rest != topic and rest[:1] in ("_", "+") else topic
