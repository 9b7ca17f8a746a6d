"""Requests that lock queues to one client for orderly consumption."""

from remoting.bodies.locks import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from remoting.declare import Header, RpcRequest


class LockBatchMqReply(Header):
    """The answer to LOCK_BATCH_MQ."""

    data: LockBatchResponseBody


class LockBatchMq(RpcRequest[LockBatchMqReply], code=41):
    """Lock queues to one client. Source: AdminBrokerProcessor.lockBatchMQ."""

    data: LockBatchRequestBody


class UnlockBatchMq(RpcRequest[None], code=42):
    """Release queue locks. Source: AdminBrokerProcessor.unlockBatchMQ."""

    data: UnlockBatchRequestBody
