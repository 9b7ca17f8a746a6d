"""Requests to the namesrv; its tables are not here."""

from remoting.bodies.queues import DataVersion
from remoting.bodies.routes import ClusterInfo, GetBrokerMemberGroupResponseBody, TopicRouteData
from remoting.bodies.topics import KVTable, TopicList
from remoting.declare import Header, Request, TopicRequest, i32, i64


class PutKvConfig(Request[None], code=100):
    """Set a value. Source: DefaultRequestProcessor.putKVConfig."""

    namespace: str
    key: str
    value: str


class GetKvConfigReply(Header):
    """The answer to GET_KV_CONFIG."""

    value: str | None = None


class GetKvConfig(Request[GetKvConfigReply], code=101):
    """Read a value. Source: DefaultRequestProcessor.getKVConfig."""

    namespace: str
    key: str


class DeleteKvConfig(Request[None], code=102):
    """Delete a value. Source: DefaultRequestProcessor.deleteKVConfig."""

    namespace: str
    key: str


class GetKvListByNamespaceReply(Header):
    """The answer to GET_KVLIST_BY_NAMESPACE."""

    data: KVTable


class GetKvListByNamespace(Request[GetKvListByNamespaceReply], code=219, name="GET_KVLIST_BY_NAMESPACE"):
    """Every value of a namespace. Source: DefaultRequestProcessor.getKVListByNamespace."""

    namespace: str


class RegisterBrokerReply(Header):
    """The master of the name, and the order configuration of topics."""

    ha_server_addr: str | None = None
    master_addr: str | None = None
    data: KVTable | None = None


class RegisterBroker(Request[RegisterBrokerReply], code=103):
    """A broker and its topics; read the body with RegisterBrokerBody.decode.

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
    """A broker stops. Source: DefaultRequestProcessor.unregisterBroker."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: i64


class GetRouteInfoByTopicReply(Header):
    """The answer to GET_ROUTEINFO_BY_TOPIC."""

    data: TopicRouteData


class GetRouteInfoByTopic(TopicRequest[GetRouteInfoByTopicReply], code=105, name="GET_ROUTEINFO_BY_TOPIC"):
    """Where a topic is. Source: ClientRequestProcessor.getRouteInfoByTopic."""

    topic: str
    accept_standard_json_only: bool | None = None


class GetBrokerClusterInfoReply(Header):
    """The answer to GET_BROKER_CLUSTER_INFO."""

    data: ClusterInfo


class GetBrokerClusterInfo(Request[GetBrokerClusterInfoReply], code=106):
    """Every broker. Source: DefaultRequestProcessor.getBrokerClusterInfo."""


class WipeWritePermOfBrokerReply(Header):
    """The answer to WIPE_WRITE_PERM_OF_BROKER."""

    wipe_topic_count: i32


class WipeWritePermOfBroker(Request[WipeWritePermOfBrokerReply], code=205):
    """No more sends to a broker. Source: DefaultRequestProcessor.wipeWritePermOfBroker."""

    broker_name: str


class AddWritePermOfBrokerReply(Header):
    """The answer to ADD_WRITE_PERM_OF_BROKER."""

    add_topic_count: i32


class AddWritePermOfBroker(Request[AddWritePermOfBrokerReply], code=327):
    """Sends to a broker again. Source: DefaultRequestProcessor.addWritePermOfBroker."""

    broker_name: str


class GetAllTopicListFromNameserverReply(Header):
    """The answer to GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""

    data: TopicList


class GetAllTopicListFromNameserver(Request[GetAllTopicListFromNameserverReply], code=206):
    """Every topic. Source: DefaultRequestProcessor.getAllTopicListFromNameserver."""


class DeleteTopicInNamesrv(TopicRequest[None], code=216):
    """Forget a topic's route. Source: DefaultRequestProcessor.deleteTopicInNamesrv."""

    topic: str
    cluster_name: str | None = None


class RegisterTopicInNamesrv(TopicRequest[None], code=217):
    """Set a topic's queues by hand. Source: DefaultRequestProcessor.registerTopicToNamesrv."""

    topic: str
    data: TopicRouteData | None = None


class GetTopicsByClusterReply(Header):
    """The answer to GET_TOPICS_BY_CLUSTER."""

    data: TopicList


class GetTopicsByCluster(Request[GetTopicsByClusterReply], code=224):
    """The topics of a cluster. Source: DefaultRequestProcessor.getTopicsByCluster."""

    cluster: str


class GetSystemTopicListFromNsReply(Header):
    """The answer to GET_SYSTEM_TOPIC_LIST_FROM_NS."""

    data: TopicList


class GetSystemTopicListFromNs(Request[GetSystemTopicListFromNsReply], code=304):
    """Cluster and broker names, which are topics too.

    Source: DefaultRequestProcessor.getSystemTopicListFromNs.
    """


class GetUnitTopicListReply(Header):
    """The answer to GET_UNIT_TOPIC_LIST."""

    data: TopicList


class GetUnitTopicList(Request[GetUnitTopicListReply], code=311):
    """Topics flagged as unit. Source: DefaultRequestProcessor.getUnitTopicList."""


class GetHasUnitSubTopicListReply(Header):
    """The answer to GET_HAS_UNIT_SUB_TOPIC_LIST."""

    data: TopicList


class GetHasUnitSubTopicList(Request[GetHasUnitSubTopicListReply], code=312):
    """Topics with unit subscriptions. Source: DefaultRequestProcessor.getHasUnitSubTopicList."""


class GetHasUnitSubUnunitTopicListReply(Header):
    """The answer to GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST."""

    data: TopicList


class GetHasUnitSubUnunitTopicList(Request[GetHasUnitSubUnunitTopicListReply], code=313):
    """Topics with unit subscriptions that are not unit.

    Source: DefaultRequestProcessor.getHasUnitSubUnUnitTopicList.
    """


class UpdateNamesrvConfig(Request[None], code=318):
    """Change settings; the body is properties text. Source: DefaultRequestProcessor.updateConfig."""


class GetNamesrvConfig(Request[Header], code=319):
    """Settings; the body is properties text. Source: DefaultRequestProcessor.getConfig."""


class QueryDataVersionReply(Header):
    """The answer to QUERY_DATA_VERSION."""

    changed: bool
    data: DataVersion | None = None


class QueryDataVersion(Request[QueryDataVersionReply], code=322):
    """Does the namesrv know the broker's topics as of this version?

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


class GetBrokerMemberGroup(Request[GetBrokerMemberGroupReply], code=901):
    """Every address of a broker name. Source: DefaultRequestProcessor.getBrokerMemberGroup."""

    cluster_name: str
    broker_name: str


class BrokerHeartbeat(Request[None], code=904):
    """A broker is alive.

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
