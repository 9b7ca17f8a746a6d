"""Requests that clients send about themselves, and requests that a broker sends to its clients."""

from remoting.bodies.groups import (
    ConsumerConnection,
    GetConsumerListByGroupResponseBody,
    ProducerConnection,
    ProducerTableInfo,
)
from remoting.bodies.heartbeat import CheckClientRequestBody, HeartbeatData
from remoting.bodies.progress import GetConsumerStatusBody, ResetOffsetBody
from remoting.bodies.running import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from remoting.declare import Header, Request, RpcRequest, TopicRequest, field, i32, i64


class HeartbeatReply(Header):
    """Says if the broker remembers subscriptions by their fingerprint, and if it needs them again."""

    is_support_heart_beat_v2: bool | None = field(wire="IS_SUPPORT_HEART_BEAT_V2", default=None)
    is_sub_change: bool | None = field(wire="IS_SUB_CHANGE", default=None)


class HeartBeat(RpcRequest[HeartbeatReply], code=34):
    """Report a live client with its groups and subscriptions. Source: ClientManageProcessor.heartBeat."""

    data: HeartbeatData


class UnregisterClient(RpcRequest[None], code=35):
    """Remove a client that is stopping. Source: ClientManageProcessor.unregisterClient."""

    client_id: str = field(wire="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroupReply(Header):
    """The answer to GET_CONSUMER_LIST_BY_GROUP."""

    data: GetConsumerListByGroupResponseBody


class GetConsumerListByGroup(RpcRequest[GetConsumerListByGroupReply], code=38):
    """Return the client ids of a group. Source: ConsumerManageProcessor.getConsumerListByGroup."""

    consumer_group: str


class CheckClientConfig(Request[None], code=46):
    """Check a subscription before a consumer starts. Source: ClientManageProcessor.checkClientConfig."""

    data: CheckClientRequestBody | None = None


class NotifyConsumerIdsChanged(RpcRequest[None], code=40):
    """Tell a client, oneway, that its group's members changed, so that it rebalances."""

    consumer_group: str


class ResetConsumerClientOffset(TopicRequest[None], code=220):
    """Tell a client to continue at the given offsets. Sent by the broker."""

    group: str
    topic: str
    queue_id: i32 = -1
    offset: i64 | None = None
    timestamp: i64 = 0
    is_force: bool = False
    data: ResetOffsetBody | None = None


class GetConsumerStatusFromClientReply(Header):
    """The answer to GET_CONSUMER_STATUS_FROM_CLIENT."""

    data: GetConsumerStatusBody


class GetConsumerStatusFromClient(TopicRequest[GetConsumerStatusFromClientReply], code=221):
    """Ask a client for its consumer offsets. Sent by the broker."""

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfoReply(Header):
    """The answer to GET_CONSUMER_RUNNING_INFO."""

    data: ConsumerRunningInfo


class GetConsumerRunningInfo(
    RpcRequest[GetConsumerRunningInfoReply], code=307, null_texts={"clientId": "null"}
):
    """Return the state of a running consumer, which the broker asks the client for.

    Source: AdminBrokerProcessor.getConsumerRunningInfo.
    """

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyReply(Header):
    """The answer to CONSUME_MESSAGE_DIRECTLY."""

    data: ConsumeMessageDirectlyResult


class ConsumeMessageDirectly(TopicRequest[ConsumeMessageDirectlyReply], code=309):
    """Have one client consume one message now: the broker passes the request on, with the stored message as body.

    Source: AdminBrokerProcessor.consumeMessageDirectly.
    """

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: i32 | None = None
    group_sys_flag: i32 | None = None


class GetConsumerConnectionListReply(Header):
    """The answer to GET_CONSUMER_CONNECTION_LIST."""

    data: ConsumerConnection


class GetConsumerConnectionList(RpcRequest[GetConsumerConnectionListReply], code=203):
    """Return the clients of a consumer group. Source: AdminBrokerProcessor.getConsumerConnectionList."""

    consumer_group: str


class GetProducerConnectionListReply(Header):
    """The answer to GET_PRODUCER_CONNECTION_LIST."""

    data: ProducerConnection


class GetProducerConnectionList(RpcRequest[GetProducerConnectionListReply], code=204):
    """Return the clients of a producer group. Source: AdminBrokerProcessor.getProducerConnectionList."""

    producer_group: str


class GetAllProducerInfoReply(Header):
    """The answer to GET_ALL_PRODUCER_INFO."""

    data: ProducerTableInfo


class GetAllProducerInfo(Request[GetAllProducerInfoReply], code=328):
    """Return every producer of a broker. Source: AdminBrokerProcessor.getAllProducerInfo."""
