from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import trio

from codec import fastjson
from codec.constants import ResponseCode
from gateway.broker.assembly import registration
from gateway.broker.processors.live_config import apply_broker_config
from gateway.broker.replication.master_lookup import Master
from gateway.namesrv.registration import queue_data
from gateway.tests.cluster import NAMESRV, Producer, bodies, message, pull, settle, simulated
from gateway.tests.configs import change_config
from remoting.bodies.routes import TopicRouteData
from remoting.bodies.topics import TopicConfig
from remoting.errors import RemotingTimeout, RequestError
from remoting.requests.namesrv import (
    DeleteTopicInNamesrv,
    GetBrokerClusterInfo,
    GetRouteInfoByTopic,
    RegisterBroker,
    RegisterTopicInNamesrv,
    UnregisterBroker,
    WipeWritePermOfBroker,
)
from remoting.requests.roles import ChangeBrokerRole
from remoting.requests.topics import UpdateAndCreateTopic
from storage.files import MemoryFiles
from toolkit.address_server import AddressServerError


async def route(cluster, topic="orders"):
    """broker name -> (address, write queues) of a topic, {} when it has no route."""
    try:
        data = (await cluster.dial(NAMESRV).ask(GetRouteInfoByTopic(topic=topic))).data
    except RequestError:
        return {}
    addresses = {each.broker_name: each.broker_addrs[0] for each in data.broker_datas}
    return {
        each.broker_name: (addresses[each.broker_name], each.write_queue_nums) for each in data.queue_datas
    }


@simulated
async def test_a_broker_registers_with_a_namesrv_elsewhere_and_again_when_topics_change(cluster):
    await cluster.namesrv()
    node = await cluster.add_broker(broker_cluster_name="c3")
    assert await route(cluster, "TBW102") == {"broker-a": ("10.0.1.1:10911", 8)}
    info = (await cluster.dial(NAMESRV).ask(GetBrokerClusterInfo())).data
    assert info.cluster_addr_table == {"c3": ["broker-a"]}
    now = cluster.clock.now_ms()
    await cluster.dial(node.address).ask(message())
    await settle()
    assert await route(cluster) == {"broker-a": ("10.0.1.1:10911", 4)}
    assert cluster.clock.now_ms() == now


@simulated
async def test_a_broker_of_the_same_process_registers_without_a_connection(cluster):
    namesrv = await cluster.namesrv()
    node = await cluster.add_broker(local=namesrv)
    assert not namesrv.service.server.connections
    assert await route(cluster, "TBW102") == {"broker-a": ("10.0.1.1:10911", 8)}
    await cluster.dial(node.address).ask(message())
    assert await route(cluster) == {"broker-a": ("10.0.1.1:10911", 4)}
    await trio.sleep(600)
    assert await route(cluster), "it needs no heartbeat"
    await node.stop()
    assert await route(cluster) == {}


@simulated
async def test_with_auto_clients_get_the_address_they_came_by(cluster):
    namesrv = await cluster.namesrv()
    node = await cluster.add_broker(local=namesrv, host="auto")
    assert node.address[0] == "auto"
    assert await route(cluster, "TBW102") == {"broker-a": (f"{NAMESRV[0]}:10911", 8)}


@simulated
async def test_registrations_are_repeated(cluster):
    namesrv = await cluster.namesrv()
    await cluster.add_broker(register_nameserver_period_ms=10_000)
    times = []
    handlers = namesrv.service.server._handlers
    register = handlers[RegisterBroker.code]

    def counted(connection, command):
        times.append(round(trio.current_time()))
        return register(connection, command)

    handlers[RegisterBroker.code] = counted
    await trio.sleep(35)
    assert times == [10, 20, 30]


@simulated
async def test_a_namesrv_that_restarts_knows_its_brokers_within_seconds(cluster):
    namesrv = await cluster.namesrv()
    node = await cluster.add_broker()
    await cluster.dial(node.address).ask(message())
    await namesrv.stop()
    await trio.sleep(20.5)
    await cluster.namesrv()
    assert await route(cluster) == {}
    await trio.sleep(1.5)
    assert await route(cluster) == {"broker-a": ("10.0.1.1:10911", 4)}


@simulated
async def test_trouble_with_a_namesrv_is_logged_once_and_its_end_as_well(cluster, caplog):
    caplog.set_level("INFO", "gateway.broker.assembly.registration")
    node = await cluster.add_broker(namesrv_addr="10.0.0.1:9876")
    await trio.sleep(30)
    assert caplog.text.count("registration with namesrv failed") == 1
    assert (await cluster.dial(node.address).ask(message())).queue_offset == 0, "sends go on"
    await cluster.namesrv()
    await trio.sleep(2)
    assert caplog.text.count("registration with namesrv works again") == 1
    assert await route(cluster)


@simulated
async def test_a_namesrv_that_refuses_or_does_not_answer_is_asked_again(cluster):
    namesrv = await cluster.namesrv()
    handlers = namesrv.service.server._handlers
    register = handlers.pop(RegisterBroker.code)
    await cluster.add_broker(register_broker_timeout_ms=2000)
    assert await route(cluster, "TBW102") == {}
    handlers[RegisterBroker.code] = lambda connection, command: None
    await trio.sleep(5)
    handlers[RegisterBroker.code] = register
    await trio.sleep(4)
    assert await route(cluster, "TBW102")


@simulated
async def test_a_broker_says_goodbye_and_stays_away(cluster):
    await cluster.namesrv()
    node = await cluster.add_broker()
    producer = Producer(cluster)
    await producer.send("orders", b"x")
    await settle()
    assert await route(cluster)
    await node.registrar.unregister_all()
    assert await route(cluster) == {}
    node.broker.topics.update([TopicConfig(topic_name="late")])
    await trio.sleep(60)
    assert await route(cluster) == {}
    assert await route(cluster, "late") == {}


@simulated
async def test_leaving_does_not_wait_for_a_namesrv_that_is_gone(cluster):
    node = await cluster.add_broker(namesrv_addr="10.0.0.1:9876;10.0.0.2:9876")
    start = cluster.clock.now_ms()
    await node.stop()
    assert cluster.clock.now_ms() - start < 1100


@simulated
async def test_a_crashed_brokers_route_ends_with_its_connection(cluster):
    await cluster.namesrv()
    node = await cluster.add_broker()
    await cluster.dial(node.address).ask(message())
    await settle()
    await node.crash()
    await settle()
    assert await route(cluster) == {}


# -- a list of namesrvs that changes ---------------------------------------------------------------------------------


class AddressServer:
    """An address server whose answer tests change; None lets it fail."""

    def __init__(self, text: str | None) -> None:
        self.text = text
        self.urls: list[str] = []

    async def fetch(self, url: str) -> str:
        self.urls.append(url)
        if self.text is None:
            raise AddressServerError(f"address server {url}: connection refused")
        return self.text


FIRST, SECOND = "10.0.0.1:9876", "10.0.0.2:9876"


def connected_namesrvs(node):
    return [namesrv._name for namesrv in node.registrar._connections if namesrv._connection is not None]


@simulated
async def test_a_broker_registers_with_the_namesrvs_that_an_address_server_lists(cluster, caplog):
    caplog.set_level("INFO", "gateway.broker.assembly")
    await cluster.namesrv()
    server = AddressServer(FIRST)
    await cluster.add_broker(
        namesrv_addr="",
        uses_address_server=True,
        address_server_domain="lists.example.org",
        address_server_subgroup="nsaddr-unit",
        fetch_list=server.fetch,
    )
    assert await route(cluster, "TBW102") == {"broker-a": ("10.0.1.1:10911", 8)}
    await trio.sleep(25)
    assert server.urls == ["http://lists.example.org:8080/rocketmq/nsaddr-unit"] * 3
    assert caplog.text.count("list of namesrvs changed") == 1


@simulated
async def test_a_namesrv_that_leaves_the_list_keeps_the_route_until_clients_have_read_the_list(cluster):
    await cluster.namesrv()
    server = AddressServer(f"{SECOND};{FIRST}")
    node = await cluster.add_broker(namesrv_addr="", uses_address_server=True, fetch_list=server.fetch)
    assert await route(cluster, "TBW102")
    server.text = SECOND
    await trio.sleep(registration.RETIREMENT_S)
    assert await route(cluster, "TBW102"), "stock clients read the list every two minutes"
    node.broker.topics.update([TopicConfig(topic_name="late")])
    await settle()
    assert await route(cluster, "late"), "changes reach it meanwhile"
    await trio.sleep(15)
    assert await route(cluster, "TBW102") == {}
    assert connected_namesrvs(node) == []
    assert [namesrv._name for namesrv in node.registrar._connections] == [SECOND]
    server.text = FIRST
    await trio.sleep(12)
    assert await route(cluster, "TBW102")


ALIAS = ("namesrv.example.org", 9876)
"""Another name of the namesrv at FIRST: connections to it have the same peer address."""


def add_alias(cluster):
    """Let dialling ALIAS lead to the namesrv at FIRST, as a host name does."""
    dial = cluster.dial

    def dial_name(address, *arguments, **more):
        return dial(("10.0.0.1", 9876) if tuple(address) == ALIAS else address, *arguments, **more)

    cluster.dial = dial_name


@simulated
async def test_a_broker_stays_registered_when_an_alias_of_a_listed_namesrv_retires(cluster):
    await cluster.namesrv()
    add_alias(cluster)
    server = AddressServer("namesrv.example.org:9876")
    node = await cluster.add_broker(
        namesrv_addr="",
        uses_address_server=True,
        fetch_list=server.fetch,
        register_nameserver_period_ms=60_000,
    )
    # The alias registers at 0, 60, 120 and 180 s, the listed address at 50, 110 and 170 s; the alias retires at 200 s.
    await trio.sleep(45)
    server.text = FIRST
    await trio.sleep(6)
    alias = next(iter(node.registrar._retired.values()))
    retired_s = None
    registrations_s = []
    build = node.registrar.registration_request

    def build_timed(connection):
        registrations_s.append(trio.current_time())
        return build(connection)

    node.registrar.registration_request = build_timed
    for _ in range(250):
        await trio.sleep(1)
        assert await route(cluster, "TBW102")
        await settle()  # It asks for the owner of its name first.
        if retired_s is None and alias.is_over:
            retired_s = trio.current_time()
            assert registrations_s[-1] > retired_s - 1, "registered again at once"
    assert retired_s is not None
    assert connected_namesrvs(node) == [FIRST]


@simulated
async def test_a_retired_connection_stops_registering_once_a_listed_one_has_the_same_peer(cluster):
    await cluster.namesrv()
    add_alias(cluster)
    server = AddressServer("namesrv.example.org:9876")
    node = await cluster.add_broker(namesrv_addr="", uses_address_server=True, fetch_list=server.fetch)
    (retired,) = node.registrar._connections
    registrations = []
    build = node.registrar.registration_request

    def build_counted(connection):
        registrations.append(connection)
        return build(connection)

    node.registrar.registration_request = build_counted
    server.text = FIRST
    await trio.sleep(11)
    registrations.clear()
    node.broker.topics.update([TopicConfig(topic_name="late")])
    await trio.sleep(100)
    listed = node.registrar._listed[("10.0.0.1", 9876)]
    assert retired._connection is not None
    assert set(registrations) == {listed._connection}
    server.text = "namesrv.example.org:9876"
    await trio.sleep(11)
    assert retired._connection in registrations, "it is listed again"
    registrations.clear()
    await trio.sleep(100)
    assert set(registrations) == {retired._connection}


@simulated
async def test_two_hosts_with_one_address_are_one_namesrv(cluster, caplog):
    caplog.set_level("INFO", "gateway.broker.assembly")
    namesrv = await cluster.namesrv()

    async def resolve(host):
        return ["10.0.0.1"]

    node = await cluster.add_broker(namesrv_addr="a:9876;b:9876", uses_dns=True, resolve_host=resolve)
    await trio.sleep(600)
    assert caplog.text.count("list of namesrvs changed") == 1
    assert len(namesrv.service.server.connections) == len(node.registrar._connections) == 1


@simulated
async def test_a_failed_first_look_up_is_repeated_after_a_second(cluster):
    await cluster.namesrv()
    server = AddressServer(None)
    await cluster.add_broker(namesrv_addr="", uses_address_server=True, fetch_list=server.fetch)
    await trio.sleep(4.5)
    assert len(server.urls) == 5
    server.text = FIRST
    await trio.sleep(1)
    assert await route(cluster, "TBW102")
    asked = len(server.urls)
    await trio.sleep(30)
    assert len(server.urls) == asked + 3, "with a list, the period of the setting counts"


@simulated
async def test_a_namesrv_that_comes_back_to_the_list_keeps_its_connection(cluster):
    namesrv = await cluster.namesrv()
    server = AddressServer(FIRST)
    node = await cluster.add_broker(namesrv_addr="", uses_address_server=True, fetch_list=server.fetch)
    connection = next(iter(namesrv.service.server.connections))
    server.text = SECOND
    await trio.sleep(60)
    server.text = f"{SECOND};{FIRST}"
    await trio.sleep(2 * registration.RETIREMENT_S)
    assert next(iter(namesrv.service.server.connections)) is connection
    assert await route(cluster, "TBW102")
    await node.stop()
    assert await route(cluster, "TBW102") == {}


@simulated
async def test_a_failing_address_server_keeps_the_last_list_and_is_logged_once(cluster, caplog):
    caplog.set_level("INFO", "gateway.broker.assembly")
    await cluster.namesrv()
    server = AddressServer(None)
    await cluster.add_broker(namesrv_addr="", uses_address_server=True, fetch_list=server.fetch)
    await trio.sleep(35)
    assert caplog.text.count("namesrvs not looked up") == 1
    server.text = FIRST
    await trio.sleep(12)
    assert caplog.text.count("looking namesrvs up works again") == 1
    assert await route(cluster, "TBW102")
    for text in (None, "", "no address", ";".join(f"10.9.0.{n}:1" for n in range(65))):
        server.text = text
        await trio.sleep(300)
        assert await route(cluster, "TBW102"), text
    assert caplog.text.count("namesrvs not looked up") == 2


@simulated
async def test_configured_namesrvs_win_over_the_address_server(cluster):
    await cluster.namesrv()
    server = AddressServer(SECOND)
    node = await cluster.add_broker(namesrv_addr=FIRST, uses_address_server=True, fetch_list=server.fetch)
    await trio.sleep(30)
    assert server.urls == []
    assert connected_namesrvs(node) == [FIRST]


@simulated
async def test_dns_changes_the_namesrvs_of_a_name(cluster, caplog):
    await cluster.namesrv()
    addresses = ["10.0.0.2"]
    hosts = []

    async def resolve(host):
        hosts.append(host)
        if not addresses:
            raise OSError(f"{host} is not known")
        return list(addresses)

    node = await cluster.add_broker(namesrv_addr="namesrv:9876", uses_dns=True, resolve_host=resolve)
    assert await route(cluster, "TBW102") == {}
    addresses.append("10.0.0.1")
    await trio.sleep(121)
    assert await route(cluster, "TBW102")
    addresses.clear()
    await trio.sleep(600)
    assert connected_namesrvs(node) == [FIRST]
    assert hosts[:2] == ["namesrv", "namesrv"]
    assert caplog.text.count("namesrvs not looked up") == 1


# -- strangers at the namesrv of the same process -------------------------------------------------------------------


def stranger_registration(address="6.6.6.6:10911", name="broker-a"):
    topics = {topic: {"topicName": topic, "perm": 6} for topic in ("TBW102", "evil")}
    request = RegisterBroker(
        broker_name=name, broker_addr=address, cluster_name="evil", ha_server_addr="", broker_id=0
    )
    request.body = fastjson.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": topics}})
    return request


@simulated
async def test_a_stranger_with_its_name_neither_displaces_nor_removes_a_local_broker(cluster):
    namesrv = await cluster.namesrv()
    await cluster.add_broker(local=namesrv)
    before = await route(cluster, "TBW102")
    stranger = cluster.dial(NAMESRV)
    with pytest.raises(RequestError, match="is a broker of this namesrv's process"):
        await stranger.ask(stranger_registration())
    with pytest.raises(RequestError, match="unregisters when it stops"):
        await stranger.ask(
            UnregisterBroker(
                broker_name="broker-a", broker_addr="10.0.1.1:10911", cluster_name="evil", broker_id=0
            )
        )
    data = (await stranger.ask(GetRouteInfoByTopic(topic="TBW102"))).data
    with pytest.raises(RequestError, match="create the topic at the broker"):
        await stranger.ask(RegisterTopicInNamesrv(topic="TBW102", data=data))
    stranger.close("leaves")
    await settle()
    assert await route(cluster, "TBW102") == before
    assert await route(cluster, "evil") == {}


@simulated
async def test_a_route_that_a_stranger_deleted_is_back_after_a_period(cluster):
    namesrv = await cluster.namesrv()
    node = await cluster.add_broker(local=namesrv, register_nameserver_period_ms=10_000)
    before = await route(cluster, "TBW102")
    stranger = cluster.dial(NAMESRV)
    for _ in range(2):
        await stranger.ask(DeleteTopicInNamesrv(topic="TBW102"))
        assert await route(cluster, "TBW102") == {}
        await trio.sleep(10)
        await settle()
        assert await route(cluster, "TBW102") == before
    node.broker.topics.delete("TBW102")
    await stranger.ask(DeleteTopicInNamesrv(topic="TBW102"))
    await trio.sleep(60)
    assert await route(cluster, "TBW102") == {}, "the broker does not have it any more"


@simulated
async def test_a_wiped_write_permission_stays_as_officially_until_the_topic_changes(cluster):
    """`mqadmin wipeWritePerm` empties a broker before it stops; a renewal of the same version must not undo that."""
    namesrv = await cluster.namesrv()
    node = await cluster.add_broker(local=namesrv)
    await cluster.dial(node.address).ask(message())
    await cluster.dial(NAMESRV).ask(WipeWritePermOfBroker(broker_name="broker-a"))
    await trio.sleep(120)
    await cluster.dial(node.address).ask(message("new"))
    assert await permission(cluster, "orders") == 4
    node.broker.topics.update([TopicConfig(topic_name="orders", perm=6)])
    assert await permission(cluster, "orders") == 6


async def permission(cluster, topic):
    data = (await cluster.dial(NAMESRV).ask(GetRouteInfoByTopic(topic=topic))).data
    return data.queue_datas[0].perm


@simulated
async def test_a_change_of_one_of_many_topics_registers_that_one(cluster, monkeypatch):
    namesrv = await cluster.namesrv()
    node = await cluster.add_broker(local=namesrv)
    topics = node.broker.topics
    topics.update([TopicConfig(topic_name=f"topic-{number}") for number in range(2_000)])
    made = []

    def counted(*arguments):
        made.append(1)
        return queue_data(*arguments)

    monkeypatch.setattr(registration, "queue_data", counted)
    for number in range(10):
        topics.create_if_absent(TopicConfig(topic_name=f"new-{number}"))
    assert len(made) == 10
    topics.delete("new-0")
    await trio.sleep(300)
    assert len(made) == 10
    assert await route(cluster, "new-9")


@simulated
async def test_a_broker_whose_namesrv_addr_names_its_own_process_keeps_its_route(cluster, caplog):
    namesrv = await cluster.namesrv()
    own = f"{NAMESRV[0]}:{NAMESRV[1]}"
    node = await cluster.add_broker(local=namesrv, host="auto", namesrv_addr=own)
    before = await route(cluster, "TBW102")
    assert before == {"broker-a": (f"{NAMESRV[0]}:10911", 8)}
    for broker in list(namesrv.service.server.connections):
        broker.close("lost")
    await trio.sleep(60)
    assert await route(cluster, "TBW102") == before
    await node.stop()
    assert await route(cluster, "TBW102") == {}


@simulated
@pytest.mark.parametrize("place", ["local", "elsewhere"])
async def test_routes_have_the_permission_of_their_broker(cluster, place):
    namesrv = await cluster.namesrv()
    node = await cluster.add_broker(local=namesrv if place == "local" else None)
    await cluster.dial(node.address).ask(message())
    await settle()
    assert await permission(cluster, "orders") == 6
    for broker_permission, shown in ((4, 4), (6, 6)):
        apply_broker_config(node.broker, replace(node.broker.config, broker_permission=broker_permission))
        await settle()
        assert await permission(cluster, "orders") == shown
    assert node.broker.topics.table["orders"].perm == 6


@simulated
@pytest.mark.parametrize("place", ["local", "elsewhere"])
async def test_routes_have_a_changed_address_of_their_broker_at_once(cluster, place):
    namesrv = await cluster.namesrv()
    node = await cluster.add_broker(local=namesrv if place == "local" else None)
    await cluster.dial(node.address).ask(message())
    apply_broker_config(node.broker, replace(node.broker.config, broker_ip="10.9.9.9"))
    await settle()
    assert (await route(cluster))["broker-a"][0] == "10.9.9.9:10911"
    await trio.sleep(200)
    assert (await route(cluster))["broker-a"][0] == "10.9.9.9:10911"
    await node.stop()
    assert await route(cluster) == {}


@simulated
async def test_many_topics_are_not_registered_at_every_change(cluster):
    namesrv = await cluster.namesrv()
    node = await cluster.add_broker()
    topics = node.broker.topics
    topics.update([TopicConfig(topic_name=f"topic-{number}") for number in range(6_000)])
    await trio.sleep(1)
    count = 0
    handlers = namesrv.service.server._handlers
    register = handlers[RegisterBroker.code]

    def counted(connection, command):
        nonlocal count
        count += 1
        return register(connection, command)

    handlers[RegisterBroker.code] = counted
    for number in range(100):
        topics.create_if_absent(TopicConfig(topic_name=f"new-{number}"))
        await trio.sleep(0.01)
    assert 9 <= count <= 12, "the pause is 0.1 s for 5,000 topics above 1,000"
    await trio.sleep(1)
    assert await route(cluster, "new-99")


@simulated
async def test_a_name_that_a_live_broker_has_is_not_taken_from_it(cluster, caplog):
    """The configuration of a production broker, started on a laptop, took the route of production."""
    await cluster.namesrv()
    owner = await cluster.add_broker()
    newcomer = await cluster.add_broker()
    assert newcomer.address != owner.address
    await trio.sleep(30)
    assert await route(cluster, "TBW102") == {"broker-a": (":".join(map(str, owner.address)), 8)}
    (refusal,) = [each for each in caplog.records if each.message == "registration with namesrv failed"]
    assert "the live broker at 10.0.1.1:10911 has the name broker-a there" in refusal.reason
    assert "takeOverBrokerName=true" in refusal.reason
    await owner.stop()
    await trio.sleep(5)
    assert (await route(cluster, "TBW102"))["broker-a"][0].startswith(newcomer.address[0])


@simulated
async def test_a_name_is_taken_over_if_that_is_wanted_or_its_broker_is_dead(cluster):
    await cluster.namesrv()
    owner = await cluster.add_broker()
    second = await cluster.add_broker(takes_over_name=True)
    assert (await route(cluster, "TBW102"))["broker-a"][0].startswith(second.address[0])
    await owner.stop()
    dead = RegisterBroker(
        broker_name="broker-x", broker_addr="10.9.9.9:10911", cluster_name="c", ha_server_addr="10.9.9.9:10912",
        broker_id=0, enable_acting_master=False, compressed=False, body_crc32=0,
    )  # fmt: skip
    await cluster.dial(NAMESRV).ask(dead)
    third = await cluster.add_broker("broker-x")
    assert (await route(cluster, "TBW102"))["broker-x"][0].startswith(third.address[0])


def new_topic():
    return UpdateAndCreateTopic(
        topic="new", default_topic="TBW102", read_queue_nums=4, write_queue_nums=4, perm=6,
        topic_filter_type="SINGLE_TAG",
    )  # fmt: skip


@simulated
async def test_a_slave_learns_where_its_master_is_and_tells_clients(cluster):
    namesrv = await cluster.namesrv()
    slave = await cluster.add_broker(broker_role="SLAVE", broker_id=1)
    with pytest.raises(RequestError, match="its master is not known at present"):
        await cluster.dial(slave.address).ask(message())
    master = await cluster.add_broker(host="10.0.1.77")
    await trio.sleep(31)
    for request in (message(), new_topic()):
        with pytest.raises(
            RequestError, match=r"the slave 1 of broker-a; its master is at 10\.0\.1\.77:10911"
        ):
            await cluster.dial(slave.address).ask(request)
    members = namesrv.service.routes.cluster_info("").broker_addr_table["broker-a"].broker_addrs
    assert members[0] == "10.0.1.77:10911"
    assert set(members) == {0, 1}
    assert slave.broker.store.max_physical_offset == 0
    await master.stop()
    await trio.sleep(31)
    assert slave.broker.replication.master_address == "10.0.1.77:10911", "it may come back"


@pytest.mark.parametrize("is_local", [False, True])
@simulated
async def test_a_slave_that_hears_of_another_master_copies_from_it_within_seconds(cluster, is_local):
    """The members of its group do not say where the log is copied from: that is in the answer to a registration."""
    namesrv = await cluster.namesrv()
    master = await cluster.add_broker(host="10.0.1.77")
    slave = await cluster.add_broker(
        local=namesrv if is_local else None,
        broker_role="SLAVE",
        broker_id=1,
        enable_slave_acting_master=True,
        register_nameserver_period_ms=60_000,
    )
    await trio.sleep(5)
    lookup = slave.broker.replication.slave.lookup
    assert lookup.master.address == ("10.0.1.77", 10911)
    await master.crash()
    await cluster.add_broker(host="10.0.1.88")
    await trio.sleep(10)
    assert lookup.master == Master(("10.0.1.88", 10912), ("10.0.1.88", 10911))


@simulated
async def test_a_former_master_that_comes_back_stores_nothing(cluster):
    """Another broker took over meanwhile: whatever this one acknowledged would be cut from its log."""
    await cluster.namesrv()
    files = MemoryFiles()
    former = await cluster.add_broker(files=files)
    await cluster.dial(former.address).ask(message(body=b"old"))
    await former.crash()
    slave = await cluster.add_broker(broker_role="SLAVE", broker_id=1)
    promote = ChangeBrokerRole(broker_role="ASYNC_MASTER", broker_id=0, force=True)
    await cluster.dial(slave.address).ask(promote, 30)
    back = await cluster.add_broker(files=files, host=former.address[0])
    client = cluster.dial(back.address)
    for request in (message(), new_topic()):
        with pytest.raises(
            RequestError, match=r"the live broker at 10\.0\.1\.2:10911 has the name"
        ) as refused:
            await client.ask(request)
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert bodies(await client.ask(pull())) == [b"old"]
    assert [health.name for health in back.service.tasks.failing] == ["ownership of the broker name"]
    await trio.sleep(40)
    members = (await route(cluster, "TBW102"))["broker-a"]
    assert members[0] == "10.0.1.2:10911"
    await slave.stop()
    await trio.sleep(5)
    await client.ask(message())
    assert not back.service.tasks.failing


@simulated
async def test_a_master_whose_store_was_moved_away_stores_nothing_beside_its_successor(cluster, monkeypatch):
    """The saved role of a master that was demoted by a request may be gone with its store.

    It asks before it serves: here it never registers.
    """
    await cluster.namesrv()
    successor = await cluster.add_broker()
    await trio.sleep(1)

    async def wait(registrar):
        await trio.sleep_forever()

    monkeypatch.setattr("gateway.broker.assembly.registration.Registrar.run", wait)
    empty = await cluster.add_broker()
    with pytest.raises(RequestError, match=r"the live broker at 10\.0\.1\.1:10911 has the name"):
        await cluster.dial(empty.address).ask(message())
    await cluster.dial(successor.address).ask(message())


@pytest.mark.parametrize("takes_over_name", [False, True])
@simulated
async def test_a_master_notices_at_its_next_registration_that_another_one_has_the_name(
    cluster, takes_over_name
):
    """Two brokers that were both told to take the name over would otherwise both store messages for ever."""
    await cluster.namesrv()
    first = await cluster.add_broker(takes_over_name=takes_over_name)
    await cluster.dial(first.address).ask(message())
    await trio.sleep(1)
    second = await cluster.add_broker(takes_over_name=True)
    await trio.sleep(31)
    assert (await route(cluster, "TBW102"))["broker-a"][0].startswith(second.address[0])
    await cluster.dial(second.address).ask(message())
    with pytest.raises(RequestError, match=r"the live broker at 10\.0\.1\.2:10911 has the name"):
        await cluster.dial(first.address).ask(message())
    assert [health.name for health in first.service.tasks.failing] == ["ownership of the broker name"]
    await second.stop()
    await trio.sleep(5)
    await cluster.dial(first.address).ask(message())
    assert not first.service.tasks.failing


@simulated
async def test_a_former_address_of_the_master_is_not_another_broker(cluster):
    """It leads to this broker still, through an address translation for example."""
    await cluster.namesrv()
    node = await cluster.add_broker()
    other = await cluster.add_broker("broker-b")
    node.registrar.note_registered_address("{}:{}".format(*other.address))
    request = RegisterBroker(
        broker_name="broker-a", broker_addr="{}:{}".format(*other.address), cluster_name="DefaultCluster",
        ha_server_addr="10.9.9.9:10912", broker_id=0, enable_acting_master=False, compressed=False, body_crc32=0,
    )  # fmt: skip
    await cluster.dial(NAMESRV).ask(request)
    await trio.sleep(31)
    assert not node.service.tasks.failing
    assert (await route(cluster, "TBW102"))["broker-a"][0].startswith(node.address[0])


def test_a_silent_namesrv_delays_one_route_query_only():
    asked = []

    class Asked:
        failed_route_query = False

        def __init__(self, name, answer):
            self.name, self.answer = name, answer

        async def query_route(self, topic):
            asked.append(self.name)
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    silent, good = Asked("silent", RemotingTimeout("no answer")), Asked("good", TopicRouteData())
    registrar = SimpleNamespace(_local=None, _connections=[silent, good])
    for _ in range(3):
        assert trio.run(registration.Registrar.find_route, registrar, "t") is good.answer
    assert asked == ["silent", "good", "good", "good"]
    good.answer, silent.answer = RemotingTimeout("no answer"), TopicRouteData()
    asked.clear()
    for _ in range(2):
        assert trio.run(registration.Registrar.find_route, registrar, "t") is silent.answer
    assert asked == ["good", "silent", "silent"]


async def former_and_new_master(cluster):
    """Return a master, and a former one of its name that is back and stores nothing."""
    new = await cluster.add_broker()
    former = await cluster.add_broker()
    await trio.sleep(1)
    await assert_stores_nothing(cluster, former)
    return new, former


async def assert_stores_nothing(cluster, node):
    with pytest.raises(RequestError, match=r"the live broker at .* has the name"):
        await cluster.dial(node.address).ask(message())


@simulated
async def test_a_former_master_stores_nothing_when_the_namesrv_has_forgotten_its_successor(cluster):
    namesrv = await cluster.namesrv()
    new, former = await former_and_new_master(cluster)
    await namesrv.stop()
    await trio.sleep(5)
    await assert_stores_nothing(cluster, former)
    handlers = (await cluster.namesrv()).service.server._handlers
    register = handlers[RegisterBroker.code]

    def lose_new(connection, command):
        return None if command.ext["brokerAddr"].startswith(new.address[0]) else register(connection, command)

    handlers[RegisterBroker.code] = lose_new
    await trio.sleep(40)
    await assert_stores_nothing(cluster, former)
    assert await route(cluster, "TBW102") == {}
    handlers[RegisterBroker.code] = register
    await new.stop()
    await trio.sleep(5)
    await cluster.dial(former.address).ask(message())


@simulated
async def test_a_former_master_does_not_register_with_another_namesrv(cluster, monkeypatch):
    await cluster.namesrv()
    new = await cluster.add_broker()
    with monkeypatch.context() as patch:
        patch.setattr("gateway.tests.cluster.NAMESRV", ("10.0.0.2", 9876))
        routes = (await cluster.namesrv()).service.routes
    former = await cluster.add_broker(namesrv_addr="10.0.0.2:9876;10.0.0.1:9876")
    await trio.sleep(40)
    assert routes.cluster_info("").broker_addr_table == {}
    await assert_stores_nothing(cluster, former)
    await new.stop()
    await trio.sleep(5)
    assert list(routes.cluster_info("").broker_addr_table) == ["broker-a"]
    await cluster.dial(former.address).ask(message())


@simulated
async def test_a_former_master_that_is_to_wait_for_its_slaves_stores_nothing_still(cluster):
    await cluster.namesrv()
    _, former = await former_and_new_master(cluster)
    await former.service.rebuild(partial(change_config, broker_role="SYNC_MASTER"))
    await assert_stores_nothing(cluster, former)
    assert former.service.tasks.failing


@simulated
async def test_a_former_master_serves_again_when_its_successor_becomes_a_slave(cluster):
    await cluster.namesrv()
    new, former = await former_and_new_master(cluster)
    demote = ChangeBrokerRole(broker_role="SLAVE", broker_id=1, force=True)
    await cluster.dial(new.address).ask(demote, 30)
    await trio.sleep(5)
    await cluster.dial(former.address).ask(message())


@simulated
async def test_a_master_whose_name_is_taken_is_advised_to_become_a_slave(cluster, caplog):
    await cluster.namesrv()
    await former_and_new_master(cluster)
    (refusal,) = [record for record in caplog.records if record.message == "registration with namesrv failed"]
    assert "make this one its slave (rmq-gateway broker demote)" in refusal.reason


@simulated
async def test_a_former_master_does_not_register_with_the_namesrv_of_its_process(cluster, monkeypatch):
    await cluster.namesrv()
    new = await cluster.add_broker()
    with monkeypatch.context() as patch:
        patch.setattr("gateway.tests.cluster.NAMESRV", ("10.0.0.2", 9876))
        own = await cluster.namesrv()
    former = await cluster.add_broker(local=own, namesrv_addr="10.0.0.1:9876")
    await trio.sleep(40)
    assert own.service.routes.cluster_info("").broker_addr_table == {}
    await assert_stores_nothing(cluster, former)
    await new.stop()
    await trio.sleep(5)
    assert list(own.service.routes.cluster_info("").broker_addr_table) == ["broker-a"]
    await cluster.dial(former.address).ask(message())
