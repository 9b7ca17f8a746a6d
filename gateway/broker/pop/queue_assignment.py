"""Assigns a topic's queues to the members of a group, with the strategies that clients otherwise apply themselves.

Source: AllocateMessageQueueAveragely, AllocateMessageQueueAveragelyByCircle and QueryAssignmentProcessor, 5.4.0.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from remoting.bodies.queues import MessageQueue

ALL_QUEUES: Final = -1
Queues = Sequence[MessageQueue]
Strategy = Callable[[int, int, Queues], list[MessageQueue]]
"""Takes the place of a client among the members, in order of their ids, the number of members, and the queues."""


def assign_averagely(place: int, members: int, queues: Queues) -> list[MessageQueue]:
    """Return the client's run of neighbouring queues. If the division leaves a rest, the first members get one more."""
    share, more = divmod(len(queues), members)
    start = place * share + min(place, more)
    return list(queues[start : start + share + (place < more)])


def assign_by_circle(place: int, members: int, queues: Queues) -> list[MessageQueue]:
    """Return every n-th queue, n being the number of members."""
    return list(queues[place::members])


STRATEGIES: Final[dict[str, Strategy]] = {"AVG": assign_averagely, "AVG_BY_CIRCLE": assign_by_circle}


def assign_queues(
    strategy: Strategy, client: str, queues: Queues, clients: Sequence[str]
) -> list[MessageQueue]:
    """Return the queues that a client consumes alone; none for a client that is no member."""
    place = bisect_left(clients, client)
    if clients[place : place + 1] != [client]:
        return []
    return strategy(place, len(clients), queues)


def assign_for_pop(
    strategy: Strategy, client: str, queues: Queues, clients: Sequence[str], shared_by: int
) -> list[MessageQueue]:
    """Return the queues that a client pops: its own and those of the next ``shared_by`` members.

    When all members share all queues, return one entry per broker with queue id -1, which stands for all queues.
    """
    members = len(clients)
    if shared_by <= 0 or shared_by >= members - 1:
        brokers = dict.fromkeys((queue.topic, queue.broker_name) for queue in queues)
        return [
            MessageQueue(topic=topic, broker_name=broker, queue_id=ALL_QUEUES) for topic, broker in brokers
        ]
    place = bisect_left(clients, client)
    if clients[place : place + 1] != [client]:
        return []
    if members > len(queues):
        return [queues[place % len(queues)]]
    sharing = (strategy((place + number) % members, members, queues) for number in range(shared_by + 1))
    return list(dict.fromkeys(queue for share in sharing for queue in share))
