"""Compares the messages that the primary and the target of a gateway hold, and waits until they are the same."""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from codec.message import Message
from compat_tests.clients.typed import connect, iter_queue
from compat_tests.server import eventually

ARRIVAL_TIMEOUT_S = 120.0
QUEUES = 4
SERVER_PROPERTIES = {"CLUSTER", "MSG_REGION", "TRACE_ON", "TRANSACTION_CHECK_TIMES"}
"""Properties that servers add themselves."""

Found = TypeVar("Found")
QueueContents = list[list[dict[str, Any]]]
"""The messages of each queue."""


def wait_until_same(
    look: Callable[[str], Found], primary: str, target: str, enough: Callable[[Found], bool]
) -> tuple[Found, Found]:
    """Call `look` for both brokers ("host:port") until the results are equal and `enough`, and return the last ones.

    Also returns when the time is up, so that the caller's assertion shows the difference.
    """
    seen: list[Found] = []

    def same() -> bool:
        seen[:] = [look(primary), look(target)]
        return seen[0] == seen[1] and enough(seen[0])

    with contextlib.suppress(AssertionError):  # the caller's assertion says more
        eventually(same, ARRIVAL_TIMEOUT_S, every_s=0.5)
    return seen[0], seen[1]


def wait_for_same_messages(
    primary: str, target: str, topic: str, count: int, *, in_order: bool = True
) -> tuple[QueueContents, QueueContents]:
    """Wait until both brokers hold the same `count` messages of a topic, and return the contents of their queues.

    `in_order=False` ignores the order within a queue.
    """

    def look(where: str) -> QueueContents:
        found = read_all_queues(where, topic)
        return found if in_order else [sorted(queue, key=lambda message: message["body"]) for queue in found]

    return wait_until_same(look, primary, target, lambda found: sum(map(len, found)) >= count)


def read_all_queues(where: str, topic: str) -> QueueContents:
    """Return the messages of every queue in offset order, reduced to what their producers set."""
    with connect(where) as broker:
        return [
            [comparable_fields(each) for each in iter_queue(broker, topic, queue)] for queue in range(QUEUES)
        ]


def comparable_fields(message: Message) -> dict[str, Any]:
    """Return the parts of a message that must be the same on both brokers."""
    properties = {name: value for name, value in message.properties.items() if name not in SERVER_PROPERTIES}
    return {
        "body": message.body,
        "born": message.born_timestamp,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "properties": properties,
    }
