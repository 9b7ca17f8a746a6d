"""The namesrv's handlers: one function per request, over RouteTable and KvConfig.

Source of codes and remarks: DefaultRequestProcessor, ClientRequestProcessor, 5.4.0.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from codec.command import Command
from codec.constants import FAQ, VERSION_NAMES, ResponseCode
from codec.hashing import crc32
from codec.java_numbers import quoted
from gateway.config import official_defaults
from gateway.config.live import ForbiddenKey, apply_update, list_values
from gateway.namesrv.child_broker import ChildBroker
from gateway.namesrv.context import Namesrv, apply_config, remove_brokers_of
from gateway.namesrv.kv_config import ORDER_TOPIC_CONFIG
from gateway.namesrv.registration import (
    REPLICATES_FIELD,
    Registration,
    check_name,
    checked_queues,
    read_registration,
    refused,
)
from gateway.namesrv.route_table import RegistrationResult
from gateway.namesrv.text_file import CoalescedFile, PendingWrite, StoreFailed
from remoting.bodies.routes import GetBrokerMemberGroupResponseBody
from remoting.bodies.topics import KVTable
from remoting.connection_state import StateSlot
from remoting.declare import Header
from remoting.errors import RequestError
from remoting.handler_table import ANSWERS_LATER, AnswersLater, Call, HandlerTable
from remoting.requests import namesrv as ask

log = logging.getLogger(__name__)
handlers: HandlerTable[Namesrv] = HandlerTable()

QUOTED_KEYS_SINCE = VERSION_NAMES.index("V4_9_4")
NO_REPLICATION: Final = (
    "the master with brokerId 0 does not replicate, so this replica stays empty; "
    "give it a brokerName of its own"
)
_HAS_REGISTERED: Final = StateSlot[bool]("has registered")
UNCHANGEABLE_KEYS = {"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"}


# -- brokers --


@ask.RegisterBroker.on(handlers)
def register_broker(
    namesrv: Namesrv, request: ask.RegisterBroker, call: Call
) -> ask.RegisterBrokerReply | AnswersLater:
    """Register a broker (4.x or 5.x) and return the order configuration to it."""
    if request.body_crc32 and crc32(request.body) != request.body_crc32:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    if namesrv.large_registrations.must_wait(request, call.connection):
        call.connection.check_outstanding_limit()
        if not call.connection.closed:
            namesrv.large_registrations.begin(request, call.connection)
            call.connection.spawn(_register_later, namesrv, request, call)
        return ANSWERS_LATER
    with _refusals_logged(namesrv, request, call):
        return _accept(
            namesrv, read_registration(request, _zone_of(call.command), namesrv.config.limits), call
        )


async def _register_later(namesrv: Namesrv, request: ask.RegisterBroker, call: Call) -> None:
    try:
        with _refusals_logged(namesrv, request, call):
            zone, limits = _zone_of(call.command), namesrv.config.limits
            registration = await namesrv.large_registrations.read(request, zone, limits)
            if not call.connection.closed:
                call.reply(_accept(namesrv, registration, call))
    except Exception as error:  # noqa: BLE001 - becomes the answer
        namesrv.observe_registration(call.connection, call.command)(error)
        call.fail(error)
    finally:
        namesrv.large_registrations.end(request, call.connection)


@contextmanager
def _refusals_logged(namesrv: Namesrv, request: ask.RegisterBroker, call: Call) -> Iterator[None]:
    try:
        yield
    except RequestError as error:
        extra = {
            "broker": quoted(request.broker_name),
            "address": quoted(request.broker_addr),
            "remote": call.connection.remote[0],
            "reason": error.remark,
        }
        log.warning("registration refused", extra=extra)
        raise


def _accept(namesrv: Namesrv, registration: Registration, call: Call) -> ask.RegisterBrokerReply:
    registration = replace(registration, replicates=call.command.ext.get(REPLICATES_FIELD) != "false")
    child = ChildBroker.of_connection(call.connection)
    if child is not None:
        return _registered(namesrv, child.register(registration))
    namesrv.child_brokers.check_not_reserved(registration)
    result = namesrv.routes.register(registration, call.connection, _local_host(call))
    if _HAS_REGISTERED not in call.connection.state:
        call.connection.state[_HAS_REGISTERED] = True
        call.connection.on_close(partial(remove_brokers_of, namesrv))
    reply = _registered(namesrv, result)
    if result.is_change:
        namesrv.observe_registration(call.connection, call.command)(reply)
    if result.gets_no_data:
        reply.remark = f"{registration.broker_name}: {NO_REPLICATION}"
        names = {
            "broker": registration.broker_name,
            "broker_id": registration.broker_id,
            "address": registration.address,
        }
        log.warning("a replica gets no data", extra={**names, "reason": NO_REPLICATION})
    return reply


def _registered(namesrv: Namesrv, result: RegistrationResult) -> ask.RegisterBrokerReply:
    reply = ask.RegisterBrokerReply(ha_server_addr=result.ha_address, master_addr=result.master_address)
    if namesrv.config.return_order_topic_config_to_broker:
        reply.body = _namespace_body(namesrv, ORDER_TOPIC_CONFIG) or b""
    return reply


def _zone_of(command: Command) -> str | None:
    return command.ext.get("__ZONE_NAME")


@ask.UnregisterBroker.on(handlers)
def unregister_broker(namesrv: Namesrv, request: ask.UnregisterBroker, call: Call) -> None:
    """Remove a broker. Any peer may do that, as in the official namesrv, but not to a broker of this process."""
    child = ChildBroker.of_connection(call.connection)
    if child is not None:
        child.unregister()
        return
    namesrv.routes.unregister(request.broker_name, request.broker_addr, _local_host(call))


@ask.BrokerHeartbeat.on(handlers)
def broker_heartbeat(namesrv: Namesrv, request: ask.BrokerHeartbeat) -> None:
    namesrv.routes.record_heartbeat(request.cluster_name, request.broker_name, request.broker_addr)


@ask.QueryDataVersion.on(handlers)
def query_data_version(namesrv: Namesrv, request: ask.QueryDataVersion) -> ask.QueryDataVersionReply:
    """Answer if the broker has to register again. The request counts as a heartbeat."""
    broker = request.cluster_name, request.broker_name, request.broker_addr
    version = namesrv.routes.data_version(*broker)
    namesrv.routes.record_heartbeat(*broker)
    return ask.QueryDataVersionReply(changed=version != request.data, data=version)


@ask.GetBrokerMemberGroup.on(handlers)
def get_broker_member_group(
    namesrv: Namesrv, request: ask.GetBrokerMemberGroup, call: Call
) -> ask.GetBrokerMemberGroupReply:
    group = namesrv.routes.broker_member_group(request.cluster_name, request.broker_name, _local_host(call))
    return ask.GetBrokerMemberGroupReply(data=GetBrokerMemberGroupResponseBody(broker_member_group=group))


@ask.GetBrokerClusterInfo.on(handlers)
def get_broker_cluster_info(namesrv: Namesrv, request: ask.GetBrokerClusterInfo, call: Call) -> Header:
    host = _local_host(call)
    return _cached(namesrv, ("cluster", host), lambda: namesrv.routes.cluster_info(host).to_json())


@ask.WipeWritePermOfBroker.on(handlers)
def wipe_write_perm(namesrv: Namesrv, request: ask.WipeWritePermOfBroker) -> ask.WipeWritePermOfBrokerReply:
    topics = namesrv.routes.set_writable(request.broker_name, False)
    return ask.WipeWritePermOfBrokerReply(wipe_topic_count=topics)


@ask.AddWritePermOfBroker.on(handlers)
def add_write_perm(namesrv: Namesrv, request: ask.AddWritePermOfBroker) -> ask.AddWritePermOfBrokerReply:
    topics = namesrv.routes.set_writable(request.broker_name, True)
    return ask.AddWritePermOfBrokerReply(add_topic_count=topics)


# -- topics --


@ask.GetRouteInfoByTopic.on(handlers)
def get_route(namesrv: Namesrv, request: ask.GetRouteInfoByTopic, call: Call) -> Header:
    """Return a topic's brokers and queues; broker ids are quoted for clients that need standard JSON."""
    config, topic, host = namesrv.config, request.topic, _local_host(call)
    waited_s = namesrv.clock.monotonic() - namesrv.started_at
    if config.need_wait_for_service and waited_s < config.wait_seconds_for_service:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "name server not ready")
    orders = namesrv.kv_config.get(ORDER_TOPIC_CONFIG, topic) if config.order_message_enable else None
    standard = bool(request.accept_standard_json_only) or call.command.version >= QUOTED_KEYS_SINCE

    def encode() -> bytes:
        route = namesrv.routes.topic_route(topic, host)
        if route is None:
            remark = f"No topic route info in name server for the topic: {topic}{FAQ}"
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, remark)
        route.order_topic_conf = orders
        return route.to_json(standard=standard)

    return _cached(namesrv, ("route", topic, host, standard, orders), encode)


@ask.GetAllTopicListFromNameserver.on(handlers)
def get_all_topics(namesrv: Namesrv, request: ask.GetAllTopicListFromNameserver) -> Header:
    _refuse_unless(namesrv.config.enable_all_topic_list)
    return _cached(namesrv, ("topics",), lambda: namesrv.routes.topic_list().to_json())


@ask.GetTopicsByCluster.on(handlers)
def get_topics_by_cluster(namesrv: Namesrv, request: ask.GetTopicsByCluster) -> Header:
    _refuse_unless(namesrv.config.enable_topic_list)
    cluster = request.cluster
    return _cached(namesrv, ("topics", cluster), lambda: namesrv.routes.topics_of_cluster(cluster).to_json())


@ask.GetSystemTopicListFromNs.on(handlers)
def get_system_topics(namesrv: Namesrv, request: ask.GetSystemTopicListFromNs, call: Call) -> Header:
    host = _local_host(call)
    return _cached(namesrv, ("system", host), lambda: namesrv.routes.system_topics(host).to_json())


@ask.GetUnitTopicList.on(handlers)
def get_unit_topics(namesrv: Namesrv, request: ask.GetUnitTopicList) -> Header:
    return _unit_topics(namesrv, unit=True)


@ask.GetHasUnitSubTopicList.on(handlers)
def get_unit_sub_topics(namesrv: Namesrv, request: ask.GetHasUnitSubTopicList) -> Header:
    return _unit_topics(namesrv, unit_sub=True)


@ask.GetHasUnitSubUnunitTopicList.on(handlers)
def get_unit_sub_ununit_topics(namesrv: Namesrv, request: ask.GetHasUnitSubUnunitTopicList) -> Header:
    return _unit_topics(namesrv, unit=False, unit_sub=True)


def _unit_topics(namesrv: Namesrv, *, unit: bool | None = None, unit_sub: bool | None = None) -> Header:
    _refuse_unless(namesrv.config.enable_topic_list)
    return _cached(
        namesrv,
        ("unit", unit, unit_sub),
        lambda: namesrv.routes.unit_topics(unit=unit, unit_sub=unit_sub).to_json(),
    )


def _cached(namesrv: Namesrv, key: tuple[object, ...], encode: Callable[[], bytes]) -> Header:
    """Return the answer with this body, which is encoded again only after the route table changed."""
    reply = Header()
    reply.body = namesrv.answers.get(key, namesrv.routes.version, encode)
    return reply


@ask.DeleteTopicInNamesrv.on(handlers)
def delete_topic(namesrv: Namesrv, request: ask.DeleteTopicInNamesrv) -> None:
    namesrv.routes.delete_topic(request.topic, request.cluster_name)


@ask.RegisterTopicInNamesrv.on(handlers)
def register_topic(namesrv: Namesrv, request: ask.RegisterTopicInNamesrv) -> None:
    """Add a topic's queues. The answer is success even if none was added, as in the official namesrv."""
    if request.data is not None:
        check_name("topic name", request.topic)
        queues = [checked_queues(request.topic, queue_data) for queue_data in request.data.queue_datas]
        namesrv.routes.register_topic(request.topic, queues)


# -- configuration --


@ask.PutKvConfig.on(handlers)
def put_kv_config(namesrv: Namesrv, request: ask.PutKvConfig, call: Call) -> AnswersLater | None:
    _check_room(namesrv.kv_file, call)
    undo = namesrv.kv_config.put(request.namespace, request.key, request.value)
    return _answer_when_stored(namesrv.kv_file, undo, call)


def _check_room(file: CoalescedFile | None, call: Call) -> None:
    """Raise RequestError(SYSTEM_BUSY) for a change if too many wait for the disk already."""
    call.connection.check_outstanding_limit()
    if file is not None and file.is_full:
        raise RequestError(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]too many changes wait for the disk")


def _answer_when_stored(
    file: CoalescedFile | None, undo: Callable[[], None], call: Call
) -> AnswersLater | None:
    """Answer a change once it is on the disk, or undone. Without a file the answer is given at once."""
    if file is None:
        return None
    command = call.command
    # A bare command: otherwise every waiting request would hold its header fields and body in memory.
    waiting = Call(call.connection, Command(command.code, command.opaque, command.flag))
    call.connection.spawn(_answer_later, file.request_write(undo), waiting)
    return ANSWERS_LATER


async def _answer_later(write: PendingWrite, call: Call) -> None:
    try:
        await write.wait()
    except StoreFailed as error:
        call.fail(refused(f"the change was not stored and is undone: it cannot be written ({error})"))
    else:
        call.reply(None)


@ask.GetKvConfig.on(handlers)
def get_kv_config(namesrv: Namesrv, request: ask.GetKvConfig) -> ask.GetKvConfigReply:
    value = namesrv.kv_config.get(request.namespace, request.key)
    if value is None:
        remark = f"No config item, Namespace: {request.namespace} Key: {request.key}"
        raise RequestError(ResponseCode.QUERY_NOT_FOUND, remark)
    return ask.GetKvConfigReply(value=value)


@ask.DeleteKvConfig.on(handlers)
def delete_kv_config(namesrv: Namesrv, request: ask.DeleteKvConfig, call: Call) -> AnswersLater | None:
    _check_room(namesrv.kv_file, call)
    undo = namesrv.kv_config.delete(request.namespace, request.key)
    return _answer_when_stored(namesrv.kv_file, undo, call)


@ask.GetKvListByNamespace.on(handlers)
def get_kv_list(namesrv: Namesrv, request: ask.GetKvListByNamespace) -> Header:
    reply = Header()
    body = _namespace_body(namesrv, request.namespace)
    if body is None:
        raise RequestError(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {request.namespace}")
    reply.body = body
    return reply


def _namespace_body(namesrv: Namesrv, namespace: str) -> bytes | None:
    """Return all values of a namespace as a body, None when it never had one."""
    values = namesrv.kv_config.namespace_values(namespace)
    if values is None:
        return None
    return namesrv.kv_answers.get(namespace, namesrv.kv_config.version, KVTable(table=values).to_json)


@ask.UpdateNamesrvConfig.on(handlers)
def update_config(namesrv: Namesrv, request: ask.UpdateNamesrvConfig, call: Call) -> AnswersLater | None:
    """Change live settings and write all of them to configStorePath.

    Deviation: an invalid value and a key that has no effect are refused; the official namesrv ignores them and answers
    with success.
    """
    _check_room(namesrv.settings_file, call)
    black_list = UNCHANGEABLE_KEYS | set(namesrv.config.config_black_list.split(";"))
    try:
        change = apply_update(namesrv.config, request.body.decode(), black_list, _listed_besides(namesrv))
    except ForbiddenKey:
        raise RequestError(ResponseCode.NO_PERMISSION, "Can not update config in black list.") from None
    except ValueError as problem:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {problem}") from problem
    if change.refusal:
        raise RequestError(ResponseCode.SYSTEM_ERROR, change.refusal)
    undo = partial(apply_config, namesrv, namesrv.config)
    apply_config(namesrv, change.config)
    return _answer_when_stored(namesrv.settings_file, undo, call)


@ask.GetNamesrvConfig.on(handlers)
def get_config(namesrv: Namesrv, request: ask.GetNamesrvConfig) -> Header:
    """Return all settings as properties text; official keys that this server lacks have their official defaults.

    Source: DefaultRequestProcessor.getConfig, 5.4.0.
    """
    reply = Header()
    reply.body = list_values(namesrv.config, _listed_besides(namesrv)).encode()
    return reply


def _listed_besides(namesrv: Namesrv) -> dict[str, str]:
    """Return the values of official keys that `NamesrvConfig` does not have."""
    home = {"rocketmqHome": official_defaults.rocketmq_home()}
    return {**official_defaults.NAMESRV, **namesrv.process_values, **home}


def _local_host(call: Call) -> str:
    return call.connection.local[0]


def _refuse_unless(enabled: bool) -> None:
    if not enabled:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "disable")
