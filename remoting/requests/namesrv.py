"""Requests to the namesrv."""

from typing import Final

from remoting.bodies.queues import DataVersion
from remoting.bodies.routes import ClusterInfo, GetBrokerMemberGroupResponseBody, TopicRouteData
from remoting.bodies.topics import KVTable, TopicList
from remoting.declare import Header, Request, TopicRequest, i32, i64

MASTER_LEASE_SHARE: Final = 0.7
"""Part of the time-out of a heartbeat for which a master of this project accepts messages after the leading controller
answered it. So long after it began to lead, a controller of this project leaves a master alone that it does not hear:
the former leader may have answered it until then."""


class PutKvConfig(Request[None], code=100):
    """Set a value of the KV configuration. Source: DefaultRequestProcessor.putKVConfig."""

    namespace: str
    key: str
    value: str


class GetKvConfigReply(Header):
    """The answer to GET_KV_CONFIG."""

    value: str | None = None


class GetKvConfig(Request[GetKvConfigReply], code=101, null_texts={"namespace": "null", "key": "null"}):
    """Return a value of the KV configuration. Source: DefaultRequestProcessor.getKVConfig."""

    namespace: str
    key: str


class DeleteKvConfig(Request[None], code=102):
    """Delete a value of the KV configuration. Source: DefaultRequestProcessor.deleteKVConfig."""

    namespace: str
    key: str


class GetKvListByNamespaceReply(Header):
    """The answer to GET_KVLIST_BY_NAMESPACE."""

    data: KVTable


class GetKvListByNamespace(
    Request[GetKvListByNamespaceReply],
    code=219,
    name="GET_KVLIST_BY_NAMESPACE",
    null_texts={"namespace": "null"},
):
    """Return every value of a namespace. Source: DefaultRequestProcessor.getKVListByNamespace."""

    namespace: str


class RegisterBrokerReply(Header):
    """The master of the name, and the order configuration of topics."""

    ha_server_addr: str | None = None
    master_addr: str | None = None
    data: KVTable | None = None


class RegisterBroker(Request[RegisterBrokerReply], code=103):
    """Register a broker with its topics. Decode the body with RegisterBrokerBody.decode.

    Source: DefaultRequestProcessor.registerBroker.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: i64
    heartbeat_timeout_millis: i64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: i32 = 0


class UnregisterBroker(Request[None], code=104):
    """Remove a broker that is stopping. Source: DefaultRequestProcessor.unregisterBroker."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: i64


class GetRouteInfoByTopicReply(Header):
    """The answer to GET_ROUTEINFO_BY_TOPIC."""

    data: TopicRouteData


class GetRouteInfoByTopic(
    TopicRequest[GetRouteInfoByTopicReply],
    code=105,
    name="GET_ROUTEINFO_BY_TOPIC",
    null_texts={"topic": "null"},
):
    """Return the route of a topic: its brokers and queues. Source: ClientRequestProcessor.getRouteInfoByTopic."""

    topic: str
    accept_standard_json_only: bool | None = None


class GetBrokerClusterInfoReply(Header):
    """The answer to GET_BROKER_CLUSTER_INFO."""

    data: ClusterInfo


class GetBrokerClusterInfo(Request[GetBrokerClusterInfoReply], code=106):
    """Return every broker and cluster. Source: DefaultRequestProcessor.getBrokerClusterInfo."""


class WipeWritePermOfBrokerReply(Header):
    """The answer to WIPE_WRITE_PERM_OF_BROKER."""

    wipe_topic_count: i32


class WipeWritePermOfBroker(Request[WipeWritePermOfBrokerReply], code=205, null_texts={"brokerName": ""}):
    """Remove the write permission from a broker's topics. Source: DefaultRequestProcessor.wipeWritePermOfBroker."""

    broker_name: str


class AddWritePermOfBrokerReply(Header):
    """The answer to ADD_WRITE_PERM_OF_BROKER."""

    add_topic_count: i32


class AddWritePermOfBroker(Request[AddWritePermOfBrokerReply], code=327, null_texts={"brokerName": ""}):
    """Restore the write permission of a broker's topics. Source: DefaultRequestProcessor.addWritePermOfBroker."""

    broker_name: str


class GetAllTopicListFromNameserverReply(Header):
    """The answer to GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""

    data: TopicList


class GetAllTopicListFromNameserver(Request[GetAllTopicListFromNameserverReply], code=206):
    """Return every topic. Source: DefaultRequestProcessor.getAllTopicListFromNameserver."""


class DeleteTopicInNamesrv(TopicRequest[None], code=216, null_texts={"topic": ""}):
    """Delete a topic's route. Source: DefaultRequestProcessor.deleteTopicInNamesrv."""

    topic: str
    cluster_name: str | None = None


class RegisterTopicInNamesrv(TopicRequest[None], code=217):
    """Add a topic's queues without a broker registration. Source: DefaultRequestProcessor.registerTopicToNamesrv."""

    topic: str
    data: TopicRouteData | None = None


class GetTopicsByClusterReply(Header):
    """The answer to GET_TOPICS_BY_CLUSTER."""

    data: TopicList


class GetTopicsByCluster(Request[GetTopicsByClusterReply], code=224, null_texts={"cluster": ""}):
    """Return the topics of a cluster. Source: DefaultRequestProcessor.getTopicsByCluster."""

    cluster: str


class GetSystemTopicListFromNsReply(Header):
    """The answer to GET_SYSTEM_TOPIC_LIST_FROM_NS."""

    data: TopicList


class GetSystemTopicListFromNs(Request[GetSystemTopicListFromNsReply], code=304):
    """Return cluster and broker names, which are topics too.

    Source: DefaultRequestProcessor.getSystemTopicListFromNs.
    """


class GetUnitTopicListReply(Header):
    """The answer to GET_UNIT_TOPIC_LIST."""

    data: TopicList


class GetUnitTopicList(Request[GetUnitTopicListReply], code=311):
    """Return topics flagged as unit. Source: DefaultRequestProcessor.getUnitTopicList."""


class GetHasUnitSubTopicListReply(Header):
    """The answer to GET_HAS_UNIT_SUB_TOPIC_LIST."""

    data: TopicList


class GetHasUnitSubTopicList(Request[GetHasUnitSubTopicListReply], code=312):
    """Return topics with unit subscriptions. Source: DefaultRequestProcessor.getHasUnitSubTopicList."""


class GetHasUnitSubUnunitTopicListReply(Header):
    """The answer to GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST."""

    data: TopicList


class GetHasUnitSubUnunitTopicList(Request[GetHasUnitSubUnunitTopicListReply], code=313):
    """Return topics with unit subscriptions that are not flagged as unit.

    Source: DefaultRequestProcessor.getHasUnitSubUnUnitTopicList.
    """


class UpdateNamesrvConfig(Request[None], code=318):
    """Change the namesrv's settings; the body is properties text. Source: DefaultRequestProcessor.updateConfig."""


class GetNamesrvConfig(Request[Header], code=319):
    """Return the namesrv's settings; the body is properties text. Source: DefaultRequestProcessor.getConfig."""


class QueryDataVersionReply(Header):
    """The answer to QUERY_DATA_VERSION."""

    changed: bool
    data: DataVersion | None = None


class QueryDataVersion(Request[QueryDataVersionReply], code=322):
    """Compare the version of the broker's topics with the one that the namesrv has.

    Source: DefaultRequestProcessor.queryBrokerTopicConfig.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: i64
    data: DataVersion


class GetBrokerMemberGroupReply(Header):
    """The answer to GET_BROKER_MEMBER_GROUP."""

    data: GetBrokerMemberGroupResponseBody


class GetBrokerMemberGroup(
    Request[GetBrokerMemberGroupReply], code=901, null_texts={"clusterName": "", "brokerName": ""}
):
    """Return every address of a broker name. Source: DefaultRequestProcessor.getBrokerMemberGroup."""

    cluster_name: str
    broker_name: str


class BrokerHeartbeat(Request[None], code=904):
    """Report a live broker.

    Source: DefaultRequestProcessor.brokerHeartbeat, ControllerRequestProcessor.handleBrokerHeartbeat.
    """

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: i64 | None = None
    epoch: i32 | None = None
    max_offset: i64 | None = None
    confirm_offset: i64 | None = None
    heartbeat_timeout_mills: i64 | None = None
    election_priority: i32 | None = None
