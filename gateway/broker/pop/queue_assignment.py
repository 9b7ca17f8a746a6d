"""Assigns a topic's queues to the members of a group, with the strategies that clients otherwise apply themselves.

Source: AllocateMessageQueueAveragely, AllocateMessageQueueAveragelyByCircle and QueryAssignmentProcessor, 5.4.0.
"""

from collections.abc import Callable, Sequence
from typing import Final

from remoting.bodies.queues import MessageQueue

ALL_QUEUES: Final = -1
Queues = Sequence[MessageQueue]
Strategy = Callable[[str, Queues, Sequence[str]], list[MessageQueue]]


def assign_averagely(client: str, queues: Queues, clients: Sequence[str]) -> list[MessageQueue]:
    """Return the client's run of neighbouring queues. If the division leaves a rest, the first members get one more."""
    if client not in clients:
        return []
    index, (share, more) = clients.index(client), divmod(len(queues), len(clients))
    start = index * share + min(index, more)
    return list(queues[start : start + share + (index < more)])


def assign_by_circle(client: str, queues: Queues, clients: Sequence[str]) -> list[MessageQueue]:
    """Return every n-th queue, n being the number of members."""
    return list(queues[clients.index(client) :: len(clients)]) if client in clients else []


STRATEGIES: Final[dict[str, Strategy]] = {"AVG": assign_averagely, "AVG_BY_CIRCLE": assign_by_circle}


def assign_for_pop(
    strategy: Strategy, client: str, queues: Queues, clients: Sequence[str], shared_by: int
) -> list[MessageQueue]:
    """Return the queues that a client pops: its own and those of the next ``shared_by`` members.

    When all members share all queues, return one entry per broker with queue id -1, which stands for all queues.
    """
    if shared_by <= 0 or shared_by >= len(clients) - 1:
        brokers = dict.fromkeys((queue.topic, queue.broker_name) for queue in queues)
        return [
            MessageQueue(topic=topic, broker_name=broker, queue_id=ALL_QUEUES) for topic, broker in brokers
        ]
    if client not in clients:
        return []
    index = clients.index(client)
    if len(clients) > len(queues):
        return [queues[index % len(queues)]]
    sharing = [clients[(index + number) % len(clients)] for number in range(shared_by + 1)]
    return list(dict.fromkeys(queue for member in sharing for queue in strategy(member, queues, clients)))
