import pytest

from gateway.tests.broker_world import World
from remoting.bodies.locks import LockBatchRequestBody, UnlockBatchRequestBody
from remoting.bodies.queues import MessageQueue
from remoting.errors import RequestError
from remoting.requests.locks import LockBatchMq, UnlockBatchMq

QUEUES = [MessageQueue(topic="t", broker_name="b1", queue_id=number) for number in (0, 1)]


def test_lock_and_unlock_over_the_wire():
    world = World()
    world.topic("t")

    def lock(client_id):
        body = LockBatchRequestBody(consumer_group="g", client_id=client_id, mq_set=QUEUES)
        return world.ask(LockBatchMq(data=body)).data.lock_okmq_set

    assert lock("c1") == QUEUES
    assert lock("c2") == []
    body = UnlockBatchRequestBody(consumer_group="g", client_id="c1", mq_set=QUEUES[:1])
    world.ask(UnlockBatchMq(data=body))
    assert lock("c2") == QUEUES[:1]


def test_only_queues_of_this_broker_are_locked_and_only_for_groups_that_can_exist():
    world = World()
    world.topic("t", 2)
    queues = [
        MessageQueue(topic=topic, broker_name="b1", queue_id=queue_id)
        for topic, queue_id in (("t", 0), ("t", 2), ("t", -1), ("none", 0), ("../../x", 0))
    ]
    body = LockBatchRequestBody(consumer_group="g", client_id="c1", mq_set=queues)
    assert world.ask(LockBatchMq(data=body)).data.lock_okmq_set == queues[:1]
    for group in ("../../x", "", "x" * 121):
        body = LockBatchRequestBody(consumer_group=group, client_id="c1", mq_set=queues)
        with pytest.raises(RequestError, match="The specified group"):
            world.ask(LockBatchMq(data=body))


def test_a_queue_named_twice_is_answered_once():
    world = World()
    world.topic("t", 1)
    named = MessageQueue(topic="t", broker_name="b1", queue_id=0)
    body = LockBatchRequestBody(consumer_group="g", client_id="c1", mq_set=[named, named])
    assert world.ask(LockBatchMq(data=body)).data.lock_okmq_set == [named]
