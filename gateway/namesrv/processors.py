"""The namesrv's handlers: one function per request, over RouteTable and KvConfig.

Source of codes and remarks: DefaultRequestProcessor, ClientRequestProcessor, 5.4.0.
"""

import logging

from codec.constants import VERSION_NAMES, ResponseCode
from codec.hashing import crc32
from gateway.config.live import ForbiddenKey, apply_update, list_values
from gateway.namesrv.context import Namesrv, apply_config
from gateway.namesrv.kv_config import ORDER_TOPIC_CONFIG
from gateway.namesrv.route_table import BrokerKey, Registration
from remoting.bodies.registration import RegisterBrokerBody
from remoting.bodies.routes import GetBrokerMemberGroupResponseBody
from remoting.bodies.topics import KVTable, TopicList
from remoting.declare import Header
from remoting.errors import RequestError
from remoting.handler_table import Call, HandlerTable
from remoting.requests import namesrv as ask

log = logging.getLogger(__name__)
routes: HandlerTable[Namesrv] = HandlerTable()

QUOTED_KEYS_SINCE = VERSION_NAMES.index("V4_9_4")
FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
UNCHANGEABLE_KEYS = {"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"}


# -- brokers --


@ask.RegisterBroker.on(routes)
def register_broker(namesrv: Namesrv, request: ask.RegisterBroker, call: Call) -> ask.RegisterBrokerReply:
    """Register a broker (4.x or 5.x) and return the order configuration to it."""
    if request.body_crc32 and crc32(request.body) != request.body_crc32:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    taken = namesrv.routes.register(_registration(request, call), call.connection)
    if taken is None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "register broker failed")
    if "namesrv" not in call.connection.state:
        call.connection.state["namesrv"] = namesrv
        call.connection.on_close(namesrv.routes.unregister_owned_by)
    reply = ask.RegisterBrokerReply(ha_server_addr=taken.ha_address, master_addr=taken.master_address)
    orders = namesrv.kv_config.namespace_values(ORDER_TOPIC_CONFIG)
    if namesrv.config.return_order_topic_config_to_broker and orders is not None:
        reply.data = KVTable(table=orders)
    return reply


def _registration(request: ask.RegisterBroker, call: Call) -> Registration:
    body = RegisterBrokerBody()
    if request.body:
        body = RegisterBrokerBody.decode(request.body, compressed=request.compressed)
    topics = body.topic_config_serialize_wrapper
    return Registration(
        cluster=request.cluster_name,
        broker_name=request.broker_name,
        broker_id=request.broker_id,
        address=request.broker_addr,
        ha_address=request.ha_server_addr,
        topics=topics.topic_config_table,
        data_version=topics.data_version,
        mappings=topics.topic_queue_mapping_info_map,
        filter_servers=body.filter_server_list,
        zone=call.command.ext.get("__ZONE_NAME"),
        timeout_ms=request.heartbeat_timeout_millis,
        acting_master=request.enable_acting_master,
    )


@ask.UnregisterBroker.on(routes)
def unregister_broker(namesrv: Namesrv, request: ask.UnregisterBroker) -> None:
    namesrv.routes.unregister(request.cluster_name, request.broker_addr, request.broker_name)


@ask.BrokerHeartbeat.on(routes)
def broker_heartbeat(namesrv: Namesrv, request: ask.BrokerHeartbeat) -> None:
    namesrv.routes.record_heartbeat(BrokerKey(request.cluster_name, request.broker_addr))


@ask.QueryDataVersion.on(routes)
def query_data_version(namesrv: Namesrv, request: ask.QueryDataVersion) -> ask.QueryDataVersionReply:
    """Tell a broker whether it should register again. The request counts as a heartbeat."""
    key = BrokerKey(request.cluster_name, request.broker_addr)
    changed = namesrv.routes.is_version_changed(key, request.data)
    namesrv.routes.record_heartbeat(key)
    return ask.QueryDataVersionReply(changed=changed, data=namesrv.routes.data_version(key))


@ask.GetBrokerMemberGroup.on(routes)
def get_broker_member_group(
    namesrv: Namesrv, request: ask.GetBrokerMemberGroup, call: Call
) -> ask.GetBrokerMemberGroupReply:
    group = namesrv.routes.broker_member_group(request.cluster_name, request.broker_name, _local_host(call))
    return ask.GetBrokerMemberGroupReply(data=GetBrokerMemberGroupResponseBody(broker_member_group=group))


@ask.GetBrokerClusterInfo.on(routes)
def get_broker_cluster_info(
    namesrv: Namesrv, request: ask.GetBrokerClusterInfo, call: Call
) -> ask.GetBrokerClusterInfoReply:
    return ask.GetBrokerClusterInfoReply(data=namesrv.routes.cluster_info(_local_host(call)))


@ask.WipeWritePermOfBroker.on(routes)
def wipe_write_perm(namesrv: Namesrv, request: ask.WipeWritePermOfBroker) -> ask.WipeWritePermOfBrokerReply:
    topics = namesrv.routes.set_writable(request.broker_name, False)
    log.info("broker write permission removed", extra={"broker": request.broker_name, "topics": topics})
    return ask.WipeWritePermOfBrokerReply(wipe_topic_count=topics)


@ask.AddWritePermOfBroker.on(routes)
def add_write_perm(namesrv: Namesrv, request: ask.AddWritePermOfBroker) -> ask.AddWritePermOfBrokerReply:
    topics = namesrv.routes.set_writable(request.broker_name, True)
    log.info("broker write permission restored", extra={"broker": request.broker_name, "topics": topics})
    return ask.AddWritePermOfBrokerReply(add_topic_count=topics)


# -- topics --


@ask.GetRouteInfoByTopic.on(routes)
def get_route(namesrv: Namesrv, request: ask.GetRouteInfoByTopic, call: Call) -> ask.GetRouteInfoByTopicReply:
    """Return a topic's brokers and queues; broker ids are quoted for clients that need standard JSON."""
    config = namesrv.config
    waited_s = namesrv.clock.monotonic() - namesrv.started_at
    if config.need_wait_for_service and waited_s < config.wait_seconds_for_service:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "name server not ready")
    route = namesrv.routes.topic_route(request.topic, _local_host(call))
    if route is None:
        remark = f"No topic route info in name server for the topic: {request.topic}{FAQ}"
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, remark)
    if config.order_message_enable:
        route.order_topic_conf = namesrv.kv_config.get(ORDER_TOPIC_CONFIG, request.topic)
    reply = ask.GetRouteInfoByTopicReply(data=route)
    standard = bool(request.accept_standard_json_only) or call.command.version >= QUOTED_KEYS_SINCE
    reply.body = route.to_json(standard=standard)
    return reply


@ask.GetAllTopicListFromNameserver.on(routes)
def get_all_topics(
    namesrv: Namesrv, request: ask.GetAllTopicListFromNameserver
) -> ask.GetAllTopicListFromNameserverReply:
    _refuse_unless(namesrv.config.enable_all_topic_list)
    return ask.GetAllTopicListFromNameserverReply(data=namesrv.routes.topic_list())


@ask.GetTopicsByCluster.on(routes)
def get_topics_by_cluster(namesrv: Namesrv, request: ask.GetTopicsByCluster) -> ask.GetTopicsByClusterReply:
    _refuse_unless(namesrv.config.enable_topic_list)
    return ask.GetTopicsByClusterReply(data=namesrv.routes.topics_of_cluster(request.cluster))


@ask.GetSystemTopicListFromNs.on(routes)
def get_system_topics(
    namesrv: Namesrv, request: ask.GetSystemTopicListFromNs, call: Call
) -> ask.GetSystemTopicListFromNsReply:
    return ask.GetSystemTopicListFromNsReply(data=namesrv.routes.system_topics(_local_host(call)))


@ask.GetUnitTopicList.on(routes)
def get_unit_topics(namesrv: Namesrv, request: ask.GetUnitTopicList) -> ask.GetUnitTopicListReply:
    return ask.GetUnitTopicListReply(data=_unit_topics(namesrv, unit=True))


@ask.GetHasUnitSubTopicList.on(routes)
def get_unit_sub_topics(
    namesrv: Namesrv, request: ask.GetHasUnitSubTopicList
) -> ask.GetHasUnitSubTopicListReply:
    return ask.GetHasUnitSubTopicListReply(data=_unit_topics(namesrv, unit_sub=True))


@ask.GetHasUnitSubUnunitTopicList.on(routes)
def get_unit_sub_ununit_topics(
    namesrv: Namesrv, request: ask.GetHasUnitSubUnunitTopicList
) -> ask.GetHasUnitSubUnunitTopicListReply:
    return ask.GetHasUnitSubUnunitTopicListReply(data=_unit_topics(namesrv, unit=False, unit_sub=True))


def _unit_topics(namesrv: Namesrv, *, unit: bool | None = None, unit_sub: bool | None = None) -> TopicList:
    _refuse_unless(namesrv.config.enable_topic_list)
    return namesrv.routes.unit_topics(unit=unit, unit_sub=unit_sub)


@ask.DeleteTopicInNamesrv.on(routes)
def delete_topic(namesrv: Namesrv, request: ask.DeleteTopicInNamesrv) -> None:
    namesrv.routes.delete_topic(request.topic, request.cluster_name)


@ask.RegisterTopicInNamesrv.on(routes)
def register_topic(namesrv: Namesrv, request: ask.RegisterTopicInNamesrv) -> None:
    """Add a topic's queues. As officially, the answer is success even when none was added."""
    if request.data is not None:
        namesrv.routes.register_topic(request.topic, request.data.queue_datas)


# -- configuration --


@ask.PutKvConfig.on(routes)
def put_kv_config(namesrv: Namesrv, request: ask.PutKvConfig) -> None:
    namesrv.kv_config.put(request.namespace, request.key, request.value)


@ask.GetKvConfig.on(routes)
def get_kv_config(namesrv: Namesrv, request: ask.GetKvConfig) -> ask.GetKvConfigReply:
    value = namesrv.kv_config.get(request.namespace, request.key)
    if value is None:
        remark = f"No config item, Namespace: {request.namespace} Key: {request.key}"
        raise RequestError(ResponseCode.QUERY_NOT_FOUND, remark)
    return ask.GetKvConfigReply(value=value)


@ask.DeleteKvConfig.on(routes)
def delete_kv_config(namesrv: Namesrv, request: ask.DeleteKvConfig) -> None:
    namesrv.kv_config.delete(request.namespace, request.key)


@ask.GetKvListByNamespace.on(routes)
def get_kv_list(namesrv: Namesrv, request: ask.GetKvListByNamespace) -> ask.GetKvListByNamespaceReply:
    table = namesrv.kv_config.namespace_values(request.namespace)
    if table is None:
        raise RequestError(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {request.namespace}")
    return ask.GetKvListByNamespaceReply(data=KVTable(table=table))


@ask.UpdateNamesrvConfig.on(routes)
def update_config(namesrv: Namesrv, request: ask.UpdateNamesrvConfig) -> None:
    """Change live settings and write all of them to configStorePath.

    Deviation: an invalid value is refused; the official namesrv ignores it and answers with success.
    """
    black_list = UNCHANGEABLE_KEYS | set(namesrv.config.config_black_list.split(";"))
    try:
        change = apply_update(namesrv.config, request.body.decode(), black_list)
    except ForbiddenKey:
        raise RequestError(ResponseCode.NO_PERMISSION, "Can not update config in black list.") from None
    except ValueError as problem:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {problem}") from problem
    apply_config(namesrv, change.config)
    log.info("configuration changed by request", extra={"without_effect": ",".join(change.without_effect)})
    if namesrv.settings_file is not None:
        namesrv.settings_file.write(list_values(namesrv.config).encode())


@ask.GetNamesrvConfig.on(routes)
def get_config(namesrv: Namesrv, request: ask.GetNamesrvConfig) -> Header:
    reply = Header()
    reply.body = list_values(namesrv.config).encode()
    return reply


def _local_host(call: Call) -> str:
    return call.connection.local[0]


def _refuse_unless(enabled: bool) -> None:
    if not enabled:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "disable")
