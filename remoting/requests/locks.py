"""Requests about locks of queues; who holds which is not here."""

from remoting.bodies.locks import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from remoting.declare import Header, RpcRequest


class LockBatchMqReply(Header):
    """The answer to LOCK_BATCH_MQ."""

    data: LockBatchResponseBody


class LockBatchMq(RpcRequest[LockBatchMqReply], code=41):
    """Hold queues alone. Source: AdminBrokerProcessor.lockBatchMQ."""

    data: LockBatchRequestBody


class UnlockBatchMq(RpcRequest[None], code=42):
    """Give queues up. Source: AdminBrokerProcessor.unlockBatchMQ."""

    data: UnlockBatchRequestBody
