"""Actions, and the resources that policies are about: ``Topic:orders``, ``Group:bill*``, ``Cluster:*``.

Source: Resource, ResourceType, ResourcePattern and Action, 5.4.0.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from codec.topics import DLQ_PREFIX, RETRY_PREFIX

ANYTHING = "*"

NamedEnum = TypeVar("NamedEnum", bound=Enum)


def find_named(kind: type[NamedEnum], name: str | None) -> NamedEnum | None:
    """Return the member whose value is this name, in any case; None for an unknown or missing name."""
    return next((member for member in kind if name and member.value.lower() == name.lower()), None)


class Action(Enum):
    """An action on a resource; ALL in a policy stands for each of them."""

    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class ResourceType(Enum):
    """A kind of resource; ANY in a policy covers all kinds."""

    ANY = "Any"
    CLUSTER = "Cluster"
    TOPIC = "Topic"
    GROUP = "Group"


class ResourcePattern(Enum):
    """The way in which a policy names resources."""

    ANY = "ANY"
    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"


@dataclass(frozen=True, slots=True)
class Resource:
    """The resources that a policy is about, or with the pattern LITERAL a single one.

    ``name`` is "" for the pattern ANY. As text (`str`) it is the key that the official tools show.
    """

    type: ResourceType
    name: str = ""
    pattern: ResourcePattern = ResourcePattern.LITERAL

    def __str__(self) -> str:
        if self.type is ResourceType.ANY:
            return ANYTHING
        star = "" if self.pattern is ResourcePattern.LITERAL else ANYTHING
        return f"{self.type.value}:{self.name}{star}"


def parse_resource(key: str | None) -> Resource | None:
    """Return the resource with this key, whose kind may be in any case; None for a text that is not a key."""
    if key is None or not key.strip():
        return None
    if key == ANYTHING:
        return Resource(ResourceType.ANY, "", ResourcePattern.ANY)
    kind, _, name = key.partition(":")
    resource_type = find_named(ResourceType, kind)
    if resource_type is None:
        return None
    if name == ANYTHING:
        return Resource(resource_type, "", ResourcePattern.ANY)
    if name.endswith(ANYTHING):
        return Resource(resource_type, name.partition(ANYTHING)[0], ResourcePattern.PREFIXED)
    return Resource(resource_type, name)


def topic_resource(topic: str) -> Resource:
    """Return the resource of a topic: a retry or dead-letter topic belongs to its group.

    Source: NamespaceUtil.isRetryTopic and Resource.ofGroup, 5.4.0. Deviation: in the official server, dead-letter
    topics and the retry topics of pops (``%RETRY%group+topic``) do not belong to their group.
    """
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if topic.startswith(prefix):
            return group_resource(topic[len(prefix) :].partition("+")[0])
    return Resource(ResourceType.TOPIC, topic)


def group_resource(group: str) -> Resource:
    """Return the resource of a consumer group."""
    return Resource(ResourceType.GROUP, group)
