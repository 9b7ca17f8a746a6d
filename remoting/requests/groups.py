"""Requests about the consumer groups of a broker."""

from remoting.bodies.groups import (
    GroupForbidden,
    QuerySubscriptionResponseBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
)
from remoting.declare import Header, Request, RpcRequest, TopicRequest, i32


class UpdateAndCreateSubscriptionGroup(Request[None], code=200, name="UPDATE_AND_CREATE_SUBSCRIPTIONGROUP"):
    """Create or change a group. Source: AdminBrokerProcessor.updateAndCreateSubscriptionGroup."""

    data: SubscriptionGroupConfig


class UpdateAndCreateSubscriptionGroupList(
    Request[None], code=225, name="UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST"
):
    """Create or change several groups.

    Source: AdminBrokerProcessor.updateAndCreateSubscriptionGroupList.
    """

    data: SubscriptionGroupList


class GetAllSubscriptionGroupConfigReply(Header):
    """The answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""

    total_group_num: i32 | None = None
    data: SubscriptionGroupWrapper


class GetAllSubscriptionGroupConfig(
    Request[GetAllSubscriptionGroupConfigReply], code=201, name="GET_ALL_SUBSCRIPTIONGROUP_CONFIG"
):
    """Return every group of a broker. Source: AdminBrokerProcessor.getAllSubscriptionGroup."""

    group_seq: i32 | None = None
    data_version: str | None = None
    max_group_num: i32 | None = None


class GetSubscriptionGroupConfigReply(Header):
    """The answer to GET_SUBSCRIPTIONGROUP_CONFIG."""

    data: SubscriptionGroupConfig


class GetSubscriptionGroupConfig(
    RpcRequest[GetSubscriptionGroupConfigReply], code=352, name="GET_SUBSCRIPTIONGROUP_CONFIG"
):
    """Return one group. Source: AdminBrokerProcessor.getSubscriptionGroup."""

    group: str


class DeleteSubscriptionGroup(RpcRequest[None], code=207, name="DELETE_SUBSCRIPTIONGROUP"):
    """Delete a group. Source: AdminBrokerProcessor.deleteSubscriptionGroup."""

    group_name: str
    clean_offset: bool = False


class QuerySubscriptionByConsumerReply(Header):
    """The answer to QUERY_SUBSCRIPTION_BY_CONSUMER."""

    data: QuerySubscriptionResponseBody


class QuerySubscriptionByConsumer(TopicRequest[QuerySubscriptionByConsumerReply], code=345):
    """Return a group's subscription to a topic. Source: AdminBrokerProcessor.querySubscriptionByConsumer."""

    group: str
    topic: str | None = None


class UpdateAndGetGroupForbiddenReply(Header):
    """The answer to UPDATE_AND_GET_GROUP_FORBIDDEN."""

    data: GroupForbidden


class UpdateAndGetGroupForbidden(TopicRequest[UpdateAndGetGroupForbiddenReply], code=353):
    """Forbid or allow a group to read a topic. Source: AdminBrokerProcessor.updateAndGetGroupForbidden."""

    group: str
    topic: str
    readable: bool | None = None
