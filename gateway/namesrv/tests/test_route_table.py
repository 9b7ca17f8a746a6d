"""The namesrv's tables on a fake clock: registrations, their end, and the answers to clients."""

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from gateway.config.limits import NamesrvLimits
from gateway.namesrv.registered_broker import weight_of
from gateway.namesrv.registration import Registration, queue_data
from gateway.namesrv.route_table import RegistrationResult, RouteTable
from remoting.bodies.queues import DataVersion
from remoting.bodies.routes import QueueData, TopicQueueMappingInfo
from remoting.bodies.topics import TopicConfig
from remoting.errors import RequestError

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


def queues(broker: str, given: dict[str, TopicConfig]) -> dict[str, QueueData]:
    return {topic: queue_data(broker, config) for topic, config in given.items()}


def registration(name: str = "broker-a", broker_id: int = 0, **changes) -> Registration:
    settings: dict[str, Any] = {
        "cluster": "C",
        "broker_name": name,
        "broker_id": broker_id,
        "address": f"{name}:{broker_id}",
        "ha_address": f"{name}-ha:{broker_id}",
        "data_version": DataVersion(counter=1, timestamp=1),
    }
    settings |= changes
    settings["queues"] = queues(name, settings.pop("topics", topics("T", "U")))
    return Registration(**settings)


def register_local(table: RouteTable, name: str = "broker-a", **changes) -> None:
    given = registration(name, **({"address": "auto:10911"} | changes))
    table.register_local(given, given.queues)


def reason(call: Any, *arguments: Any) -> str:
    with pytest.raises(RequestError) as error:
        call(*arguments)
    assert error.value.code == 1
    assert error.value.remark is not None
    return error.value.remark


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
    assert table.register(registration()) == RegistrationResult(is_change=True)
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
    register_local(table)
    assert addresses(table, host="1.1.1.1") == {"broker-a": {0: "1.1.1.1:10911"}}
    assert addresses(table, host="::1") == {"broker-a": {0: "[::1]:10911"}}
    assert table.cluster_info("2.2.2.2").broker_addr_table["broker-a"].broker_addrs == {0: "2.2.2.2:10911"}
    assert table.broker_member_group("C", "broker-a", "2.2.2.2").broker_addrs == {0: "2.2.2.2:10911"}
    assert table.system_topics("2.2.2.2").broker_addr == "2.2.2.2:10911"
    assert table.data_version("C", "broker-a", "auto:10911") is not None


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
    table.reconfigure(NamesrvLimits(), delete_missing_topics=True)
    table.register(later)
    assert table.topic_list().topic_list == ["U", "V"]


def test_a_single_topic_needs_a_broker(table: RouteTable) -> None:
    assert reason(table.register, registration(topics=topics("T"))) == "register broker failed"
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
    assert table.register(replica) == RegistrationResult("broker-a-ha:0", "broker-a:0", is_change=True)
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
    table.unregister("broker-a", "broker-a:0")
    assert table.topic_list().topic_list == ["T", "B"]
    assert addresses(table) == {"broker-b": {0: "broker-b:0"}}
    table.unregister("broker-b", "broker-b:0")
    assert table.cluster_info(HERE).to_value() == {"brokerAddrTable": {}, "clusterAddrTable": {}}
    assert table.topic_list().topic_list == []
    table.unregister("broker-b", "broker-b:0")


def test_silent_brokers_expire(table: RouteTable, now: Now) -> None:
    """The official default is 120 s; equal is not yet over."""
    table.register(registration(), "connection a")
    table.register(registration("broker-b", timeout_ms=5_000), "connection b")
    register_local(table, "broker-c")
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
    table.register(registration(timeout_ms=5_000))
    now.seconds += 4
    table.record_heartbeat("C", "broker-a", "broker-a:0")
    table.record_heartbeat("C", "broker-a", "unknown:0")
    table.record_heartbeat("C", "unknown", "broker-a:0")
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
    assert table.data_version("C", "broker-a", "broker-a:0") is None
    table.register(registration())
    assert table.data_version("C", "broker-a", "broker-a:0") == DataVersion(counter=1, timestamp=1)
    assert table.data_version("D", "broker-a", "broker-a:0") is None


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
    table.register(registration(filter_servers=["f:1"], mappings={"T": mapping}))
    route = table.topic_route("T", HERE)
    assert route is not None
    assert route.filter_server_table == {"broker-a:0": ["f:1"]}
    assert route.topic_queue_mapping_by_broker == {"broker-a": mapping}
    table.register(registration(filter_servers=None))
    assert table.topic_route("T", HERE) == route
    table.register(registration(filter_servers=[]))
    route = table.topic_route("T", HERE)
    assert route is not None
    assert route.filter_server_table == {}


def test_the_lowest_replica_acts_as_master_where_that_is_on(table: RouteTable) -> None:
    table.register(registration(acting_master=True))
    table.register(registration(broker_id=1, acting_master=True))
    table.register(registration(broker_id=2, acting_master=True))
    table.unregister("broker-a", "broker-a:0")
    assert perms(table) == {"broker-a": 4}
    assert addresses(table) == {"broker-a": {1: "broker-a:1", 2: "broker-a:2"}}
    table.reconfigure(NamesrvLimits(), acting_master=True)
    assert addresses(table) == {"broker-a": {0: "broker-a:1", 2: "broker-a:2"}}
    table.register(registration(acting_master=True, data_version=DataVersion(counter=9)))
    assert addresses(table) == {"broker-a": {0: "broker-a:0", 1: "broker-a:1", 2: "broker-a:2"}}


def test_a_prime_replica_brings_topics_read_only(table: RouteTable) -> None:
    table.register(registration(broker_id=1, acting_master=True))
    assert perms(table) == {"broker-a": 4}
    table.register(registration("broker-b", broker_id=1))
    assert perms(table) == {"broker-a": 4}


# -- strangers and brokers of this process ------------------------------------------------------------------------


def queues_of(table: RouteTable, topic: str = "T") -> dict[str, tuple[int, int]]:
    route = table.topic_route(topic, HERE)
    return (
        {each.broker_name: (each.write_queue_nums, each.perm) for each in route.queue_datas} if route else {}
    )


def test_nobody_else_registers_a_local_broker(table: RouteTable, caplog: pytest.LogCaptureFixture) -> None:
    register_local(table)
    for version in (DataVersion(), DataVersion(state_version=(1 << 63) - 1)):
        stranger = registration(address="6.6.6.6:1", topics=topics("T", "X"), data_version=version)
        remark = reason(table.register, stranger, "stranger", HERE)
        assert "broker-a with broker id 0 is a broker of this namesrv's process, at 10.0.0.1:10911" in remark
        assert "6.6.6.6:1 needs another brokerName" in remark
    table.unregister_owned_by("stranger")
    assert addresses(table) == {"broker-a": {0: "10.0.0.1:10911"}}
    assert table.topic_route("X", HERE) is None
    records = [each for each in caplog.records if each.levelname == "WARNING"]
    seen = [(each.address, each.other) for each in records]  # type: ignore[attr-defined]
    assert seen == [("6.6.6.6:1", "10.0.0.1:10911")] * 2


@pytest.mark.parametrize("address", ["auto:10911", "10.0.0.1:10911"])
def test_a_local_broker_may_also_register_by_request_which_changes_nothing(
    table: RouteTable, address: str
) -> None:
    """Its namesrvAddr may name the namesrv of its own process; a stranger who sends the same gains nothing."""
    register_local(table)
    own = registration(address=address, topics=topics("T", "X", perm=0), timeout_ms=1)
    assert table.register(own, "connection", HERE) == RegistrationResult()
    table.unregister_owned_by("connection")
    assert queues_of(table) == {"broker-a": (8, 6)}
    assert table.topic_route("X", HERE) is None
    assert "unregisters when it stops" in reason(table.unregister, "broker-a", address, HERE)
    assert addresses(table) == {"broker-a": {0: "10.0.0.1:10911"}}
    table.unregister_local("broker-a", 0)
    assert addresses(table) == {}


def test_a_local_brokers_address_serves_no_other_id(table: RouteTable) -> None:
    register_local(table)
    for address in ("auto:10911", "10.0.0.1:10911"):
        assert "and its own address" in reason(
            table.register, registration(broker_id=5, address=address), "", HERE
        )
    assert addresses(table) == {"broker-a": {0: "10.0.0.1:10911"}}


def test_replicas_of_a_local_broker_come_and_go(table: RouteTable) -> None:
    register_local(table)
    replica = registration(broker_id=1, acting_master=True, zone="z", topics=topics("T", "X", perm=4))
    assert table.register(replica, "replica", HERE).master_address == "10.0.0.1:10911"
    assert addresses(table) == {"broker-a": {0: "10.0.0.1:10911", 1: "broker-a:1"}}
    route = table.topic_route("T", HERE)
    assert route is not None
    assert (route.broker_datas[0].zone_name, route.broker_datas[0].enable_acting_master) == (None, False)
    table.unregister_owned_by("replica")
    assert addresses(table) == {"broker-a": {0: "10.0.0.1:10911"}}
    assert queues_of(table) == {"broker-a": (8, 6)}
    assert table.topic_route("X", HERE) is None


def test_a_replica_elsewhere_takes_over_from_a_local_broker_that_became_a_slave(table: RouteTable) -> None:
    register_local(table)
    table.register(registration(broker_id=1), "replica", HERE)
    assert reason(table.register, registration(broker_id=0, address="broker-a:1"), "replica", HERE)
    register_local(table, broker_id=2)
    promoted = registration(broker_id=0, address="broker-a:1", topics=topics("T", "N", write_queue_nums=3))
    table.register(promoted, "replica", HERE)
    assert addresses(table) == {"broker-a": {0: "broker-a:1", 2: "10.0.0.1:10911"}}
    assert queues_of(table, "N") == {"broker-a": (3, 6)}
    slave = registration(broker_id=2, address="auto:10911", topics=topics("T", write_queue_nums=1))
    answer = table.register_local(slave, slave.queues, HERE)
    assert (answer.master_address, answer.ha_address) == ("broker-a:1", "broker-a-ha:0")
    assert queues_of(table) == {"broker-a": (3, 6)}, "topics come from the master"
    assert table.topic_route("N", HERE) is not None


def elected(epoch: int, broker_id: int = 0, **changes: Any) -> Registration:
    version = DataVersion(state_version=epoch, counter=1, timestamp=1)
    return registration(broker_id=broker_id, data_version=version, **changes)


def test_a_master_that_a_controller_elects_succeeds_a_local_one(
    table: RouteTable, caplog: pytest.LogCaptureFixture
) -> None:
    """The local one may not know yet: it hears of it from the controller, or hangs."""
    local = elected(3, address="auto:10911", is_elected=True)
    table.register_local(local, local.queues)
    table.register(elected(3, 2, address="broker-a:2"), "replica", HERE)
    for epoch in (2, 3):
        late = elected(epoch, address="broker-a:2", topics=topics("T", "X"))
        assert "is a broker of this namesrv's process" in reason(table.register, late, "replica", HERE)
    promoted = elected(4, address="broker-a:2", topics=topics("T", "N", write_queue_nums=3))
    assert table.register(promoted, "replica", HERE).is_change
    assert addresses(table) == {"broker-a": {0: "broker-a:2"}}
    assert queues_of(table) == {"broker-a": (3, 6)}
    assert table.topic_route("N", HERE) is not None
    # The former master registers what it knows, and then as a slave.
    assert table.register_local(local, local.queues) == RegistrationResult()
    table.unregister_local("broker-a", 0)
    assert addresses(table) == {"broker-a": {0: "broker-a:2"}}
    slave = elected(4, 1, address="auto:10911", is_elected=True, topics=topics("T", write_queue_nums=1))
    assert table.register_local(slave, slave.queues, HERE).master_address == "broker-a:2"
    assert addresses(table) == {"broker-a": {0: "broker-a:2", 1: "10.0.0.1:10911"}}
    assert queues_of(table) == {"broker-a": (3, 6)}
    # And it may be elected again.
    again = elected(5, address="auto:10911", is_elected=True)
    table.register_local(again, again.queues)
    assert addresses(table) == {"broker-a": {0: "10.0.0.1:10911"}}
    assert "is a broker of this namesrv's process" in reason(table.register, promoted, "replica", HERE)


def test_a_slave_of_a_newer_epoch_takes_no_place_of_a_local_one(table: RouteTable) -> None:
    local = elected(3, 1, address="auto:10911", is_elected=True)
    table.register_local(local, local.queues)
    assert "with broker id 1" in reason(table.register, elected(9, 1, address="6.6.6.6:1"), "x", HERE)
    assert "its own address" in reason(table.register, elected(9, address="10.0.0.1:10911"), "x", HERE)
    assert addresses(table) == {"broker-a": {1: "10.0.0.1:10911"}}


def test_a_local_broker_displaces_who_came_before(
    table: RouteTable, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "gateway.namesrv")
    mapping = TopicQueueMappingInfo(topic="T", bname="broker-a")
    early = registration(address="6.6.6.6:1", topics=topics("T", "X"), mappings={"T": mapping})
    table.register(early, "stranger")
    register_local(table)
    assert addresses(table) == {"broker-a": {0: "10.0.0.1:10911"}}
    assert table.topic_list().topic_list == ["T", "U"]
    route = table.topic_route("T", HERE)
    assert route is not None
    assert route.topic_queue_mapping_by_broker is None
    table.unregister_owned_by("stranger")
    assert addresses(table) == {"broker-a": {0: "10.0.0.1:10911"}}
    (record,) = caplog.records
    assert (record.message, record.address, record.other) == (  # type: ignore[attr-defined]
        "broker replaced by another address",
        "auto:10911",
        "6.6.6.6:1",
    )


def test_topics_of_a_local_broker_come_from_it_alone(table: RouteTable) -> None:
    register_local(table)
    for topic in ("T", "X"):
        assert "create the topic at the broker" in reason(
            table.register_topic, topic, [QueueData(broker_name="broker-a", perm=0)]
        )
    assert queues_of(table) == {"broker-a": (8, 6)}
    assert table.topic_route("X", HERE) is None


def test_deleted_topics_of_a_local_broker_are_missing_until_it_registers_them(table: RouteTable) -> None:
    register_local(table)
    assert table.missing_topics("broker-a", topics("T", "U")) == set()
    table.delete_topic("T")
    assert table.missing_topics("broker-a", topics("T", "U")) == {"T"}
    assert table.missing_topics("nobody", topics("T")) == {"T"}
    given = registration(address="auto:10911", topics=topics("T"))
    table.register_local(given, {"T", "U"})
    assert queues_of(table) == {"broker-a": (8, 6)}
    assert queues_of(table, "U") == {"broker-a": (8, 6)}


def test_a_renewal_without_changes_changes_no_answer(table: RouteTable) -> None:
    register_local(table)
    table.register(registration("broker-b"))
    version = table.version
    register_local(table)
    table.register_local(registration(address="auto:10911", topics={}), {"T", "U"})
    table.register(registration("broker-b"))
    table.register(registration("broker-b", data_version=DataVersion(counter=9)))
    table.record_heartbeat("C", "broker-b", "broker-b:0")
    assert table.version == version
    table.register(registration("broker-b", zone="z"))
    assert table.version > version


def test_a_takeover_is_logged_with_both_addresses(
    table: RouteTable, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "gateway.namesrv")
    for address in ("broker-a:0", "6.6.6.6:1", "broker-a:0"):
        table.register(registration(address=address))
    seen = [(each.address, each.other) for each in caplog.records]  # type: ignore[attr-defined]
    assert seen == [("6.6.6.6:1", "broker-a:0"), ("broker-a:0", "6.6.6.6:1")]


# -- ghosts -------------------------------------------------------------------------------------------------------


def test_an_address_under_two_names_leaves_with_its_connection(table: RouteTable) -> None:
    for name in ("broker-a", "broker-b"):
        table.register(registration(name, address="a:1"), "connection")
    table.unregister_owned_by("connection")
    assert table.cluster_info(HERE).to_value() == {"brokerAddrTable": {}, "clusterAddrTable": {}}


def test_an_address_in_another_cluster_than_its_name_leaves_too(table: RouteTable, now: Now) -> None:
    table.register(registration())
    table.register(registration(broker_id=1, cluster="D"), "connection")
    assert table.cluster_info(HERE).cluster_addr_table == {"C": ["broker-a"], "D": ["broker-a"]}
    table.unregister_owned_by("connection")
    assert table.cluster_info(HERE).cluster_addr_table == {"C": ["broker-a"]}
    table.register(registration(broker_id=1, cluster="D"))
    now.seconds += 121
    table.expire_silent_brokers()
    assert table.cluster_info(HERE).to_value() == {"brokerAddrTable": {}, "clusterAddrTable": {}}


def test_an_older_state_does_not_remove_the_signs_of_life_of_others(table: RouteTable, now: Now) -> None:
    """An address that is alive under one name and is refused under another still expires."""
    table.register(registration("broker-b", data_version=DataVersion(state_version=2)))
    table.register(registration(address="a:1"))
    table.register(registration("broker-b", address="a:1"))
    now.seconds += 121
    table.expire_silent_brokers()
    assert table.topic_list().topic_list == []


def test_static_topics_leave_with_their_broker(table: RouteTable) -> None:
    mapping = TopicQueueMappingInfo(topic="T", bname="broker-a")
    table.register(registration(mappings={"T": mapping}))
    table.unregister("broker-a", "broker-a:0")
    table.register(registration())
    route = table.topic_route("T", HERE)
    assert route is not None
    assert route.topic_queue_mapping_by_broker is None


# -- limits -------------------------------------------------------------------------------------------------------


def limit(table: RouteTable, *, brokers: int = 1000, topics: int = 1000, per_broker: int = 1000) -> None:
    table.reconfigure(NamesrvLimits(max_brokers=brokers, max_topics=topics, max_topics_per_broker=per_broker))


def test_broker_addresses_are_limited(table: RouteTable) -> None:
    limit(table, brokers=2)
    table.register(registration())
    table.register(registration(broker_id=1))
    assert "maxRegisteredBrokers is 2: raise it" in reason(table.register, registration("broker-b"))
    assert "maxRegisteredBrokers" in reason(table.register, registration(broker_id=2))
    table.register(registration())
    table.register(registration(address="elsewhere:0"))
    table.register(registration(broker_id=7, address="broker-a:1"))
    assert addresses(table) == {"broker-a": {0: "elsewhere:0", 7: "broker-a:1"}}
    register_local(table, "broker-c")
    assert "broker-c" in addresses(table)
    assert "maxRegisteredBrokers" in reason(table.register, registration("broker-b"))
    table.unregister("broker-a", "elsewhere:0")
    table.unregister("broker-a", "broker-a:1")
    table.register(registration("broker-b"))


def test_topics_of_a_broker_are_limited_and_what_it_has_stays(table: RouteTable, now: Now) -> None:
    limit(table, per_broker=3)
    table.register(registration())
    more = registration(topics=topics("T", "U", "V", "W"), data_version=DataVersion(counter=2))
    now.seconds += 119
    assert "broker-a would have 4 topics; maxTopicsPerBroker is 3" in reason(table.register, more)
    now.seconds += 119
    table.expire_silent_brokers()
    assert addresses(table), "a refused renewal is a sign of life"
    others = registration(topics=topics("X", "Y"), data_version=DataVersion(counter=2))
    assert "would have 4 topics" in reason(table.register, others), "topics add up over registrations"
    assert "maxTopicsPerBroker" in reason(
        lambda: [table.register_topic(topic, [QueueData(broker_name="broker-a")]) for topic in "XYZ"]
    )
    limits = NamesrvLimits(max_topics_per_broker=3)
    table.reconfigure(limits, delete_missing_topics=True)
    table.register(registration(topics=topics("V", "W", "X"), data_version=DataVersion(counter=3)))
    assert sorted(table.topic_list().topic_list) == ["V", "W", "X"]


def test_topics_of_all_brokers_are_limited_but_not_those_of_local_ones(table: RouteTable) -> None:
    limit(table, topics=5)
    table.register(registration(topics=topics("T", "U", "V")))
    assert "routes for 3 topics and 3 were to be added; maxTopics is 5" in reason(
        table.register, registration("broker-b", topics=topics("T", "U", "V"))
    )
    table.register(registration("broker-b"))
    assert "maxTopics" in reason(table.register_topic, "W", [QueueData(broker_name="broker-b")])
    assert table.register_topic("T", [QueueData(broker_name="broker-b", perm=4)])
    register_local(table, "broker-c", topics=topics("T", "L", "M"))
    assert queues_of(table, "M") == {"broker-c": (8, 6)}
    table.register(registration("broker-b"))


def test_queues_of_static_topics_count_as_topics(table: RouteTable) -> None:
    limit(table, topics=10)
    large = TopicQueueMappingInfo(topic="T", bname="broker-a", curr_id_map=dict.fromkeys(range(8), 0))
    small = TopicQueueMappingInfo(topic="T", bname="broker-a", curr_id_map={0: 0})
    assert "maxTopics is 10" in reason(table.register, registration(mappings={"T": large}))
    table.register(registration(mappings={"T": small}))
    grown = registration(mappings={"T": large}, data_version=DataVersion(counter=2))
    assert "maxTopics is 10" in reason(table.register, grown)
    table.unregister("broker-a", "broker-a:0")
    table.register(registration("broker-b", topics=topics(*"ABCDEFGHIJ")))


# -- any calls in any order ---------------------------------------------------------------------------------------

NAMES, TOPICS, OWNERS = ("local", "b", "c"), tuple("TUVWXY"), ("one", "two", "three")


class AnyCalls:
    """Random calls to a table that has one local broker, and the invariants that hold after each."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = Now()
        self.table = RouteTable(self.now)
        limit(self.table, brokers=6, topics=14, per_broker=5)
        self.local_topics = topics("T", "U")
        register_local(self.table, "local", topics=self.local_topics)

    def registration(self) -> Registration:
        choose = self.random.choice
        name = choose(NAMES)
        chosen = self.random.sample(TOPICS, self.random.randrange(len(TOPICS)))
        mapping = TopicQueueMappingInfo(topic="T", curr_id_map=dict.fromkeys(range(choose((1, 3))), 0))
        return registration(
            name,
            choose((0, 0, 1, 2)),
            cluster=choose("CD"),
            address=choose(("a:1", "a:2", "a:3", "auto:10911", f"{HERE}:10911")),
            topics=topics(*chosen, perm=choose((0, 4, 6))),
            data_version=DataVersion(counter=choose((1, 2)), state_version=choose((0, 0, 0, 1))),
            mappings=choose(({}, {}, {choose(TOPICS): mapping})),
            acting_master=choose((None, False, True)),
            timeout_ms=choose((None, -1, 0, 5_000)),
            filter_servers=choose((None, [], ["f:1"])),
        )

    def call(self) -> None:
        table, choose = self.table, self.random.choice
        calls: list[Callable[[], object]] = [
            lambda: table.register(self.registration(), choose(OWNERS), HERE),
            lambda: table.register(self.registration(), choose(OWNERS), HERE),
            lambda: table.register(self.registration(), choose(OWNERS), HERE),
            lambda: table.unregister(choose(NAMES), choose(("a:1", "a:2", "auto:10911")), HERE),
            lambda: table.unregister_owned_by(choose(OWNERS)),
            lambda: table.delete_topic(choose(TOPICS), choose((None, "C", "D"))),
            lambda: table.set_writable(choose(NAMES), choose((True, False))),
            lambda: table.register_topic(choose(TOPICS), [QueueData(broker_name=choose(NAMES))]),
            lambda: table.record_heartbeat("C", choose(NAMES), choose(("a:1", "auto:10911"))),
            lambda: table.reconfigure(table._limits, delete_missing_topics=choose((True, False))),
            self.let_time_pass,
        ]
        with suppress(RequestError):
            choose(calls)()

    def let_time_pass(self) -> None:
        self.now.seconds += self.random.choice((1, 30, 121))
        self.table.expire_silent_brokers()

    def check(self) -> None:
        table = self.table
        brokers = table._brokers
        assert all(broker.members for broker in brokers.values())
        assert all(table._topics.values())
        held = {(topic, name) for topic, holders in table._topics.items() for name in holders}
        assert held == {(topic, broker.name) for broker in brokers.values() for topic in broker.queues}
        assert table._address_count == sum(len(broker.members) for broker in brokers.values()) <= 6
        mapped = sum(weight_of(each) for broker in brokers.values() for each in broker.mappings.values())
        assert table._route_count == len(held) + mapped
        assert table._route_count - len(brokers["local"].queues) <= 14
        for broker in brokers.values():
            assert len({each.address for each in broker.members.values()}) == len(broker.members)
        assert addresses(table, host=HERE).get("local", {0: ""})[0] in ("", f"{HERE}:10911")
        assert table.broker_member_group("C", "local", HERE).broker_addrs[0] == f"{HERE}:10911"

    def check_local_broker_is_healed(self) -> None:
        missing = {
            name: self.local_topics[name] for name in self.table.missing_topics("local", self.local_topics)
        }
        given = registration("local", address="auto:10911", topics=missing)
        self.table.register_local(given, self.local_topics)
        for topic in self.local_topics:
            assert addresses(self.table, topic)["local"][0] == f"{HERE}:10911"
            assert queues_of(self.table, topic)["local"][0] == 8


@pytest.mark.parametrize("seed", range(40))
def test_invariants_hold_after_any_calls(seed: int) -> None:
    calls = AnyCalls(seed)
    for number in range(300):
        calls.call()
        calls.check()
        if number % 10 == 0:
            calls.check_local_broker_is_healed()
    for owner in OWNERS:
        calls.table.unregister_owned_by(owner)
    calls.check_local_broker_is_healed()
    calls.check()
    assert list(calls.table._brokers) == ["local"]
