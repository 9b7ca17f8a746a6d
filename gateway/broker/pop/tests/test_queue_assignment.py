import pytest

from gateway.broker.pop.queue_assignment import (
    STRATEGIES,
    assign_averagely,
    assign_by_circle,
    assign_for_pop,
    assign_queues,
)
from remoting.bodies.queues import MessageQueue


def queues(count, broker="a"):
    return [MessageQueue(topic="t", broker_name=broker, queue_id=number) for number in range(count)]


def ids(share):
    return [queue.queue_id for queue in share]


@pytest.mark.parametrize(
    ("count", "members", "shares"),
    [
        (4, "abc", [[0, 1], [2], [3]]),
        (4, "ab", [[0, 1], [2, 3]]),
        (2, "abc", [[0], [1], []]),
        (8, "abc", [[0, 1, 2], [3, 4, 5], [6, 7]]),
    ],
)
def test_averagely(count, members, shares):
    clients = list(members)
    assert [ids(assign_queues(assign_averagely, each, queues(count), clients)) for each in clients] == shares


def test_by_circle():
    assert [ids(assign_by_circle(place, 2, queues(5))) for place in (0, 1)] == [[0, 2, 4], [1, 3]]
    for stranger in ("", "aa", "x"):
        assert assign_queues(assign_by_circle, stranger, queues(5), ["a", "b"]) == []


def test_names():
    assert {"AVG": assign_averagely, "AVG_BY_CIRCLE": assign_by_circle} == STRATEGIES


@pytest.mark.parametrize("shared_by", [-1, 0, 2, 9])
def test_all_queues_of_each_broker_as_one(shared_by):
    found = assign_for_pop(assign_averagely, "a", queues(2) + queues(2, "b"), ["a", "b", "c"], shared_by)
    assert [(queue.broker_name, queue.queue_id) for queue in found] == [("a", -1), ("b", -1)]


def test_queues_shared_with_the_next_members():
    members = list("abcd")
    assert [ids(assign_for_pop(assign_averagely, each, queues(4), members, 1)) for each in members] == [
        [0, 1], [1, 2], [2, 3], [3, 0],
    ]  # fmt: skip
    assert assign_for_pop(assign_averagely, "x", queues(4), members, 1) == []


def test_thousands_of_members_are_not_searched_for_each_of_them():
    class Counted(str):
        compared = 0

        def __lt__(self, other):
            Counted.compared += 1
            return str(self) < str(other)

    members = sorted(f"c{number}" for number in range(4000))
    shared = assign_for_pop(assign_averagely, Counted("c77"), queues(4000), [*map(Counted, members)], 3000)
    assert len(shared) == 3001
    assert Counted.compared < 100


def test_more_members_than_queues():
    members = list("abcde")
    assert [ids(assign_for_pop(assign_averagely, each, queues(2), members, 1)) for each in members] == [
        [0], [1], [0], [1], [0],
    ]  # fmt: skip
