import json

import pytest

from gateway.broker.consumers.group_table import GroupTable
from gateway.config.limits import BrokerLimits
from gateway.tests.broker_fakes import FakeClock, memory_config_file
from remoting.bodies.groups import CustomizedRetryPolicy, GroupRetryPolicy, SubscriptionGroupConfig
from remoting.errors import RequestError
from storage.files import MemoryFiles


def make(files=None, **settings):
    return GroupTable(memory_config_file("subscriptionGroup.json", files), FakeClock(), **settings)


def test_a_new_broker_has_the_official_groups():
    assert set(make().table) == {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_RMQ_SYS_TRANS",
    }


def test_groups_come_into_being_when_asked_for():
    files = MemoryFiles()
    table = make(files)
    group = table.find_or_create("g")
    table.persist()
    assert (group.retry_queue_nums, group.retry_max_times, group.consume_enable) == (1, 16, True)
    assert make(files).get("g") == group
    assert make(files).version.counter == 1


@pytest.mark.parametrize("name", ["", "a b", "g" * 121])
def test_groups_with_unacceptable_names_do_not(name):
    assert make().find_or_create(name) is None


def test_without_auto_creation_only_system_groups_do():
    table = make(auto_create=False)
    assert table.find_or_create("g") is None
    assert table.find_or_create("CID_RMQ_SYS_X") is not None
    assert make(auto_create=False, create_system_groups=False).find_or_create("CID_RMQ_SYS_X") is None


def test_update_replaces_settings_and_modifies_attributes():
    table = make()
    table.update([SubscriptionGroupConfig(group_name="g", attributes={"+priority.factor": "50"})])
    table.update([SubscriptionGroupConfig(group_name="g", retry_max_times=3)])
    assert table.get("g").retry_max_times == 3
    assert table.get("g").attributes == {"priority.factor": "50"}
    with pytest.raises(ValueError, match=r"value is not in range\(0, 100\)"):
        table.update([SubscriptionGroupConfig(group_name="g", attributes={"+priority.factor": "101"})])


def test_delete_forgets_flags_as_well():
    table = make()
    table.find_or_create("g")
    table.set_forbidden("g", "t", True)
    assert table.delete("g")
    assert not table.delete("g")
    assert not table.is_forbidden("g", "t")


def test_a_disabled_group_stays_disabled():
    files = MemoryFiles()
    table = make(files)
    table.find_or_create("g")
    table.disable("g")
    table.disable("unknown")
    table.persist()
    assert not make(files).get("g").consume_enable


def test_forbidden_flags_are_kept_per_topic():
    files = MemoryFiles()
    table = make(files)
    table.set_forbidden("g", "t1", True)
    table.set_forbidden("g", "t2", True)
    table.set_forbidden("g", "t1", False)
    table.persist()
    assert not table.is_forbidden("g", "t1")
    assert make(files).is_forbidden("g", "t2")
    assert json.loads(files.read_small("/config/subscriptionGroup.json"))["forbiddenTable"] == {
        "g": {"t2": 4}
    }
    table.set_forbidden("g", "t2", False)
    assert table.forbidden == {}


def test_the_file_has_the_official_form():
    files = MemoryFiles()
    table = make(files)
    table.find_or_create("g")
    table.persist()
    raw = json.loads(files.read_small("/config/subscriptionGroup.json"))
    assert raw["subscriptionGroupTable"]["g"] == {
        "groupName": "g",
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True,
        "consumeMessageOrderly": False,
        "retryQueueNums": 1,
        "retryMaxTimes": 16,
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
        "groupSysFlag": 0,
        "consumeTimeoutMinute": 15,
        "attributes": {},
    }


def test_groups_beyond_the_limit_are_refused_and_those_that_exist_are_served():
    table = make(limits=BrokerLimits(max_groups=len(make().table) + 1))
    assert table.find_or_create("a")
    for create in (
        lambda: table.find_or_create("b"),
        lambda: table.update([SubscriptionGroupConfig(group_name="b")]),
    ):
        with pytest.raises(RequestError, match="delete some or raise maxSubscriptionGroups"):
            create()
    assert table.find_or_create("a")
    table.update([SubscriptionGroupConfig(group_name="a", retry_max_times=3)])
    assert table.delete("a")
    assert table.find_or_create("b")


def test_settings_of_a_group_have_a_size():
    delays = GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy(next=[1000] * 10_000))
    table = make()
    with pytest.raises(RequestError, match="raise maxSettingsBytes"):
        table.update([SubscriptionGroupConfig(group_name="g", group_retry_policy=delays)])
    assert "g" not in table


def test_flags_of_topics_that_nobody_has_are_bounded():
    table = make(limits=BrokerLimits(max_groups=9))
    for number in range(9):
        table.set_forbidden("g", f"t{number}", True)
    with pytest.raises(RequestError, match="raise maxSubscriptionGroups"):
        table.set_forbidden("h", "t", True)
    table.set_forbidden("g", "t0", False)
    table.set_forbidden("h", "t", True)
    assert table.is_forbidden("h", "t")
