"""Topic, group and queue that a request names, found through the declarations of requests.

`gateway.shadow.traffic.subject` finds more about fewer codes, such as the offset a send was stored at.
"""

from functools import lru_cache
from typing import NamedTuple

import remoting.requests  # noqa: F401 - declares them all
from codec.command import Command
from remoting.declare import REQUESTS

TOPIC_NAMES = ("topic", "origin_topic", "parent_topic")
GROUP_NAMES = ("consumer_group", "producer_group", "group", "group_name", "src_group")
QUEUE_NAMES = ("queue_id",)


class SubjectFields(NamedTuple):
    """Names of header fields on the wire; the first one that a request has counts."""

    topic: tuple[str, ...]
    group: tuple[str, ...]
    queue: tuple[str, ...]


# An undeclared request may still use the names that most requests use.
_USUAL_FIELDS = SubjectFields(("topic",), ("consumerGroup", "producerGroup", "group"), ("queueId",))


@lru_cache(maxsize=1024)
def subject_fields(code: int) -> SubjectFields:
    """Return the names of the fields in which requests of this code name their subject."""
    declared = REQUESTS.get(code)
    if declared is None:
        return _USUAL_FIELDS
    by_name = {item.name: item.wire for item in declared.WIRE_FIELDS}

    def present(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(by_name[name] for name in names if name in by_name)

    return SubjectFields(present(TOPIC_NAMES), present(GROUP_NAMES), present(QUEUE_NAMES))


def declared_topic(command: Command) -> str:
    """Return the topic a request names, "" for none."""
    return _first_field(command, subject_fields(command.code).topic)


def declared_group(command: Command) -> str:
    """Return the producer or consumer group a request names, "" for none."""
    return _first_field(command, subject_fields(command.code).group)


def declared_queue_id(command: Command) -> str:
    """Return the queue id a request names as text, "" for none."""
    return _first_field(command, subject_fields(command.code).queue)


def _first_field(command: Command, names: tuple[str, ...]) -> str:
    for name in names:
        value = command.ext.get(name)
        if value:
            return value
    return ""
