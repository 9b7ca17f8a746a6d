from gateway.tests.broker_world import World
from remoting.bodies.locks import LockBatchRequestBody, UnlockBatchRequestBody
from remoting.bodies.queues import MessageQueue
from remoting.requests.locks import LockBatchMq, UnlockBatchMq

QUEUES = [MessageQueue(topic="t", broker_name="b1", queue_id=number) for number in (0, 1)]


def test_lock_and_unlock_over_the_wire():
    world = World()

    def lock(client_id):
        body = LockBatchRequestBody(consumer_group="g", client_id=client_id, mq_set=QUEUES)
        return world.ask(LockBatchMq(data=body)).data.lock_okmq_set

    assert lock("c1") == QUEUES
    assert lock("c2") == []
    body = UnlockBatchRequestBody(consumer_group="g", client_id="c1", mq_set=QUEUES[:1])
    world.ask(UnlockBatchMq(data=body))
    assert lock("c2") == QUEUES[:1]
