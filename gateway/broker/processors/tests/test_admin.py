import pytest

from gateway.broker.statistics.stored_counts import MessageType
from gateway.config.properties_file import parse_properties
from gateway.tests.broker_world import World
from remoting.errors import RequestError
from remoting.requests.admin import (
    DeleteExpiredCommitlog,
    ExportRocksdbConfigToJson,
    GetBrokerConfig,
    GetBrokerRuntimeInfo,
    UpdateBrokerConfig,
)
from remoting.requests.ha import GetBrokerEpochCache, GetBrokerHaStatus
from remoting.requests.query import ViewBrokerStatsData


@pytest.fixture
def world():
    return World()


def update(world, text):
    request = UpdateBrokerConfig()
    request.body = text.encode()
    return world.ask(request)


def settings(world):
    reply = world.ask(GetBrokerConfig())
    return {entry.key: entry.value for entry in parse_properties(reply.body.decode())}


def test_settings_are_shown_and_changed(world):
    assert settings(world)["brokerName"] == "b1"
    registered = []
    world.broker.topics.add_listener(registered.append)
    update(world, "brokerPermission=4\nautoCreateTopicEnable=false\n")
    assert settings(world)["brokerPermission"] == "4"
    assert not world.broker.topics.auto_create
    assert len(registered) == 1
    update(world, "traceOn=false")
    assert len(registered) == 1


@pytest.mark.parametrize(
    ("text", "code", "remark"),
    [
        ("configBlackList=x", 16, "Can not update config in black list."),
        (
            "storePathRootDir=/elsewhere",
            29,
            "cannot be changed while the server runs: storePathRootDir; change the file and restart",
        ),
        ("noSuchKey=1", 29, "noSuchKey is not a key of this server"),
        ("forceRegister=false", 29, "forceRegister has no effect yet"),
        ("totalReplicas=3", 29, "totalReplicas belongs to automatic failover"),
        ("brokerPermission=ten", 29, "brokerPermission"),
        ("a=\\u12", 1, "string2Properties error"),
    ],
)
def test_changes_that_are_refused_change_nothing(world, text, code, remark):
    with pytest.raises(RequestError, match=remark) as refused:
        update(world, "traceOn=false\n" + text)
    assert refused.value.code == code
    assert settings(world)["traceOn"] == "true"


def test_statistics_for_mqadmin(world):
    world.topic("t")
    world.put("t", body=b"x" * 2000)
    world.put("t", properties={"DELAY": "2"})
    world.broker.stats.stored["t"].count_request(MessageType.NORMAL, 300, 2)
    world.broker.stats.delivered["g", "t"].count_messages(1, 150)
    world.clock.pass_ms(90_061_000)
    table = world.ask(GetBrokerRuntimeInfo()).data.table
    assert table["brokerVersionDesc"] == "V5_4_0"
    assert table["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
    assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("2", "1")
    assert table["putMessageAverageSize"] == "150.0"
    assert table["commitLogMaxOffset"] == str(world.broker.store.max_physical_offset)
    assert table["remainHowManyDataToFlush"].endswith("KiB")
    assert table["earliestMessageTimeStamp"] == str(world.clock.ms - 90_061_000)
    assert table["scheduleMessageOffset_2"] == "0,1"
    assert table["sendThreadPoolQueueSize"] == "0"
    assert len(table["putTps"].split()) == 3


def test_statistics_of_an_empty_broker(world):
    table = world.ask(GetBrokerRuntimeInfo()).data.table
    assert table["earliestMessageTimeStamp"] == "-1"
    assert table["remainHowManyDataToFlush"] == "0 B"


def test_statistics_by_topic_and_group(world):
    world.broker.stats.stored["t"].count_request(MessageType.NORMAL, 300, 3)
    world.broker.stats.delivered["g", "t"].count_messages(2, 200)
    world.clock.pass_ms(10_000)

    def minute(name, key):
        return world.ask(ViewBrokerStatsData(stats_name=name, stats_key=key)).data.stats_minute

    assert (minute("TOPIC_PUT_NUMS", "t").sum, minute("TOPIC_PUT_NUMS", "t").tps) == (3, 0.3)
    assert (minute("TOPIC_PUT_SIZE", "t").sum, minute("TOPIC_PUT_SIZE", "t").tps) == (300, 30.0)
    assert minute("GROUP_GET_NUMS", "t@g").sum == 2
    for name, key in (("TOPIC_PUT_NUMS", "x"), ("GROUP_GET_NUMS", "t@x"), ("NO_SUCH", "t")):
        with pytest.raises(RequestError, match=f"The stats <{name}> <{key}> not exist"):
            minute(name, key)


def test_a_master_without_replicas(world):
    world.put("t")
    status = world.ask(GetBrokerHaStatus()).data
    assert (status.master, status.in_sync_slave_nums) == (True, 0)
    assert status.master_commit_log_max_offset == world.broker.store.max_physical_offset


def test_what_only_other_kinds_of_brokers_have(world):
    with pytest.raises(RequestError, match="this request only for controllerMode"):
        world.ask(GetBrokerEpochCache())
    assert world.ask(ExportRocksdbConfigToJson(config_type="topics")) is None


def test_cleaning_keeps_what_is_not_expired(world):
    world.put("t")
    world.ask(DeleteExpiredCommitlog())
    assert len(world.stored("t")) == 1


def test_statistics_of_the_whole_broker_and_of_messages_sent_back(world):
    def minute(name, key):
        return world.ask(ViewBrokerStatsData(stats_name=name, stats_key=key)).data.stats_minute

    cluster = world.broker.config.broker_cluster_name
    for name, key in (("BROKER_ACK_NUMS", cluster), ("SNDBCK_PUT_NUMS", "t@g")):
        with pytest.raises(RequestError, match="not exist"):
            minute(name, key)
    world.broker.stats.stored["t"].count_request(MessageType.NORMAL, 300, 3)
    world.broker.stats.stored["u"].count_message(100)
    world.broker.stats.acked.count_messages(2, 0)
    world.broker.stats.sent_back["g", "t"].count_messages(1, 0)
    world.clock.pass_ms(10_000)
    stored = minute("BROKER_PUT_NUMS", cluster)
    assert (stored.sum, stored.tps, stored.avgpt) == (4, 0.4, 2.0)
    assert minute("BROKER_ACK_NUMS", cluster).sum == 2
    assert minute("SNDBCK_PUT_NUMS", "t@g").sum == 1
    with pytest.raises(RequestError, match="not exist"):
        minute("BROKER_PUT_NUMS", "another cluster")


def test_pulls_in_vain_are_misses(world):
    world.broker.stats.missed_pulls += 30
    world.clock.pass_ms(10_000)
    world.broker.rates.take_sample()
    table = world.ask(GetBrokerRuntimeInfo()).data.table
    assert table["getMissTps"] == table["getTotalTps"] == "3.0000 3.0000 3.0000"
    assert table["getFoundTps"] == "0.0000 0.0000 0.0000"
    assert table["commitLogDirCapacity"].startswith("Total : "), "also of a store in memory"
