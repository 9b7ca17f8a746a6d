"""Requests about the topics of a broker."""

from typing import Self

from codec.topics import DEFAULT_TOPIC
from remoting.bodies.groups import GroupList
from remoting.bodies.routes import TopicQueueMappingDetail
from remoting.bodies.topics import (
    CreateTopicListRequestBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigAndQueueMapping,
    TopicList,
    TopicStatsTable,
)
from remoting.declare import Header, Request, RpcRequest, TopicRequest, i32


class UpdateAndCreateTopic(TopicRequest[None], code=17):
    """Create or change a topic; ``attributes`` has the form ``+key=value,-key``.

    Source: AdminBrokerProcessor.updateAndCreateTopic.
    """

    topic: str
    default_topic: str
    read_queue_nums: i32
    write_queue_nums: i32
    perm: i32
    topic_filter_type: str
    topic_sys_flag: i32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool = False

    @classmethod
    def from_config(cls, config: TopicConfig, attributes: str | None) -> Self:
        """Return the request that gives a topic these settings and, as ``attributes``, these changes of attributes."""
        return cls(
            topic=config.topic_name,
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=attributes,
        )


class UpdateAndCreateTopicList(RpcRequest[None], code=18):
    """Create or change several topics. Source: AdminBrokerProcessor.updateAndCreateTopicList."""

    data: CreateTopicListRequestBody


class UpdateAndCreateStaticTopic(TopicRequest[None], code=513):
    """Create or remap a static topic. Source: AdminBrokerProcessor.updateAndCreateStaticTopic."""

    topic: str
    default_topic: str
    read_queue_nums: i32
    write_queue_nums: i32
    perm: i32
    topic_filter_type: str
    topic_sys_flag: i32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool = False
    data: TopicQueueMappingDetail


class GetAllTopicConfigReply(Header):
    """The answer to GET_ALL_TOPIC_CONFIG."""

    total_topic_num: i32 | None = None
    data: TopicConfigAndMappingSerializeWrapper


class GetAllTopicConfig(Request[GetAllTopicConfigReply], code=21):
    """Return every topic of a broker. Source: AdminBrokerProcessor.getAllTopicConfig."""

    topic_seq: i32 | None = None
    data_version: str | None = None
    max_topic_num: i32 | None = None


class GetTopicConfigReply(Header):
    """The answer to GET_TOPIC_CONFIG."""

    data: TopicConfigAndQueueMapping


class GetTopicConfig(TopicRequest[GetTopicConfigReply], code=351):
    """Return one topic. Source: AdminBrokerProcessor.getTopicConfig."""

    topic: str


class GetTopicStatsInfoReply(Header):
    """The answer to GET_TOPIC_STATS_INFO."""

    data: TopicStatsTable


class GetTopicStatsInfo(TopicRequest[GetTopicStatsInfoReply], code=202):
    """Return the first and last offsets of a topic's queues. Source: AdminBrokerProcessor.getTopicStatsInfo."""

    topic: str


class DeleteTopicInBroker(TopicRequest[None], code=215, null_texts={"topic": ""}):
    """Delete a topic. Source: AdminBrokerProcessor.deleteTopic."""

    topic: str


class QueryTopicConsumeByWhoReply(Header):
    """The answer to QUERY_TOPIC_CONSUME_BY_WHO."""

    data: GroupList


class QueryTopicConsumeByWho(TopicRequest[QueryTopicConsumeByWhoReply], code=300):
    """Return the groups that consume a topic. Source: AdminBrokerProcessor.queryTopicConsumeByWho."""

    topic: str


class QueryTopicsByConsumerReply(Header):
    """The answer to QUERY_TOPICS_BY_CONSUMER."""

    data: TopicList


class QueryTopicsByConsumer(RpcRequest[QueryTopicsByConsumerReply], code=343):
    """Return the topics that a group consumes. Source: AdminBrokerProcessor.queryTopicsByConsumer."""

    group: str


class GetSystemTopicListFromBrokerReply(Header):
    """The answer to GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""

    data: TopicList


class GetSystemTopicListFromBroker(Request[GetSystemTopicListFromBrokerReply], code=305):
    """Return the broker's own topics. Source: AdminBrokerProcessor.getSystemTopicListFromBroker."""


class CleanUnusedTopic(Request[None], code=316):
    """Delete queues of topics that no longer exist. Source: AdminBrokerProcessor.cleanUnusedTopic."""


class CleanExpiredConsumequeue(Request[None], code=306):
    """Delete consume queue files without messages.

    Source: AdminBrokerProcessor.cleanExpiredConsumeQueue.
    """
