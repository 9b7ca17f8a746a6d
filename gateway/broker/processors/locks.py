"""Requests to lock and unlock queues for orderly consumption."""

from gateway.broker.broker import Broker
from gateway.broker.topics.name_validation import check_client_id, check_group_name
from remoting.bodies.locks import LockBatchResponseBody
from remoting.bodies.queues import MessageQueue
from remoting.handler_table import HandlerTable
from remoting.requests.locks import LockBatchMq, LockBatchMqReply, UnlockBatchMq

handlers: HandlerTable[Broker] = HandlerTable()


@LockBatchMq.on(handlers)
def lock_batch(broker: Broker, request: LockBatchMq) -> LockBatchMqReply:
    """Lock queues for a client; return those that it now holds.

    Source: AdminBrokerProcessor.lockBatchMQ, 5.4.0. Deviation: a queue that this broker does not have is not locked.
    """
    body = request.data
    check_group_name(body.consumer_group, broker.groups.table)
    check_client_id(body.client_id)
    # Each once, however often it is named: the official body is a set.
    queues = [queue for queue in dict.fromkeys(body.mq_set) if _exists(broker, queue)]
    held = broker.queue_locks.lock(body.consumer_group, queues, body.client_id)
    return LockBatchMqReply(
        data=LockBatchResponseBody(lock_okmq_set=[queue for queue in queues if queue in held])
    )


def _exists(broker: Broker, queue: MessageQueue) -> bool:
    topic = broker.topics.get(queue.topic)
    return topic is not None and 0 <= queue.queue_id < max(topic.read_queue_nums, topic.write_queue_nums)


@UnlockBatchMq.on(handlers)
def unlock_batch(broker: Broker, request: UnlockBatchMq) -> None:
    """Unlock queues that a client holds. Source: AdminBrokerProcessor.unlockBatchMQ, 5.4.0."""
    body = request.data
    broker.queue_locks.unlock(body.consumer_group, body.mq_set, body.client_id)
