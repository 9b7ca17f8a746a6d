"""Bodies about topic routes and clusters."""

from remoting.fields import field, i32, i64
from remoting.json_body import JsonBody


class TopicQueueMappingInfo(JsonBody):
    """A static topic's logical queues as one broker hosts them."""

    topic: str | None = None
    scope: str = "__global__"
    total_queues: i32 = 0
    bname: str | None = None
    epoch: i64 = 0
    dirty: bool = False
    curr_id_map: dict[i32, i32] = field(factory=dict)


class LogicQueueMappingItem(JsonBody):
    """A range of a logical queue that lies in one physical queue: offsets are [start, end)."""

    gen: i32 = 0
    queue_id: i32 = 0
    bname: str | None = None
    logic_offset: i64 = 0
    start_offset: i64 = 0
    end_offset: i64 = -1
    time_of_start: i64 = -1
    time_of_end: i64 = -1


class TopicQueueMappingDetail(JsonBody):
    """TopicQueueMappingInfo with the history of every hosted logical queue."""

    topic: str | None = None
    scope: str = "__global__"
    total_queues: i32 = 0
    bname: str | None = None
    epoch: i64 = 0
    dirty: bool = False
    curr_id_map: dict[i32, i32] = field(factory=dict)
    hosted_queues: dict[i32, list[LogicQueueMappingItem]] = field(factory=dict)


class QueueData(JsonBody):
    """A topic's queues on one broker; ``perm`` is 4 read, 2 write, 1 inherit."""

    broker_name: str
    read_queue_nums: i32 = 0
    write_queue_nums: i32 = 0
    perm: i32 = 0
    topic_sys_flag: i32 = 0


class BrokerData(JsonBody):
    """A broker name with its addresses by broker id; 0 is the master."""

    cluster: str | None = None
    broker_name: str
    broker_addrs: dict[i64, str] = field(factory=dict)
    zone_name: str | None = None
    enable_acting_master: bool = False


class TopicRouteData(JsonBody):
    """The answer to GET_ROUTEINFO_BY_TOPIC."""

    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = field(factory=list)
    broker_datas: list[BrokerData] = field(factory=list)
    filter_server_table: dict[str, list[str]] = field(factory=dict)
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = None


class ClusterInfo(JsonBody):
    """The answer to GET_BROKER_CLUSTER_INFO: brokers by name, broker names by cluster."""

    broker_addr_table: dict[str, BrokerData] = field(factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(factory=dict)


class BrokerMemberGroup(JsonBody):
    """Every address registered under one broker name."""

    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[i64, str] = field(factory=dict)


class GetBrokerMemberGroupResponseBody(JsonBody):
    """The answer to GET_BROKER_MEMBER_GROUP."""

    broker_member_group: BrokerMemberGroup | None = None
