"""Requests to lock and unlock queues for orderly consumption."""

from gateway.broker.processors.broker import Broker
from remoting.bodies.locks import LockBatchResponseBody
from remoting.handler_table import HandlerTable
from remoting.requests.locks import LockBatchMq, LockBatchMqReply, UnlockBatchMq

routes: HandlerTable[Broker] = HandlerTable()


@LockBatchMq.on(routes)
def lock_batch(broker: Broker, request: LockBatchMq) -> LockBatchMqReply:
    """Lock queues for a client; return those that it now holds. Source: AdminBrokerProcessor.lockBatchMQ, 5.4.0."""
    wanted = request.data
    held = broker.queue_locks.lock(wanted.consumer_group, wanted.mq_set, wanted.client_id)
    return LockBatchMqReply(
        data=LockBatchResponseBody(lock_okmq_set=[queue for queue in wanted.mq_set if queue in held])
    )


@UnlockBatchMq.on(routes)
def unlock_batch(broker: Broker, request: UnlockBatchMq) -> None:
    """Unlock queues that a client holds. Source: AdminBrokerProcessor.unlockBatchMQ, 5.4.0."""
    given = request.data
    broker.queue_locks.unlock(given.consumer_group, given.mq_set, given.client_id)
