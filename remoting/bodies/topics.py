"""Bodies about topic settings, and the topic tables that brokers exchange."""

from remoting.bodies.queues import DataVersion, MessageQueue
from remoting.bodies.routes import TopicQueueMappingDetail, TopicQueueMappingInfo
from remoting.fields import field, i32, i64
from remoting.json_body import JsonBody


class TopicConfig(JsonBody):
    """A topic on one broker."""

    topic_name: str
    read_queue_nums: i32 = 16
    write_queue_nums: i32 = 16
    perm: i32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: i32 = 0
    order: bool = False
    attributes: dict[str, str] = field(factory=dict)


class TopicConfigSerializeWrapper(JsonBody):
    """A broker's topics; also the content of topics.json."""

    topic_config_table: dict[str, TopicConfig] = field(factory=dict)
    data_version: DataVersion = field(factory=DataVersion)


class TopicConfigAndMappingSerializeWrapper(TopicConfigSerializeWrapper):
    """A broker's topics with its static topics: the answer to GET_ALL_TOPIC_CONFIG."""

    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] = field(factory=dict)
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] = field(factory=dict)
    mapping_data_version: DataVersion = field(factory=DataVersion)


class TopicConfigAndQueueMapping(TopicConfig):
    """A topic with its static queues."""

    mapping_detail: TopicQueueMappingDetail | None = None


class TopicQueueMappingSerializeWrapper(JsonBody):
    """A broker's static topics."""

    topic_queue_mapping_info_map: dict[str, TopicQueueMappingDetail] = field(factory=dict)
    data_version: DataVersion = field(factory=DataVersion)


class CreateTopicListRequestBody(JsonBody):
    """The topics to create with UPDATE_AND_CREATE_TOPIC_LIST."""

    topic_config_list: list[TopicConfig] = field(factory=list)


class TopicList(JsonBody):
    """Names of topics."""

    topic_list: list[str] = field(factory=list)
    broker_addr: str | None = None


class TopicOffset(JsonBody):
    """The beginning and end of a queue: ``min_offset <= offset < max_offset``; time in ms."""

    min_offset: i64 = 0
    max_offset: i64 = 0
    last_update_timestamp: i64 = 0


class TopicStatsTable(JsonBody):
    """The answer to GET_TOPIC_STATS_INFO."""

    topic_put_tps: float = 0.0
    offset_table: dict[MessageQueue, TopicOffset] = field(factory=dict)


class KVTable(JsonBody):
    """A map from text to text: KV configuration or broker runtime information."""

    table: dict[str, str] = field(factory=dict)
