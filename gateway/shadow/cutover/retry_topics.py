"""Names of the topics that hold a group's failed messages: one per group, and two per group and topic for pop."""

from codec.topics import RETRY_PREFIX, retry_topic


def pop_retry_topics(group: str, topic: str) -> tuple[str, str]:
    """Return the two retry topics of popped messages; a broker uses either of them.

    Source: KeyBuilder.buildPopRetryTopicV1 and buildPopRetryTopicV2, 5.4.0.
    """
    return f"{RETRY_PREFIX}{group}_{topic}", f"{RETRY_PREFIX}{group}+{topic}"


def retry_topics(group: str, topic: str) -> tuple[str, ...]:
    """Return all retry topics of a group's messages of a topic."""
    return (retry_topic(group), *pop_retry_topics(group, topic))


def is_retry_topic_of(topic: str, group: str) -> bool:
    """Tell whether a topic is a retry topic of a group, of any of its topics."""
    return topic.startswith(retry_topic(group))


def original_topic(topic: str, group: str) -> str:
    """Return the topic that a popped message was sent to, given the topic it was popped from."""
    rest = topic.removeprefix(retry_topic(group))
    return rest[1:] if rest != topic and rest[:1] in ("_", "+") else topic
