"""The needs of requests, as actions on resources: one entry for every request code that namesrv or broker serves.

A code without an entry is refused, and a test fails for it. Source: the annotations of the official request headers and
DefaultAuthorizationContextBuilder, 5.4.0. Deviations, all stricter: the official server allows any user

- requests without header fields, and codes whose header is not registered: LITE_PULL, QUERY_ASSIGNMENT, BATCH_ACK,
  groups created by UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, settings changed by UPDATE_BROKER_CONFIG, replies and others
- requests that name a message by its offset or id, such as VIEW_MESSAGE_BY_ID, END_TRANSACTION without a topic,
  CONSUMER_SEND_MSG_BACK, and CONSUME_MESSAGE_DIRECTLY, which has the broker send any message to one's own consumer;
  here the topic is that of the stored message, whatever the request contains
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from codec.command import Command
from codec.constants import ResponseCode
from codec.errors import MessageFormatError
from codec.fastjson import MAX_VALUES
from codec.ids import decode_message_id
from codec.java_numbers import parse_integer_or
from codec.topics import DEFAULT_TOPIC, RETRY_PREFIX
from gateway.auth.resources import Action, Resource, ResourceType, group_resource, topic_resource
from remoting.bodies.heartbeat import ReceivedHeartbeat
from remoting.declare import REQUESTS, Request
from remoting.errors import RequestError
from remoting.requests import (
    admin,
    auth,
    client,
    controller,
    groups,
    ha,
    locks,
    namesrv,
    offsets,
    pop,
    pull,
    query,
    replication,
    roles,
    send,
    staging,
    timers,
    topics,
    transaction,
)


@dataclass(frozen=True, slots=True)
class Need:
    """A need is met if one of the actions is allowed on the resource; without a resource, on any topic or group."""

    actions: Sequence[Action]
    resource: Resource | None


@dataclass(frozen=True, slots=True)
class NeedContext:
    """Facts of the server that needs depend on.

    ``topic_at`` returns the topic of the message at a physical offset: for a half message the topic it is meant for,
    and None where no message begins. ``has_group`` returns True for a consumer group that exists. ``max_json_values``
    limits a JSON body as `ConnectionLimits` does. ``staged_topics`` returns the topics of a staged batch.
    """

    cluster: str
    topic_at: Callable[[int], str | None] = lambda offset: None
    has_group: Callable[[str], bool] = lambda name: False
    max_json_values: int = MAX_VALUES
    staged_topics: Callable[[str, int], Iterable[str]] = lambda writer, batch: ()


PUB, SUB, GET, LIST = Action.PUB, Action.SUB, Action.GET, Action.LIST
CREATE, UPDATE, DELETE = Action.CREATE, Action.UPDATE, Action.DELETE
TOPIC_SEPARATOR: Final = ";"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
"""Source: MixAll.REPLY_TOPIC_POSTFIX, 5.4.0; the name of the cluster precedes it."""


FindNeeds = Callable[[Command, NeedContext], Iterable[Need]]

NEEDS: Final[dict[int, FindNeeds]] = {}
"""The function that finds the needs of a request, by request code."""


FREQUENT_FIELDS: Final[dict[int, tuple[str, str]]] = {
    send.SendMessageV2.code: ("b", ""),
    send.SendBatchMessage.code: ("b", ""),
    **{
        request.code: ("topic", "consumerGroup")
        for request in (pull.PullMessage, pull.LitePullMessage, pop.PopMessage, pop.AckMessage)
    },
    offsets.UpdateConsumerOffset.code: ("topic", "consumerGroup"),
}
"""Header fields of topic and group, by code of the most frequent requests. The needs of these requests depend on the
two fields only, unless the topic is a retry topic."""


def find_needs(command: Command, context: NeedContext) -> list[Need] | None:
    """Return all needs of a request; None for an unknown code.

    Raises RequestError for a request that cannot be parsed, as its handler would.
    """
    find = NEEDS.get(command.code)
    return None if find is None else list(find(command, context))


def _register(*requests: type[Request[Any]]) -> Callable[[FindNeeds], FindNeeds]:
    def register(find: FindNeeds) -> FindNeeds:
        for request in requests:
            if request.code in NEEDS:
                raise ValueError(f"the needs of {request.NAME} are registered twice")
            NEEDS[request.code] = find
        return find

    return register


def _topic(topic: object, actions: Sequence[Action]) -> Need:
    return Need(actions, topic_resource(topic if isinstance(topic, str) else ""))


def _group(group: object, actions: Sequence[Action]) -> Need:
    name = group if isinstance(group, str) else ""
    # A group may be named by its retry topic.
    return Need(actions, topic_resource(name) if name.startswith("%") else group_resource(name))


def _topic_and_group(
    topic: object, group: object, actions: Sequence[Action], context: NeedContext
) -> Iterator[Need]:
    """Yield the needs of a request about a topic and its consumer group; a retry topic is the group's."""
    group_need = _group(group, actions)
    yield group_need
    if isinstance(topic, str) and isinstance(group, str) and _is_retry_of_pop(topic, group, context):
        return
    topic_need = _topic(topic, actions)
    if topic_need != group_need:
        yield topic_need


def _is_retry_of_pop(topic: str, group: str, context: NeedContext) -> bool:
    """Return True for a retry topic of the group's pops, in the form before 5.2: ``%RETRY%group_topic``.

    If a group called ``group_topic`` exists, the same name is that group's retry topic.
    """
    name = topic.removeprefix(RETRY_PREFIX)
    return topic.startswith(f"{RETRY_PREFIX}{group}_") and bool(group) and not context.has_group(name)


# -- the cluster as a whole ---------------------------------------------------------------------------------------


def _on_cluster(*actions: Action) -> FindNeeds:
    def find(command: Command, context: NeedContext) -> Iterator[Need]:
        yield Need(actions, Resource(ResourceType.CLUSTER, context.cluster))

    return find


_register(
    admin.GetColdDataFlowCtrInfo,
    admin.GetBrokerConfig, admin.GetBrokerRuntimeInfo, query.ViewBrokerStatsData, admin.ExportRocksdbConfigToJson,
    topics.GetAllTopicConfig, groups.GetAllSubscriptionGroupConfig, offsets.GetAllConsumerOffset,
    offsets.GetAllDelayOffset, timers.GetTimerCheckPoint, timers.GetTimerMetrics, client.GetProducerConnectionList,
    client.GetAllProducerInfo, offsets.GetBrokerConsumeStats, topics.GetSystemTopicListFromBroker,
    pop.GetAllMessageRequestMode, ha.GetBrokerHaStatus, ha.GetBrokerEpochCache, roles.GetBrokerRole,
    replication.GetReplicatedTables,
    query.CheckRocksdbCqWriteProgress,
    namesrv.GetKvConfig, namesrv.GetKvListByNamespace, namesrv.GetNamesrvConfig, namesrv.QueryDataVersion,
    namesrv.GetBrokerMemberGroup, namesrv.GetBrokerClusterInfo,
    controller.ControllerGetReplicaInfo, controller.ControllerGetMetadataInfo, controller.ControllerGetSyncStateData,
    controller.ControllerGetNextBrokerId, controller.GetControllerConfig,
    auth.AuthGetUser, auth.AuthListUser, auth.AuthGetAcl, auth.AuthListAcl,
)(_on_cluster(GET))  # fmt: skip
_register(
    namesrv.GetAllTopicListFromNameserver, namesrv.GetTopicsByCluster, namesrv.GetSystemTopicListFromNs,
    namesrv.GetUnitTopicList, namesrv.GetHasUnitSubTopicList, namesrv.GetHasUnitSubUnunitTopicList,
)(_on_cluster(LIST, GET))  # fmt: skip
_register(
    timers.SwitchTimerEngine, ha.ResetMasterFlushOffset,
    admin.UpdateColdDataFlowCtrConfig,
    admin.RemoveColdDataFlowCtrConfig,
    admin.SetCommitlogReadMode,
    admin.UpdateBrokerConfig, topics.CleanExpiredConsumequeue, topics.CleanUnusedTopic, admin.DeleteExpiredCommitlog,
    namesrv.PutKvConfig, namesrv.DeleteKvConfig, namesrv.RegisterBroker, namesrv.UnregisterBroker,
    namesrv.BrokerHeartbeat, namesrv.WipeWritePermOfBroker, namesrv.AddWritePermOfBroker,
    namesrv.DeleteTopicInNamesrv, namesrv.RegisterTopicInNamesrv, namesrv.UpdateNamesrvConfig,
    replication.PutMessagesAtOffsets, replication.RaiseConsumerOffsets, replication.OpenReplication,
    replication.GetReplicatedAccounts,
    ha.ExchangeBrokerHaInfo, ha.NotifyMinBrokerIdChange, ha.NotifyBrokerRoleChanged,
    controller.ControllerAlterSyncStateSet, controller.ControllerElectMaster, controller.ControllerRegisterBroker,
    controller.ControllerApplyBrokerId, controller.UpdateControllerConfig, controller.CleanBrokerData,
    roles.ChangeBrokerRole, roles.HandOverBroker, roles.CopyTables,
    pop.PopRollback,
    auth.AuthCreateUser, auth.AuthUpdateUser, auth.AuthDeleteUser,
    auth.AuthCreateAcl, auth.AuthUpdateAcl, auth.AuthDeleteAcl,
)(_on_cluster(UPDATE))  # fmt: skip


# -- header fields that name topics and groups --------------------------------------------------------------------


def _on_topic(*actions: Action, field: str = "topic") -> FindNeeds:
    def find(command: Command, context: NeedContext) -> Iterator[Need]:
        yield _topic(command.ext.get(field), actions)

    return find


def _on_group(*actions: Action, field: str = "consumerGroup") -> FindNeeds:
    def find(command: Command, context: NeedContext) -> Iterator[Need]:
        yield _group(command.ext.get(field), actions)

    return find


def _on_topic_and_group(*actions: Action, group_field: str = "consumerGroup") -> FindNeeds:
    def find(command: Command, context: NeedContext) -> Iterator[Need]:
        yield from _topic_and_group(command.ext.get("topic"), command.ext.get(group_field), actions, context)

    return find


_register(
    offsets.SearchOffsetByTimestamp, offsets.GetMaxOffset, offsets.GetMinOffset, offsets.GetEarliestMsgStoretime,
)(_on_topic(SUB, GET))  # fmt: skip
_register(
    topics.GetTopicStatsInfo, topics.QueryTopicConsumeByWho, topics.GetTopicConfig,
)(_on_topic(GET))  # fmt: skip
_register(query.QueryMessage)(_on_topic(SUB, GET))
_register(topics.UpdateAndCreateTopic)(_on_topic(CREATE))
_register(topics.DeleteTopicInBroker)(_on_topic(DELETE))
_register(send.RecallMessage, staging.StageMessages)(_on_topic(PUB))
_register(client.GetConsumerListByGroup)(_on_group(SUB, GET))
_register(client.GetConsumerConnectionList, client.GetConsumerRunningInfo)(_on_group(GET))
_register(topics.QueryTopicsByConsumer, groups.GetSubscriptionGroupConfig)(_on_group(GET, field="group"))
_register(groups.DeleteSubscriptionGroup)(_on_group(DELETE, field="groupName"))
_register(
    pull.PullMessage, pull.LitePullMessage, pop.PopMessage, pop.AckMessage, pop.PeekMessage,
    pop.ChangeMessageInvisibletime, pop.Notification,
)(_on_topic_and_group(SUB))  # fmt: skip
_register(pop.PollingInfo)(_on_topic_and_group(GET))
_register(offsets.QueryConsumerOffset)(_on_topic_and_group(SUB, GET))
_register(offsets.UpdateConsumerOffset)(_on_topic_and_group(SUB, UPDATE))
_register(
    offsets.QueryConsumeTimeSpan, offsets.InvokeBrokerToGetConsumerStatus, groups.QuerySubscriptionByConsumer,
)(_on_topic_and_group(GET, group_field="group"))  # fmt: skip
_register(offsets.InvokeBrokerToResetOffset, groups.UpdateAndGetGroupForbidden)(
    _on_topic_and_group(UPDATE, group_field="group")
)


@_register(namesrv.GetRouteInfoByTopic)
def _route(command: Command, context: NeedContext) -> Iterator[Need]:
    topic = command.ext.get("topic")
    if _is_common(topic, context):
        yield Need((PUB, SUB, GET), None)
    else:
        yield _topic(topic, (PUB, SUB, GET))


def _is_common(topic: str | None, context: NeedContext) -> bool:
    """Return True for a topic whose route clients need without a right of their own to it.

    Responders send to the topic of replies, and the producer inside of every stock Java client looks up the topic from
    which new ones are made. The official namesrv checks no route at all.
    """
    return topic in (DEFAULT_TOPIC, f"{context.cluster}{REPLY_TOPIC_SUFFIX}")


@_register(query.QueryConsumeQueue)
def _query_consume_queue(command: Command, context: NeedContext) -> Iterator[Need]:
    yield _topic(command.ext.get("topic"), (GET,))
    if command.ext.get("consumerGroup"):
        yield _group(command.ext["consumerGroup"], (GET,))


@_register(offsets.GetConsumeStats)
def _consume_stats(command: Command, context: NeedContext) -> Iterator[Need]:
    ext = command.ext
    group = ext.get("consumerGroup", "")
    yield _group(group, (GET,))
    for topic in (ext.get("topic", ""), *ext.get("topicList", "").split(TOPIC_SEPARATOR)):
        if topic:
            yield _topic(topic, (GET,))


@_register(offsets.QueryCorrectionOffset)
def _correction_offset(command: Command, context: NeedContext) -> Iterator[Need]:
    yield _topic(command.ext.get("topic"), (GET,))
    for group in (command.ext.get("compareGroup", ""), *command.ext.get("filterGroups", "").split(",")):
        if group:
            yield _group(group, (GET,))


@_register(offsets.CloneGroupOffset)
def _clone_offsets(command: Command, context: NeedContext) -> Iterator[Need]:
    yield _group(command.ext.get("srcGroup"), (GET,))
    yield _group(command.ext.get("destGroup"), (UPDATE,))
    if command.ext.get("topic"):
        yield _topic(command.ext["topic"], (UPDATE,))


# -- sends: to a retry topic, a consumer sends for its group ------------------------------------------------------


def _send(topic_field: str) -> FindNeeds:
    def find(command: Command, context: NeedContext) -> Iterator[Need]:
        resource = topic_resource(command.ext.get(topic_field, ""))
        yield Need((SUB,) if resource.type is ResourceType.GROUP else (PUB,), resource)

    return find


_register(send.SendMessage)(_send("topic"))
_register(send.SendMessageV2, send.SendBatchMessage)(_send("b"))


@_register(staging.PublishStaged)
def _publish_staged(command: Command, context: NeedContext) -> Iterator[Need]:
    request = staging.PublishStaged.from_command(command, context.max_json_values)
    topics = list(context.staged_topics(request.writer, request.batch))
    if topics:
        yield from (_topic(topic, (PUB,)) for topic in topics)
    else:
        # Published already, or its parts were staged before a restart, and checked then.
        yield Need((PUB, SUB), None)


@_register(send.SendReplyMessage, send.SendReplyMessageV2, client.CheckClientConfig, staging.GetStagingState)
def _any_client(command: Command, context: NeedContext) -> Iterator[Need]:
    """Yield a need that any client meets: consumers have no grant for the topic of replies.

    The other requests concern subscriptions or messages that were checked when they were sent.
    """
    yield Need((PUB, SUB), None)


# -- messages named by their physical offset -----------------------------------------------------------------------


def _topic_of_message(
    command: Command, field: str, context: NeedContext, actions: Sequence[Action]
) -> Iterator[Need]:
    """Yield the need for the topic of the message at an offset, or of the request if no message begins there."""
    return _topic_at(parse_integer_or(command.ext.get(field, ""), -1), command, context, actions)


def _topic_of_message_id(command: Command, context: NeedContext, actions: Sequence[Action]) -> Iterator[Need]:
    """Yield the need for the topic of the message whose id the request names: it contains the offset."""
    try:
        _, _, physical_offset = decode_message_id(command.ext.get("msgId", ""))
    except MessageFormatError:
        physical_offset = -1  # The handler refuses it.
    return _topic_at(physical_offset, command, context, actions)


def _topic_at(
    physical_offset: int, command: Command, context: NeedContext, actions: Sequence[Action]
) -> Iterator[Need]:
    topic = context.topic_at(physical_offset)
    if topic is None:
        topic = command.ext.get("topic") or command.ext.get("originTopic", "")
    yield _topic(topic, actions)


@_register(query.ViewMessageById)
def _view_message(command: Command, context: NeedContext) -> Iterator[Need]:
    return _topic_of_message(command, "offset", context, (GET,))


@_register(transaction.EndTransaction)
def _end_transaction(command: Command, context: NeedContext) -> Iterator[Need]:
    return _topic_of_message(command, "commitLogOffset", context, (PUB,))


@_register(send.ConsumerSendMsgBack)
def _send_back(command: Command, context: NeedContext) -> Iterator[Need]:
    yield _group(command.ext.get("group"), (SUB,))
    yield from _topic_of_message(command, "offset", context, (SUB,))


@_register(client.ConsumeMessageDirectly)
def _consume_directly(command: Command, context: NeedContext) -> Iterator[Need]:
    yield _group(command.ext.get("consumerGroup"), (SUB,))
    yield from _topic_of_message_id(command, context, (SUB,))


@_register(transaction.ResumeCheckHalfMessage)
def _resume_check(command: Command, context: NeedContext) -> Iterator[Need]:
    return _topic_of_message_id(command, context, (UPDATE,))


# -- bodies that name topics and groups ----------------------------------------------------------------------------


def _parse_body(command: Command, context: NeedContext) -> Any:
    """Parse the body of a request as declared. Raises RequestError, also if the body is missing."""
    data = getattr(REQUESTS[command.code].from_command(command, context.max_json_values), "data", None)
    if data is None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the body of request {command.code} is missing")
    return data


@_register(client.HeartBeat)
def _heartbeat(command: Command, context: NeedContext) -> Iterator[Need]:
    data = ReceivedHeartbeat.from_json(command.body, context.max_json_values)
    if data.producer_data_set:
        # Stock Java consumers list a producer group, too. `AccessControl` notes whether the user may publish.
        yield Need((PUB, SUB), None)
    for consumer in data.consumer_data_set:
        fields = consumer if isinstance(consumer, dict) else {}
        group = fields.get("groupName")
        yield _group(group, (SUB,))
        for subscription in fields.get("subscriptionDataSet") or ():
            topic = subscription.get("topic") if isinstance(subscription, dict) else None
            need = _topic(topic, (SUB,))
            if need.resource is not None and need.resource.type is ResourceType.TOPIC:
                yield need


@_register(client.UnregisterClient)
def _unregister(command: Command, context: NeedContext) -> Iterator[Need]:
    if command.ext.get("consumerGroup"):
        yield _group(command.ext["consumerGroup"], (SUB,))
    else:
        yield Need((PUB, SUB), None)


@_register(locks.LockBatchMq, locks.UnlockBatchMq)
def _locks(command: Command, context: NeedContext) -> Iterator[Need]:
    data = _parse_body(command, context)
    yield _group(data.consumer_group, (SUB,))
    for topic in {queue.topic for queue in data.mq_set}:
        yield _topic(topic, (SUB,))


@_register(pop.BatchAckMessage)
def _batch_ack(command: Command, context: NeedContext) -> Iterator[Need]:
    yield Need((SUB,), None)
    for topic, group in {(ack.topic, ack.consumer_group) for ack in _parse_body(command, context).acks}:
        yield from _topic_and_group(topic, group, (SUB,), context)


@_register(pop.QueryAssignment)
def _assignment(command: Command, context: NeedContext) -> Iterator[Need]:
    data = _parse_body(command, context)
    return _topic_and_group(data.topic, data.consumer_group, (SUB, GET), context)


@_register(pop.SetMessageRequestMode)
def _request_mode(command: Command, context: NeedContext) -> Iterator[Need]:
    data = _parse_body(command, context)
    return _topic_and_group(data.topic, data.consumer_group, (UPDATE,), context)


@_register(topics.UpdateAndCreateTopicList)
def _topic_list(command: Command, context: NeedContext) -> Iterator[Need]:
    return (
        _topic(config.topic_name, (CREATE,)) for config in _parse_body(command, context).topic_config_list
    )


@_register(groups.UpdateAndCreateSubscriptionGroup)
def _create_group(command: Command, context: NeedContext) -> Iterator[Need]:
    yield _group(_parse_body(command, context).group_name, (CREATE,))


@_register(groups.UpdateAndCreateSubscriptionGroupList)
def _group_list(command: Command, context: NeedContext) -> Iterator[Need]:
    return (
        _group(config.group_name, (CREATE,)) for config in _parse_body(command, context).group_config_list
    )
