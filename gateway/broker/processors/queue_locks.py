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
    wanted = request.data
    check_group_name(wanted.consumer_group, broker.groups.table)
    check_client_id(wanted.client_id)
    queues = [queue for queue in wanted.mq_set if _exists(broker, queue)]
    held = broker.queue_locks.lock(wanted.consumer_group, queues, wanted.client_id)
    return LockBatchMqReply(
        data=LockBatchResponseBody(lock_okmq_set=[queue for queue in queues if queue in held])
    )


def _exists(broker: Broker, queue: MessageQueue) -> bool:
    topic = broker.topics.get(queue.topic)
    return topic is not None and 0 <= queue.queue_id < max(topic.read_queue_nums, topic.write_queue_nums)


@UnlockBatchMq.on(handlers)
def unlock_batch(broker: Broker, request: UnlockBatchMq) -> None:
    """Unlock queues that a client holds. Source: AdminBrokerProcessor.unlockBatchMQ, 5.4.0."""
    given = request.data
    broker.queue_locks.unlock(given.consumer_group, given.mq_set, given.client_id)
