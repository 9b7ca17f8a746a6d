"""A namesrv's answers as bytes: codes, remarks and bodies of the official one (5.4.0, recorded)."""

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from codec.command import Command, decode_frame
from codec.constants import CURRENT_VERSION, VERSION_NAMES
from codec.hashing import crc32
from gateway.config.process import NamesrvConfig
from gateway.namesrv.context import (
    Namesrv,
    apply_config,
    assemble_namesrv,
    build_namesrv,
    close_silent_brokers,
)
from gateway.namesrv.processors import handlers
from gateway.namesrv.registration import REPLICATES_FIELD, Registration
from gateway.namesrv.text_file import MAX_WAITING_CHANGES
from remoting.bodies.queues import DataVersion
from remoting.bodies.registration import RegisterBrokerBody
from remoting.bodies.routes import ClusterInfo, QueueData, TopicRouteData
from remoting.bodies.topics import TopicConfig, TopicConfigAndMappingSerializeWrapper, TopicList
from remoting.connection import encode_failure
from remoting.connection_state import new_state
from remoting.errors import RequestError
from remoting.limits import ConnectionLimits
from remoting.requests import namesrv as ask

V4_9_3, V4_9_4 = VERSION_NAMES.index("V4_9_3"), VERSION_NAMES.index("V4_9_4")
NO_ROUTE = (
    "No topic route info in name server for the topic: Nope"
    "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
)
# A registration of an official 4.9.4 broker with compressedRegister=true.
COMPRESSED_4_9_4 = base64.b64decode(
    "eNp1UMtOwzAQtLjyAYibCRSEAKlunaTtLU2ctlKalNgUIoSsEBmBmgdykgNC/DsO5VKr3VnvZWZ3PQsAuPo2sqotGyGNyfDWaD4K"
    "UTdp8WlMkD02B6aN+zYy8Q8A4Fi9S+rOifcQEM6i1cLlTyogGnVpQboIZx3jzJTyOl7ec5pQzmInpHzuBP62ByIFTWz2YsLipFfJ"
    "NMsFz6qybgsh+f8fhhZC2NzXeOOJt7TNGzdva+WBx2QVJIf3nIY1k194jGEHjbyYijJ7L1K5YeoGEPUHeFs03Xnk+5QwvozWxONk"
    "TUK2d9errDZC3qV/pL1LnrDpo5oNRwoaBSnpTkUoO+zjbNc2RFaX2qCj55dfrB57gQ=="
)


class Clock:
    """A clock that stands still."""

    seconds = 50.0

    def monotonic(self) -> float:
        return self.seconds


class Peer:
    """A connection as handlers see it."""

    def __init__(self, local: str = "127.0.0.1") -> None:
        self.local, self.remote = (local, 9876), ("10.1.1.1", 5000)
        self.state = new_state()
        self.callbacks: list[Callable[[Any], None]] = []
        self.closed_for = ""
        self.closed = False
        self.tasks: list[tuple[Any, ...]] = []
        self.written: list[bytes] = []
        self.limits = ConnectionLimits()

    def check_outstanding_limit(self) -> None:
        pass

    def spawn(self, *task: Any) -> None:
        self.tasks.append(task)

    def answer_late(self, command: Command, work: Callable[[], bytes | None]) -> bool:
        try:
            self.written.append(work() or b"")
        except RequestError as error:
            self.written.append(encode_failure(command, error))
        return True

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def on_close(self, callback: Callable[[Any], None]) -> None:
        self.callbacks.append(callback)

    def close(self, reason: str = "") -> None:
        self.closed_for, self.closed = reason, True
        for callback in self.callbacks:
            callback(self)


async def inline(work: Callable[[], Any]) -> Any:
    await trio.lowlevel.checkpoint()
    return work()


class Asker:
    """Asks a namesrv as a client does, in bytes."""

    def __init__(self, namesrv: Namesrv) -> None:
        self.namesrv = namesrv
        self.handlers: dict[int, Any] = handlers.bind(namesrv)

    def command(self, request: Any, peer: Peer | None = None, version: int = CURRENT_VERSION) -> Command:
        command = request.to_command(7)
        command.version = version
        peer = peer or Peer()
        data = self.handlers[command.code](peer, command)
        if data is None:
            trio.run(self.finish, peer)
            data = peer.written.pop()
        answer = decode_frame(data, 4, len(data))
        assert (answer.opaque, answer.is_response) == (7, True)
        return answer

    async def finish(self, peer: Peer) -> None:
        """Run the tasks of requests that are answered later, and the writers of files meanwhile."""
        async with trio.open_nursery() as writers:
            for file in self.namesrv.files:
                writers.start_soon(file.run)
            async with trio.open_nursery() as tasks:
                for function, *arguments in peer.tasks:
                    tasks.start_soon(function, *arguments)
            peer.tasks.clear()
            writers.cancel_scope.cancel()

    def __call__(self, request: Any, peer: Peer | None = None) -> Any:
        return request.read_reply(self.command(request, peer))

    def refusal(self, request: Any, peer: Peer | None = None) -> tuple[int, str | None]:
        with pytest.raises(RequestError) as refused:
            self.handlers[request.code](peer or Peer(), request.to_command(7))
        return refused.value.code, refused.value.remark


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def asker(clock: Clock) -> Asker:
    return Asker(build_namesrv(NamesrvConfig(), clock, memory=True, run_blocking=inline))


def body(*names: str, counter: int = 1) -> RegisterBrokerBody:
    table = {name: TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4) for name in names}
    wrapper = TopicConfigAndMappingSerializeWrapper(
        topic_config_table=table, data_version=DataVersion(counter=counter, timestamp=5)
    )
    return RegisterBrokerBody(topic_config_serialize_wrapper=wrapper)


def registration(data: bytes = b"", **changes: Any) -> ask.RegisterBroker:
    request = ask.RegisterBroker(
        broker_name="broker-a",
        broker_addr="127.0.0.1:10911",
        cluster_name="DefaultCluster",
        ha_server_addr="127.0.0.1:10912",
        broker_id=0,
    )
    request.body = data or body("T", "U").to_json()
    for name, value in changes.items():
        setattr(request, name, value)
    return request


def test_a_route_after_a_registration(asker: Asker) -> None:
    reply = asker(registration())
    assert (reply.ha_server_addr, reply.master_addr, reply.data) == (None, None, None)
    route = asker(ask.GetRouteInfoByTopic(topic="T")).data
    assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:10911"}
    assert route.queue_datas[0].write_queue_nums == 4


@pytest.mark.parametrize(
    ("version", "standard", "quoted"),
    [
        (V4_9_3, None, False),
        (V4_9_3, True, True),
        (V4_9_3, False, False),
        (V4_9_4, None, True),
        (0, None, False),
    ],
)
def test_broker_ids_are_quoted_for_clients_that_need_it(
    asker: Asker, version: int, standard: bool | None, quoted: bool
) -> None:
    asker(registration())
    request = ask.GetRouteInfoByTopic(topic="T", accept_standard_json_only=standard)
    answer = asker.command(request, version=version)
    wanted = b'"brokerAddrs":{"0":"127.0.0.1:10911"}' if quoted else b'"brokerAddrs":{0:"127.0.0.1:10911"}'
    assert wanted in bytes(answer.body)


def test_an_auto_address_is_where_the_client_came_in(asker: Asker) -> None:
    given = Registration(
        cluster="C",
        broker_name="broker-a",
        broker_id=0,
        address="auto:10911",
        queues={"T": QueueData(broker_name="broker-a")},
    )
    asker.namesrv.routes.register_local(given, {"T"})
    for local in ("10.0.0.1", "192.168.1.1"):
        route = asker(ask.GetRouteInfoByTopic(topic="T"), Peer(local)).data
        assert route.broker_datas[0].broker_addrs == {0: f"{local}:10911"}
        info = asker(ask.GetBrokerClusterInfo(), Peer(local)).data
        assert info.broker_addr_table["broker-a"].broker_addrs == {0: f"{local}:10911"}


def test_no_route(asker: Asker) -> None:
    assert asker.refusal(ask.GetRouteInfoByTopic(topic="Nope")) == (17, NO_ROUTE)


def test_not_ready_just_after_the_start(asker: Asker, clock: Clock) -> None:
    apply_config(asker.namesrv, NamesrvConfig(need_wait_for_service=True))
    asker(registration())
    clock.seconds += 44.9
    assert asker.refusal(ask.GetRouteInfoByTopic(topic="T")) == (1, "name server not ready")
    clock.seconds += 0.1
    assert asker(ask.GetRouteInfoByTopic(topic="T"))


def test_a_compressed_registration_of_an_official_4_9_4_broker(asker: Asker) -> None:
    request = registration(COMPRESSED_4_9_4, compressed=True, body_crc32=1661240800)
    asker(request)
    topics = asker(ask.GetAllTopicListFromNameserver()).data.topic_list
    assert {"TBW102", "BenchmarkTest", "SCHEDULE_TOPIC_XXXX", "NsTry494", "DefaultCluster"} <= set(topics)
    assert asker(ask.GetRouteInfoByTopic(topic="BenchmarkTest")).data.queue_datas[0].read_queue_nums == 1024


def test_a_registration_with_a_wrong_sum(asker: Asker) -> None:
    data = body("T", "U").to_json()
    assert asker.refusal(registration(data, body_crc32=crc32(data) ^ 1)) == (1, "crc32 not match")
    asker(registration(data, body_crc32=crc32(data)))


def test_a_single_topic_before_the_broker(asker: Asker) -> None:
    assert asker.refusal(registration(body("T").to_json())) == (1, "register broker failed")


def test_a_registration_without_body_or_with_junk(asker: Asker) -> None:
    request = registration()
    request.body = b""
    asker(request)
    assert asker(ask.GetBrokerMemberGroup(cluster_name="DefaultCluster", broker_name="broker-a"))
    assert asker.refusal(registration(b"junk", compressed=True))[0] == 1
    assert asker.refusal(registration(b"junk"))[0] == 1


def test_a_replica_learns_its_master(asker: Asker) -> None:
    asker(registration())
    reply = asker(registration(broker_id=1, broker_addr="127.0.0.1:20911"))
    assert (reply.ha_server_addr, reply.master_addr) == ("127.0.0.1:10912", "127.0.0.1:10911")


@pytest.mark.parametrize(("mark", "is_told"), [("false", True), ("true", False), (None, False)])
def test_a_replica_of_a_broker_elsewhere_is_told_what_its_master_registered(
    asker: Asker, mark: str | None, is_told: bool
) -> None:
    master = registration().to_command(1)
    if mark is not None:
        master.ext[REPLICATES_FIELD] = mark
    asker.handlers[master.code](Peer(), master)
    remark = asker.command(registration(broker_id=1, broker_addr="127.0.0.1:20911")).remark or ""
    assert ("does not replicate, so this replica stays empty" in remark) == is_told


def test_a_replica_of_a_broker_of_this_process_is_told_where_it_gets_its_data(
    asker: Asker, caplog: pytest.LogCaptureFixture
) -> None:
    local = Registration(
        cluster="DefaultCluster",
        broker_name="broker-a",
        broker_id=0,
        address="auto:10911",
        ha_address="auto:10912",
        queues={},
        data_version=DataVersion(),
    )
    asker.namesrv.routes.register_local(local, ())
    replica = registration(broker_id=1, broker_addr="127.0.0.1:20911")
    for _ in range(2):
        assert asker.command(replica).remark is None
        reply = asker(replica)
        host = Peer().local[0]
        assert (reply.ha_server_addr, reply.master_addr) == (f"{host}:10912", f"{host}:10911")
    assert "a replica gets no data" not in caplog.text


def test_a_replica_without_data_is_logged(asker: Asker, caplog: pytest.LogCaptureFixture) -> None:
    master = registration().to_command(1)
    master.ext[REPLICATES_FIELD] = "false"
    asker.handlers[master.code](Peer(), master)
    for _ in range(2):
        remark = asker.command(registration(broker_id=1, broker_addr="127.0.0.1:20911")).remark
        assert remark is not None
        assert remark.startswith("broker-a: the master with brokerId 0 does not replicate")
    records = [each for each in caplog.records if each.getMessage() == "a replica gets no data"]
    assert [(each.__dict__["broker"], each.__dict__["broker_id"]) for each in records] == [
        ("broker-a", 1)
    ] * 2


def test_brokers_learn_the_order_configuration(asker: Asker) -> None:
    asker(ask.PutKvConfig(namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4"))
    for _ in range(2):
        assert asker(registration()).data.table == {"T": "broker-a:4"}
    assert asker(ask.GetRouteInfoByTopic(topic="T")).data.order_topic_conf is None
    off_and_on = NamesrvConfig(order_message_enable=True, return_order_topic_config_to_broker=False)
    apply_config(asker.namesrv, off_and_on)
    assert asker(registration()).data is None
    assert asker(ask.GetRouteInfoByTopic(topic="T")).data.order_topic_conf == "broker-a:4"
    assert asker(ask.GetRouteInfoByTopic(topic="U")).data.order_topic_conf is None


def test_a_connection_that_closes_takes_its_broker_along(asker: Asker) -> None:
    peer = Peer()
    asker(registration(), peer)
    asker(registration(), peer)
    assert len(peer.callbacks) == 1
    peer.close()
    assert asker.refusal(ask.GetRouteInfoByTopic(topic="T"))[0] == 17


def test_unregister(asker: Asker) -> None:
    asker(registration())
    asker(
        ask.UnregisterBroker(
            broker_name="broker-a", broker_addr="127.0.0.1:10911", cluster_name="DefaultCluster", broker_id=0
        )
    )
    assert asker(ask.GetAllTopicListFromNameserver()).data.topic_list == []


def test_data_version_and_heartbeat_are_signs_of_life(asker: Asker, clock: Clock) -> None:
    asker(registration(heartbeat_timeout_millis=10_000))
    query = ask.QueryDataVersion(
        broker_name="broker-a",
        broker_addr="127.0.0.1:10911",
        cluster_name="DefaultCluster",
        broker_id=0,
        data=DataVersion(counter=1, timestamp=5),
    )
    beat = ask.BrokerHeartbeat(
        cluster_name="DefaultCluster", broker_addr="127.0.0.1:10911", broker_name="broker-a"
    )
    for request in (query, beat):
        clock.seconds += 9
        asker(request)
        clock.seconds += 9
        asker(request)
        assert asker.namesrv.routes.expire_silent_brokers() == []
    reply = asker(query)
    assert (reply.changed, reply.data) == (False, DataVersion(counter=1, timestamp=5))
    query.data = DataVersion(counter=2, timestamp=5)
    assert asker(query).changed
    query.broker_addr = "elsewhere:1"
    reply = asker(query)
    assert (reply.changed, reply.data) == (True, None)


def test_write_permission(asker: Asker) -> None:
    asker(registration())
    assert asker(ask.WipeWritePermOfBroker(broker_name="broker-a")).wipe_topic_count == 2
    assert asker(ask.GetRouteInfoByTopic(topic="T")).data.queue_datas[0].perm == 4
    assert asker(ask.AddWritePermOfBroker(broker_name="broker-a")).add_topic_count == 2
    assert asker(ask.GetRouteInfoByTopic(topic="T")).data.queue_datas[0].perm == 6
    assert asker(ask.WipeWritePermOfBroker(broker_name="other")).wipe_topic_count == 0


def test_bodies_of_tools(asker: Asker) -> None:
    asker(registration())
    group = asker.command(ask.GetBrokerMemberGroup(cluster_name="DefaultCluster", broker_name="broker-a"))
    assert b'"brokerAddrs":{0:"127.0.0.1:10911"}' in bytes(group.body)
    assert asker(ask.GetTopicsByCluster(cluster="DefaultCluster")).data.topic_list == ["T", "U"]
    system = asker(ask.GetSystemTopicListFromNs()).data
    assert (system.topic_list, system.broker_addr) == (["DefaultCluster", "broker-a"], "127.0.0.1:10911")
    for request in (ask.GetUnitTopicList(), ask.GetHasUnitSubTopicList(), ask.GetHasUnitSubUnunitTopicList()):
        assert bytes(asker.command(request).body) == b'{"topicList":[]}'


def test_lists_that_are_switched_off(asker: Asker) -> None:
    config = asker.namesrv.config
    apply_config(asker.namesrv, replace(config, enable_topic_list=False, enable_all_topic_list=False))
    requests = [
        ask.GetTopicsByCluster(cluster="C"),
        ask.GetUnitTopicList(),
        ask.GetAllTopicListFromNameserver(),
    ]
    requests += [ask.GetHasUnitSubTopicList(), ask.GetHasUnitSubUnunitTopicList()]
    assert {asker.refusal(request) for request in requests} == {(1, "disable")}
    assert asker(ask.GetSystemTopicListFromNs())


def test_topics_come_and_go_by_request(asker: Asker) -> None:
    asker(registration())
    route = asker(ask.GetRouteInfoByTopic(topic="T")).data
    asker(ask.RegisterTopicInNamesrv(topic="X", data=route))
    assert asker(ask.GetRouteInfoByTopic(topic="X")).data.queue_datas == route.queue_datas
    asker(ask.RegisterTopicInNamesrv(topic="Y"))
    asker(ask.DeleteTopicInNamesrv(topic="X", cluster_name="DefaultCluster"))
    asker(ask.DeleteTopicInNamesrv(topic="T"))
    assert asker(ask.GetAllTopicListFromNameserver()).data.topic_list == ["U"]


def test_key_value_configuration(asker: Asker) -> None:
    missing = (22, "No config item, Namespace: n Key: k")
    assert asker.refusal(ask.GetKvConfig(namespace="n", key="k")) == missing
    assert asker.refusal(ask.GetKvListByNamespace(namespace="n")) == (22, "No config item, Namespace: n")
    asker(ask.PutKvConfig(namespace="n", key="k", value="v中"))
    assert asker(ask.GetKvConfig(namespace="n", key="k")).value == "v中"
    answer = asker.command(ask.GetKvListByNamespace(namespace="n"))
    assert bytes(answer.body).decode() == '{"table":{"k":"v中"}}'
    asker(ask.DeleteKvConfig(namespace="n", key="k"))
    assert asker.refusal(ask.GetKvConfig(namespace="n", key="k")) == missing
    assert asker(ask.GetKvListByNamespace(namespace="n")).data.table == {}
    asker(ask.PutKvConfig(namespace="n", key="k", value="w"))
    assert asker(ask.GetKvListByNamespace(namespace="n")).data.table == {"k": "w"}


def update(text: str) -> ask.UpdateNamesrvConfig:
    request = ask.UpdateNamesrvConfig()
    request.body = text.encode()
    return request


class Kept:
    """A file in memory; ``fault`` is raised instead of writing."""

    path = "/kept/file"
    data = b""
    writes = 0
    fault: Exception | None = None

    def read(self) -> bytes | None:
        return self.data or None

    def write(self, data: bytes) -> None:
        if self.fault is not None:
            raise self.fault
        self.data = data
        self.writes += 1


def test_the_configuration_by_request(clock: Clock) -> None:
    kept = Kept()
    asker = Asker(assemble_namesrv(NamesrvConfig(), clock, (Kept(), kept), inline))
    asker(update("enableTopicList=false\ndeleteTopicWithBrokerRegistration=true"))
    assert asker.namesrv.config == NamesrvConfig(
        enable_topic_list=False, delete_topic_with_broker_registration=True
    )
    listed = bytes(asker.command(ask.GetNamesrvConfig()).body)
    assert b"\nenableTopicList=false\n" in listed
    assert set(kept.data.splitlines()) < set(listed.splitlines()), "official keys of others are not written"


def test_keys_that_have_no_effect_are_refused(asker: Asker) -> None:
    before = asker.namesrv.config
    assert asker.refusal(update("enableTopicList=false\nunknown=1\nlistenPort=1")) == (
        1,
        "cannot be changed while the server runs: listenPort; change the file and restart; "
        "unknown is not a key of this server",
    )
    assert asker.namesrv.config == before


@pytest.mark.parametrize("key", ["configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"])
def test_settings_that_no_request_may_change(asker: Asker, key: str) -> None:
    before = asker.namesrv.config
    refusal = asker.refusal(update(f"enableTopicList=false\n{key}=x"))
    assert refusal == (16, "Can not update config in black list.")
    assert asker.namesrv.config == before


def test_a_value_that_does_not_fit(asker: Asker) -> None:
    code, remark = asker.refusal(update("waitSecondsForService=soon"))
    assert code == 1
    assert remark is not None
    assert 'waitSecondsForService: invalid value "soon" (expected a whole number' in remark


def test_an_update_of_many_bytes_is_refused_unread(asker: Asker) -> None:
    code, remark = asker.refusal(update("k=\\\n" * 100_000))
    assert code == 1
    assert remark is not None
    assert "at most 65536" in remark
    assert asker.refusal(update("a" * 60_000 + "=1\nwaitSecondsForService=" + "9" * 4_000))[0] == 1


# -- strangers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":null,"U":null}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"topicName":null}}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"topicName":"T","readQueueNums":-1},"U":null}}}',
        b'{"topicConfigSerializeWrapper":{"topicQueueMappingInfoMap":{"T":null}}}',
        b'{"filterServerList":[null]}',
    ],
)
def test_a_refused_registration_leaves_nothing(asker: Asker, data: bytes) -> None:
    peer = Peer()
    assert asker.refusal(registration(data), peer)[0] == 1
    assert asker(ask.GetBrokerClusterInfo()).data.broker_addr_table == {}
    assert peer.callbacks == []
    asker(registration())
    assert asker.refusal(registration(data))[0] == 1
    assert asker(ask.GetAllTopicListFromNameserver()).data.topic_list == ["T", "U"]


def local(name: str = "broker-a") -> Registration:
    queues = {topic: QueueData(broker_name=name, write_queue_nums=8, perm=6) for topic in "TU"}
    return Registration(cluster="C", broker_name=name, broker_id=0, address="auto:10911", queues=queues)


def test_strangers_do_not_displace_a_broker_of_this_process(asker: Asker) -> None:
    asker.namesrv.routes.register_local(local(), "TU")
    stranger = Peer()
    other = registration(broker_addr="6.6.6.6:1")
    assert "another brokerName" in str(asker.refusal(other, stranger)[1])
    asker(registration(broker_addr="127.0.0.1:10911"), stranger)
    for address in ("127.0.0.1:10911", "auto:10911"):
        unregister = ask.UnregisterBroker(
            broker_name="broker-a", broker_addr=address, cluster_name="C", broker_id=0
        )
        assert "unregisters when it stops" in str(asker.refusal(unregister, stranger)[1])
    stranger.close()
    route = asker(ask.GetRouteInfoByTopic(topic="T")).data
    assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:10911"}
    assert route.queue_datas[0].write_queue_nums == 8


def test_an_auto_address_of_a_stranger_is_not_rewritten(asker: Asker) -> None:
    asker(registration(broker_addr="auto:1"))
    route = asker(ask.GetRouteInfoByTopic(topic="T")).data
    assert route.broker_datas[0].broker_addrs == {0: "auto:1"}


def test_a_ghost_with_the_longest_timeout_leaves_after_ten_minutes(asker: Asker, clock: Clock) -> None:
    peer = Peer()
    asker(registration(heartbeat_timeout_millis=(1 << 63) - 1), peer)
    clock.seconds += 601
    close_silent_brokers(asker.namesrv)
    assert peer.closed_for == "broker expired"
    assert asker(ask.GetBrokerClusterInfo()).data.broker_addr_table == {}


def test_limits_can_be_changed_by_request_and_are_named(asker: Asker) -> None:
    asker(update("maxRegisteredBrokers=1\nmaxTopicsPerBroker=2\nmaxTopics=3\nmaxKvEntries=1"))
    asker(registration())
    remarks = [
        asker.refusal(request)[1]
        for request in (
            registration(broker_name="broker-b", broker_addr="h:1"),
            registration(body("V", "W", "X").to_json()),
            ask.RegisterTopicInNamesrv(topic="V", data=asker(ask.GetRouteInfoByTopic(topic="T")).data),
            ask.PutKvConfig(namespace="n", key="k", value="v"),
        )
    ]
    keys = ("maxRegisteredBrokers", "maxTopicsPerBroker", "maxTopicsPerBroker", "maxKvEntries")
    assert [key in str(remark) for key, remark in zip(keys, remarks, strict=True)] == [True] * 4
    asker(update("maxRegisteredBrokers=2"))
    assert "maxTopics is 3" in str(asker.refusal(registration(broker_name="b", broker_addr="h:1"))[1])
    asker(update("maxTopics=4"))
    asker(registration(broker_name="broker-b", broker_addr="h:1"))


def test_topics_by_request_are_checked(asker: Asker) -> None:
    asker(registration())

    def route(**queues: Any) -> TopicRouteData:
        return TopicRouteData(queue_datas=[QueueData(broker_name="broker-a", **queues)])

    assert asker.refusal(ask.RegisterTopicInNamesrv(topic="X", data=route(perm=99)))[0] == 1
    assert asker.refusal(ask.RegisterTopicInNamesrv(topic="X\n", data=route()))[0] == 1
    request = ask.RegisterTopicInNamesrv(topic="X")
    command = request.to_command(1)
    command.body = b'{"queueDatas":[null]}'
    with pytest.raises(RequestError, match="QueueData"):
        asker.handlers[request.code](Peer(), command)
    assert asker.refusal(ask.GetRouteInfoByTopic(topic="X"))[0] == 17


# -- costs --------------------------------------------------------------------------------------------------------


def test_a_large_registration_is_read_in_a_thread_and_takes_effect_as_a_whole(clock: Clock) -> None:
    threads = 0

    async def counted(work: Callable[[], Any]) -> Any:
        nonlocal threads
        threads += 1
        return await inline(work)

    asker = Asker(build_namesrv(NamesrvConfig(), clock, memory=True, run_blocking=counted))
    names = [f"topic-{number:06}" for number in range(5_000)]
    asker(registration(body(*names).to_json()))
    assert threads == 1
    assert asker(ask.GetAllTopicListFromNameserver()).data.topic_list == names
    data = body(*names).to_json().replace(b'"perm":6', b'"perm":99', 1)
    peer = Peer()
    answer = asker.command(registration(data, broker_name="b"), peer)
    assert (answer.code, "permission 99" in str(answer.remark)) == (1, True)
    assert "b" not in asker(ask.GetBrokerClusterInfo()).data.broker_addr_table
    assert peer.callbacks == []
    asker(registration(), peer)
    assert len(peer.callbacks) == 1


def test_a_large_registration_of_a_connection_that_closed_is_dropped(asker: Asker) -> None:
    peer = Peer()
    names = [f"topic-{number:06}" for number in range(5_000)]
    assert asker.handlers[103](peer, registration(body(*names).to_json()).to_command(1)) is None
    peer.close()
    trio.run(asker.finish, peer)
    assert peer.written == []
    assert asker(ask.GetBrokerClusterInfo()).data.broker_addr_table == {}


def test_answers_are_encoded_once_until_routes_change(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    asker(registration())
    encoded: list[str] = []
    for kind in (TopicRouteData, TopicList, ClusterInfo):
        original = kind.to_json

        def counted(self: Any, *, standard: bool = False, original: Any = original) -> bytes:
            encoded.append(type(self).__name__)
            result: bytes = original(self, standard=standard)
            return result

        monkeypatch.setattr(kind, "to_json", counted)
    requests: list[Any] = [
        ask.GetRouteInfoByTopic(topic="T"),
        ask.GetBrokerClusterInfo(),
        ask.GetAllTopicListFromNameserver(),
        ask.GetTopicsByCluster(cluster="DefaultCluster"),
        ask.GetSystemTopicListFromNs(),
        ask.GetUnitTopicList(),
        ask.GetHasUnitSubTopicList(),
        ask.GetHasUnitSubUnunitTopicList(),
    ]
    first = [bytes(asker.command(request).body) for request in requests]
    asker(registration())
    assert [bytes(asker.command(request).body) for request in requests] == first
    assert len(encoded) == len(requests)
    asker(ask.WipeWritePermOfBroker(broker_name="broker-a"))
    assert asker(ask.GetRouteInfoByTopic(topic="T")).data.queue_datas[0].perm == 4
    peer = Peer("10.9.9.9")
    asker.namesrv.routes.register_local(local("broker-l"), "TU")
    addresses = [
        asker(ask.GetRouteInfoByTopic(topic="T"), each).data.broker_datas[1].broker_addrs
        for each in (None, peer)
    ]
    assert addresses == [{0: "127.0.0.1:10911"}, {0: "10.9.9.9:10911"}]


def test_a_change_is_answered_when_it_is_stored(clock: Clock) -> None:
    kept = Kept()
    asker = Asker(assemble_namesrv(NamesrvConfig(), clock, (kept, Kept()), inline))
    peer = Peer()
    for number in range(1_000):
        put = ask.PutKvConfig(namespace="n", key=f"k{number}", value="v")
        assert asker.handlers[put.code](peer, put.to_command(number)) is None
    assert (kept.writes, peer.written) == (0, [])
    trio.run(asker.finish, peer)
    assert kept.writes == 1
    assert sorted(decode_frame(data, 4, len(data)).opaque for data in peer.written) == list(range(1_000))
    assert kept.data.count(b'"v"') == 1_000
    asker(ask.DeleteKvConfig(namespace="n", key="k7"))
    assert kept.data.count(b'"v"') == 999


def test_changes_that_wait_for_a_hanging_disk_are_bounded(clock: Clock) -> None:
    kept = Kept()
    asker = Asker(assemble_namesrv(NamesrvConfig(), clock, (kept, Kept()), inline))
    peer, put = Peer(), ask.PutKvConfig(namespace="n", key="k", value="v")
    for _ in range(MAX_WAITING_CHANGES):
        asker.handlers[put.code](peer, put.to_command(1))
    put.value = "w"
    assert asker.refusal(put, peer)[0] == 2
    assert asker(ask.GetKvConfig(namespace="n", key="k")).value == "v"
    trio.run(asker.finish, peer)
    assert len(peer.written) == MAX_WAITING_CHANGES
    asker(put)


def test_a_disk_that_fails_is_an_error_to_the_requester(clock: Clock) -> None:
    kept, settings_file = Kept(), Kept()
    asker = Asker(assemble_namesrv(NamesrvConfig(), clock, (kept, settings_file), inline))
    kept.fault = settings_file.fault = OSError(28, "No space left on device")
    for request in (ask.PutKvConfig(namespace="n", key="k", value="v"), update("enableTopicList=false")):
        answer = asker.command(request)
        assert answer.code == 1
        assert answer.remark == (
            "the change was not stored and is undone: it cannot be written (No space left on device)"
        )
    assert asker.refusal(ask.GetKvConfig(namespace="n", key="k"))[0] == 22
    assert asker.namesrv.config.enable_topic_list
    assert asker.namesrv.kv_config.namespace_values("n") is None
    kept.fault = settings_file.fault = None
    asker(ask.PutKvConfig(namespace="n", key="l", value="w"))
    assert b'"n":{"l":"w"}' in kept.data
    asker(ask.PutKvConfig(namespace="n", key="l", value="x"))
    kept.fault = OSError(30, "Read-only file system")
    change, deletion = (
        ask.PutKvConfig(namespace="n", key="l", value="y"),
        ask.DeleteKvConfig(namespace="n", key="l"),
    )
    assert [asker.command(change).code, asker.command(deletion).code] == [1, 1]
    assert asker(ask.GetKvConfig(namespace="n", key="l")).value == "x"
