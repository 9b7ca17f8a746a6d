"""What two servers with a gateway between them hold of a topic, and whether it becomes the same.

Not responsible for starting anything, nor for who sends.
"""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from codec.message import Message
from compat_tests.clients.typed import all_of, connect
from compat_tests.server import eventually

ARRIVES_S = 120.0
QUEUES = 4
OF_THE_SERVER = {"CLUSTER", "MSG_REGION", "TRACE_ON", "TRANSACTION_CHECK_TIMES"}
"""Properties that servers add."""

Found = TypeVar("Found")
Held = list[list[dict[str, Any]]]
"""The messages of each queue."""


def both(
    look: Callable[[str], Found], primary: str, target: str, enough: Callable[[Found], bool]
) -> tuple[Found, Found]:
    """What `look` finds at both brokers ("host:port"), once it is the same and enough, or time is over."""
    seen: list[Found] = []

    def same() -> bool:
        seen[:] = [look(primary), look(target)]
        return seen[0] == seen[1] and enough(seen[0])

    with contextlib.suppress(AssertionError):  # what the caller says about it says more
        eventually(same, ARRIVES_S, every_s=0.5)
    return seen[0], seen[1]


def held_by_both(
    primary: str, target: str, topic: str, count: int, *, in_order: bool = True
) -> tuple[Held, Held]:
    """What both hold of a topic, queue by queue, once it is the same and the primary has `count` messages."""

    def look(where: str) -> Held:
        found = held(where, topic)
        return found if in_order else [sorted(queue, key=lambda message: message["body"]) for queue in found]

    return both(look, primary, target, lambda found: sum(map(len, found)) >= count)


def held(where: str, topic: str) -> Held:
    """Every message of every queue, as producers gave it and in the order of the offsets."""
    with connect(where) as broker:
        return [[shown(each) for each in all_of(broker, topic, queue)] for queue in range(QUEUES)]


def shown(message: Message) -> dict[str, Any]:
    """What is to be the same of a message wherever it is."""
    properties = {name: value for name, value in message.properties.items() if name not in OF_THE_SERVER}
    return {
        "body": message.body,
        "born": message.born_timestamp,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "properties": properties,
    }
