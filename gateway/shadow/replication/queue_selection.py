"""Selects the queues to replicate, and the topics for which clients wait, by mirror rules and modes.

A queue is replicated completely or not at all, so only topics, groups and `sample_by = "queue"` of a rule count;
configurations with rules that select by client or code are refused (`gateway/shadow/config.py`).
"""

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Final

from codec.topics import DLQ_PREFIX, RETRY_PREFIX, group_of_retry_topic
from gateway.shadow.mirror.rules import MirrorRules
from gateway.shadow.mirror.settings import OFF, STRICT_DUAL, SYNC_BEST_EFFORT, TARGET_PRIMARY
from gateway.shadow.traffic.subject import Subject

SEND_MESSAGE: Final = 10


def find_queue_rule(rules: MirrorRules, topic: str) -> int | None:
    """Return the rule for a topic's queues: the first that names the topic.

    Retry and dead-letter topics belong to the first rule that names their consumer group.
    """
    derived = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    name = group_of_retry_topic(topic).removeprefix(DLQ_PREFIX) if derived else topic
    for index, rule in enumerate(rules.rules):
        if any(fnmatchcase(name, pattern) for pattern in (rule.groups if derived else rule.topics)):
            return index
    return None


def queue_selector(rules: MirrorRules) -> Callable[[str, str, int], bool]:
    """Return a function that tells whether a queue (broker, topic, queue id) is to be replicated at the moment."""

    def selects_queue(broker: str, topic: str, queue_id: int) -> bool:
        index = find_queue_rule(rules, topic)
        if index is None or rules.effective_mode(index, topic) in (OFF, TARGET_PRIMARY):
            return False
        return rules.is_sampled(index, SEND_MESSAGE, Subject(topic, queue_id=queue_id))

    return selects_queue


def answer_hold_predicate(rules: MirrorRules) -> Callable[[str], bool]:
    """Return a function that tells whether clients wait until the target has a topic's messages."""

    def holds_answers(topic: str) -> bool:
        index = find_queue_rule(rules, topic)
        return index is not None and rules.effective_mode(index, topic) in (SYNC_BEST_EFFORT, STRICT_DUAL)

    return holds_answers
