"""The namesrv's tables on a fake clock: registrations, their end, and the answers to clients."""

from math import inf
from typing import Any

import pytest

from gateway.namesrv.route_table import BrokerKey, Registration, RegistrationResult, RouteTable
from remoting.bodies.queues import DataVersion
from remoting.bodies.routes import QueueData, TopicQueueMappingInfo
from remoting.bodies.topics import TopicConfig

HERE = "10.0.0.1"


class Now:
    """A monotonic clock that stands still."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def topics(*names: str, **settings: int) -> dict[str, TopicConfig]:
    given: dict[str, int] = {"read_queue_nums": 4, "write_queue_nums": 8, "perm": 6} | settings
    return {name: TopicConfig(topic_name=name, **given) for name in names}


def registration(name: str = "broker-a", broker_id: int = 0, **changes) -> Registration:
    settings: dict[str, Any] = {
        "cluster": "C",
        "broker_name": name,
        "broker_id": broker_id,
        "address": f"{name}:{broker_id}",
        "ha_address": f"{name}-ha:{broker_id}",
        "topics": topics("T", "U"),
        "data_version": DataVersion(counter=1, timestamp=1),
    }
    return Registration(**(settings | changes))


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def table(now: Now) -> RouteTable:
    return RouteTable(now)


def perms(table: RouteTable, topic: str = "T") -> dict[str, int]:
    route = table.topic_route(topic, HERE)
    return {each.broker_name: each.perm for each in route.queue_datas} if route else {}


def addresses(table: RouteTable, topic: str = "T", host: str = HERE) -> dict[str, dict[int, str]]:
    route = table.topic_route(topic, host)
    return {each.broker_name: each.broker_addrs for each in route.broker_datas} if route else {}


def test_a_registered_topic_has_a_route(table: RouteTable) -> None:
    assert table.register(registration()) == RegistrationResult()
    route = table.topic_route("T", HERE)
    assert route is not None
    assert route.to_value() == {
        "queueDatas": [
            {"brokerName": "broker-a", "readQueueNums": 4, "writeQueueNums": 8, "perm": 6, "topicSysFlag": 0}
        ],
        "brokerDatas": [
            {
                "cluster": "C",
                "brokerName": "broker-a",
                "brokerAddrs": {0: "broker-a:0"},
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
    }
    assert table.topic_route("V", HERE) is None


def test_auto_addresses_differ_by_asker(table: RouteTable) -> None:
    table.register(registration(address="auto:10911"))
    assert addresses(table, host="1.1.1.1") == {"broker-a": {0: "1.1.1.1:10911"}}
    assert addresses(table, host="::1") == {"broker-a": {0: "[::1]:10911"}}
    assert table.cluster_info("2.2.2.2").broker_addr_table["broker-a"].broker_addrs == {0: "2.2.2.2:10911"}
    assert table.broker_member_group("C", "broker-a", "2.2.2.2").broker_addrs == {0: "2.2.2.2:10911"}
    assert table.system_topics("2.2.2.2").broker_addr == "2.2.2.2:10911"
    assert table.data_version(BrokerKey("C", "auto:10911")) is not None


def test_queues_change_only_with_the_version(table: RouteTable) -> None:
    table.register(registration())
    table.register(registration(topics=topics("T", "U", perm=4)))
    assert perms(table) == {"broker-a": 6}
    table.register(
        registration(topics=topics("T", "U", perm=4), data_version=DataVersion(counter=2, timestamp=1))
    )
    assert perms(table) == {"broker-a": 4}


def test_a_version_the_broker_goes_on_changing_is_noticed(table: RouteTable) -> None:
    version = DataVersion(counter=1)
    table.register(registration(data_version=version))
    version.counter = 2
    assert table.is_version_changed(BrokerKey("C", "broker-a:0"), version)
    table.register(registration(topics=topics("T", "U", perm=2), data_version=version))
    assert perms(table) == {"broker-a": 2}


def test_a_missing_topic_is_added_whatever_the_version(table: RouteTable) -> None:
    table.register(registration())
    table.delete_topic("T")
    table.register(registration())
    assert perms(table) == {"broker-a": 6}


def test_topics_a_registration_lacks_stay_unless_configured(table: RouteTable) -> None:
    table.register(registration())
    later = registration(topics=topics("U", "V"), data_version=DataVersion(counter=2))
    table.register(later)
    assert table.topic_list().topic_list == ["T", "U", "V"]
    table.delete_missing_topics = True
    table.register(later)
    assert table.topic_list().topic_list == ["U", "V"]


def test_a_single_topic_needs_a_broker(table: RouteTable) -> None:
    assert table.register(registration(topics=topics("T"))) is None
    assert table.cluster_info(HERE).to_value() == {"brokerAddrTable": {}, "clusterAddrTable": {}}
    table.register(registration())
    assert (
        table.register(registration(topics=topics("V"), data_version=DataVersion(counter=2)))
        == RegistrationResult()
    )
    assert perms(table, "V") == {"broker-a": 6}


def test_replicas_hear_of_their_master_and_bring_no_topics(table: RouteTable) -> None:
    table.register(registration())
    replica = registration(broker_id=1, topics=topics("T", "X"))
    assert table.register(replica) == RegistrationResult("broker-a-ha:0", "broker-a:0")
    assert addresses(table) == {"broker-a": {0: "broker-a:0", 1: "broker-a:1"}}
    assert table.topic_route("X", HERE) is None


def test_an_address_serves_one_id(table: RouteTable) -> None:
    table.register(registration(broker_id=1, address="a:1"))
    table.register(registration(broker_id=0, address="a:1"))
    assert addresses(table) == {"broker-a": {0: "a:1"}}


def test_an_older_state_does_not_push_out_the_living(table: RouteTable) -> None:
    table.register(registration(data_version=DataVersion(state_version=2)))
    late = registration(address="other:0", data_version=DataVersion(state_version=1))
    assert table.register(late) == RegistrationResult()
    assert addresses(table) == {"broker-a": {0: "broker-a:0"}}
    table.register(registration(address="other:0", data_version=DataVersion(state_version=3)))
    assert addresses(table) == {"broker-a": {0: "other:0"}}


def test_unregister_forgets_all_with_the_last_address(table: RouteTable) -> None:
    table.register(registration())
    table.register(registration("broker-b", topics=topics("T", "B")))
    table.unregister("C", "broker-a:0", "broker-a")
    assert table.topic_list().topic_list == ["T", "B"]
    assert addresses(table) == {"broker-b": {0: "broker-b:0"}}
    table.unregister("C", "broker-b:0", "broker-b")
    assert table.cluster_info(HERE).to_value() == {"brokerAddrTable": {}, "clusterAddrTable": {}}
    assert table.topic_list().topic_list == []
    table.unregister("C", "broker-b:0", "broker-b")


def test_silent_brokers_expire(table: RouteTable, now: Now) -> None:
    """The official default is 120 s; equal is not yet over."""
    table.register(registration(), "connection a")
    table.register(registration("broker-b", timeout_ms=5_000), "connection b")
    table.register(registration("broker-c", address="auto:1", timeout_ms=inf))
    now.seconds += 5
    assert table.expire_silent_brokers() == []
    now.seconds += 0.001
    assert table.expire_silent_brokers() == ["connection b"]
    now.seconds += 114.999
    assert table.expire_silent_brokers() == []
    now.seconds += 0.1
    assert table.expire_silent_brokers() == ["connection a"]
    now.seconds += 1e9
    assert table.expire_silent_brokers() == []
    assert list(addresses(table)) == ["broker-c"]


def test_signs_of_life(table: RouteTable, now: Now) -> None:
    key = BrokerKey("C", "broker-a:0")
    table.register(registration(timeout_ms=5_000))
    now.seconds += 4
    table.record_heartbeat(key)
    table.record_heartbeat(BrokerKey("C", "unknown:0"))
    now.seconds += 4
    assert table.expire_silent_brokers() == []
    assert addresses(table)
    table.register(registration(timeout_ms=5_000))
    now.seconds += 4
    assert addresses(table)
    now.seconds += 1.1
    table.expire_silent_brokers()
    assert not addresses(table)


def test_a_closed_connection_takes_its_brokers_along(table: RouteTable) -> None:
    old, new = object(), object()
    table.register(registration(), old)
    table.register(registration("broker-b"), old)
    table.register(registration("broker-b"), new)
    table.unregister_owned_by(old)
    assert list(addresses(table)) == ["broker-b"]
    table.unregister_owned_by(new)
    assert not addresses(table)


def test_data_versions(table: RouteTable) -> None:
    key = BrokerKey("C", "broker-a:0")
    assert table.is_version_changed(key, DataVersion())
    table.register(registration())
    assert not table.is_version_changed(key, DataVersion(counter=1, timestamp=1))
    assert table.is_version_changed(key, DataVersion(counter=1, timestamp=2))
    assert table.is_version_changed(key, None)
    assert table.data_version(key) == DataVersion(counter=1, timestamp=1)


def test_write_permission_of_a_broker(table: RouteTable) -> None:
    table.register(registration(topics=topics("T", "U", perm=7)))
    table.register(registration("broker-b"))
    assert table.set_writable("broker-a", False) == 2
    assert perms(table) == {"broker-a": 5, "broker-b": 6}
    table.register(registration(topics=topics("T", "U", perm=7)))
    assert perms(table) == {"broker-a": 5, "broker-b": 6}
    assert table.set_writable("broker-a", True) == 2
    assert perms(table) == {"broker-a": 6, "broker-b": 6}
    assert table.set_writable("broker-z", True) == 0


def test_delete_topic_everywhere_or_in_a_cluster(table: RouteTable) -> None:
    table.register(registration())
    table.register(registration("broker-b", cluster="D"))
    table.delete_topic("T", "D")
    assert perms(table) == {"broker-a": 6}
    table.delete_topic("T", "unknown")
    table.delete_topic("T", "C")
    assert table.topic_route("T", HERE) is None
    table.delete_topic("U")
    assert table.topic_list().topic_list == []


def test_topics_by_hand(table: RouteTable) -> None:
    table.register(registration())
    assert table.register_topic("X", [QueueData(broker_name="broker-a", perm=4)])
    assert perms(table, "X") == {"broker-a": 4}
    assert not table.register_topic("Y", [QueueData(broker_name="broker-a"), QueueData(broker_name="nobody")])
    assert table.topic_route("Y", HERE) is None
    assert table.register_topic("Z", [])
    assert table.topic_route("Z", HERE) is None


def test_lists(table: RouteTable) -> None:
    table.register(registration())
    table.register(registration("broker-b", cluster="D", topics=topics("U", "V")))
    assert table.topics_of_cluster("C").topic_list == ["T", "U"]
    assert table.topics_of_cluster("D").topic_list == ["U", "V"]
    assert table.topics_of_cluster("E").topic_list == []
    assert table.system_topics(HERE).topic_list == ["C", "broker-a", "D", "broker-b"]
    assert table.cluster_info(HERE).cluster_addr_table == {"C": ["broker-a"], "D": ["broker-b"]}


def test_answers_without_any_broker(table: RouteTable) -> None:
    assert table.system_topics(HERE).to_value() == {"topicList": []}
    assert table.broker_member_group("C", "x", HERE).to_value() == {
        "cluster": "C",
        "brokerName": "x",
        "brokerAddrs": {},
    }


def test_unit_flags(table: RouteTable) -> None:
    given = {flag: topics(f"flag{flag}", topic_sys_flag=flag)[f"flag{flag}"] for flag in range(4)}
    table.register(registration(topics={each.topic_name: each for each in given.values()}))
    assert table.unit_topics(unit=True).topic_list == ["flag1", "flag3"]
    assert table.unit_topics(unit_sub=True).topic_list == ["flag2", "flag3"]
    assert table.unit_topics(unit=False, unit_sub=True).topic_list == ["flag2"]


def test_filter_servers_and_static_topics(table: RouteTable) -> None:
    mapping = TopicQueueMappingInfo(topic="T", bname="broker-a", total_queues=4)
    table.register(registration(address="auto:1", filter_servers=["f:1"], mappings={"T": mapping}))
    route = table.topic_route("T", HERE)
    assert route is not None
    assert route.filter_server_table == {"10.0.0.1:1": ["f:1"]}
    assert route.topic_queue_mapping_by_broker == {"broker-a": mapping}
    table.register(registration(address="auto:1", filter_servers=None))
    assert table.topic_route("T", HERE) == route
    table.register(registration(address="auto:1", filter_servers=[]))
    route = table.topic_route("T", HERE)
    assert route is not None
    assert route.filter_server_table == {}


def test_the_lowest_replica_acts_as_master_where_that_is_on(table: RouteTable) -> None:
    table.register(registration(acting_master=True))
    table.register(registration(broker_id=1, acting_master=True))
    table.register(registration(broker_id=2, acting_master=True))
    table.unregister("C", "broker-a:0", "broker-a")
    assert perms(table) == {"broker-a": 4}
    assert addresses(table) == {"broker-a": {1: "broker-a:1", 2: "broker-a:2"}}
    table.acting_master = True
    assert addresses(table) == {"broker-a": {0: "broker-a:1", 2: "broker-a:2"}}
    table.register(registration(acting_master=True, data_version=DataVersion(counter=9)))
    assert addresses(table) == {"broker-a": {0: "broker-a:0", 1: "broker-a:1", 2: "broker-a:2"}}


def test_a_prime_replica_brings_topics_read_only(table: RouteTable) -> None:
    table.register(registration(broker_id=1, acting_master=True))
    assert perms(table) == {"broker-a": 4}
    table.register(registration("broker-b", broker_id=1))
    assert perms(table) == {"broker-a": 4}
