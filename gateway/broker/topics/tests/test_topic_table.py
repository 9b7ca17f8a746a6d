import json

import pytest
import trio

from gateway.broker.topics.topic_table import TopicDefaults, TopicTable, unit_flags
from gateway.config.limits import BrokerLimits
from gateway.tests.broker_fakes import FakeClock, memory_config_file
from remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper
from remoting.errors import RequestError
from storage.files import MemoryFiles

DEFAULTS = TopicDefaults(cluster_name="c1", broker_name="b1")


def make(files=None, defaults=DEFAULTS, clock=None):
    return TopicTable(memory_config_file("topics.json", files), clock or FakeClock(), defaults)


def shape(topic):
    return topic.read_queue_nums, topic.write_queue_nums, topic.perm


def test_a_new_broker_has_the_official_topics():
    table = make()
    assert shape(table.get("TBW102")) == (8, 8, 7)
    assert shape(table.get("BenchmarkTest")) == (1024, 1024, 6)
    assert shape(table.get("SCHEDULE_TOPIC_XXXX")) == (18, 18, 6)
    assert shape(table.get("c1")) == (16, 16, 7)
    assert shape(table.get("b1")) == (1, 1, 7)
    assert shape(table.get("c1_REPLY_TOPIC")) == (1, 1, 6)
    assert shape(table.get("rmq_sys_REVIVE_LOG_c1")) == (8, 8, 6)
    assert shape(table.get("rmq_sys_SYNC_BROKER_MEMBER_b1")) == (1, 1, 1)
    assert "RMQ_SYS_TRACE_TOPIC" not in table
    assert table.is_system("c1")
    assert table.is_system("rmq_sys_anything")
    assert not table.is_system("orders")


def test_settings_decide_about_optional_topics():
    closed = TopicDefaults(
        "c1", "b1", False, cluster_topic_open=False, broker_topic_open=False, trace_topic="trace"
    )
    table = make(defaults=closed)
    assert "TBW102" not in table
    assert "trace" in table
    assert table.get("c1").perm == 1
    assert table.get("b1").perm == 1


@pytest.mark.parametrize(("asked", "got"), [(4, 4), (8, 8), (100, 8), (0, 0), (-3, 0)])
def test_a_send_creates_a_topic_after_the_default_topic(asked, got):
    created = make().create_for_send("orders", "TBW102", asked)
    assert shape(created) == (got, got, 6)


def test_a_send_creates_nothing_without_an_inheritable_default():
    table = make()
    assert table.create_for_send("orders", "unknown", 4) is None
    assert table.create_for_send("orders", "BenchmarkTest", 4) is None
    table.auto_create = False
    assert table.create_for_send("orders", "TBW102", 4) is None
    assert table.create_for_send("orders", "c1", 4) is not None


def test_an_existing_topic_is_returned_as_it_is():
    table = make()
    first = table.create_for_send("orders", "TBW102", 4)
    assert table.create_for_send("orders", "TBW102", 2) is first
    assert table.version.counter == 1


def test_a_retry_topic_follows_the_order_of_its_group():
    table = make()
    retry = table.create_for_send_back("%RETRY%g", 2, sys_flag=unit_flags(unit=False, subscribed=True))
    assert (shape(retry), retry.topic_sys_flag, retry.order) == ((2, 2, 6), 2, False)
    assert table.create_for_send_back("%RETRY%g", 5, order=True).order
    assert shape(retry) == (2, 2, 6)
    assert not table.create_for_send_back("%RETRY%g", 5).order
    assert table.version.counter == 3


def test_changes_are_written_when_saved_and_read_back():
    files = MemoryFiles()
    table = make(files)
    table.create_for_send("orders", "TBW102", 4)
    assert files.read_small("/config/topics.json") is None
    trio.run(table.save_changes)
    raw = json.loads(files.read_small("/config/topics.json"))
    assert raw["topicConfigTable"]["orders"] == {
        "topicName": "orders",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        "attributes": {},
    }
    assert raw["dataVersion"]["counter"] == 1
    again = make(files)
    assert shape(again.get("orders")) == (4, 4, 6)
    assert again.version.counter == 1


def test_the_backup_is_read_when_the_file_is_missing_or_damaged():
    files = MemoryFiles()
    table = make(files)
    table.create_for_send("orders", "TBW102", 4)
    table.persist()
    files.write_small("/config/topics.json.bak", files.read_small("/config/topics.json"))
    files.write_small("/config/topics.json", b'{"topicConfigTable":{"ord')
    assert "orders" in make(files)
    files.write_small("/config/topics.json.bak", b"{")
    with pytest.raises(ValueError, match=r"topics\.json\.bak cannot be read"):
        make(files)


def test_listeners_hear_of_every_change():
    table = make()
    heard = []
    table.add_listener(
        lambda change: heard.append(([topic.topic_name for topic in change.stored], list(change.deleted)))
    )
    table.create_for_send("orders", "TBW102", 4)
    table.update([TopicConfig(topic_name="orders", perm=4), TopicConfig(topic_name="more")])
    assert table.delete("orders")
    assert not table.delete("orders")
    assert heard == [(["orders"], []), (["orders", "more"], []), ([], ["orders"])]


def test_attributes_are_modified_not_replaced():
    table = make()
    table.update([TopicConfig(topic_name="t", attributes={"+message.type": "FIFO"})])
    table.update([TopicConfig(topic_name="t", perm=4)])
    assert table.get("t").attributes == {"message.type": "FIFO"}
    table.update([TopicConfig(topic_name="t", attributes={"-message.type": ""})])
    assert table.get("t").attributes == {}


def test_nothing_changes_when_one_of_several_topics_is_wrong():
    table = make()
    wrong = TopicConfig(topic_name="b", attributes={"+colour": "red"})
    with pytest.raises(ValueError, match="unsupported key: colour"):
        table.update([TopicConfig(topic_name="a"), wrong])
    assert "a" not in table


def test_ordered_topics_of_the_namesrv():
    table = make()
    table.create_for_send("orders", "TBW102", 4)
    table.mark_ordered(["orders", "unknown"])
    assert table.is_ordered("orders")
    assert not table.is_ordered("unknown")
    before = table.version.counter
    table.mark_ordered(["orders"])
    assert table.version.counter == before


def test_a_file_written_by_the_official_broker():
    files = MemoryFiles()
    files.write_small(
        "/config/topics.json",
        b"""{
    "dataVersion":{ "counter":7, "stateVersion":0, "timestamp":1795255965637 },
    "topicConfigTable":{
        "orders":{ "attributes":{ "message.type":"FIFO" }, "order":true, "perm":6, "readQueueNums":3,
            "topicFilterType":"SINGLE_TAG", "topicName":"orders", "topicSysFlag":0, "writeQueueNums":3 },
        "TBW102":{ "attributes":{}, "order":false, "perm":7, "readQueueNums":2,
            "topicFilterType":"SINGLE_TAG", "topicName":"TBW102", "topicSysFlag":0, "writeQueueNums":2 }
    }
}""",
    )
    table = make(files)
    assert shape(table.get("orders")) == (3, 3, 6)
    assert table.get("orders").attributes == {"message.type": "FIFO"}
    assert shape(table.create_for_send("new", "TBW102", 4)) == (2, 2, 6)
    assert table.version.counter == 8


def test_a_topic_taken_over_with_an_attribute_that_is_not_served_is_named(caplog):
    files = MemoryFiles()
    taken_over = TopicConfig(topic_name="t", attributes={"cleanup.policy": "COMPACTION"})
    content = TopicConfigSerializeWrapper(topic_config_table={"t": taken_over})
    files.write_small("/config/topics.json", content.to_json())
    make(files)
    (line,) = [line for line in caplog.records if line.msg == "topic attribute has no effect on this broker"]
    assert (line.topic, line.attribute) == ("t", "cleanup.policy=COMPACTION")


def limited(**limits):
    table = make()
    table.limits = BrokerLimits(**limits)
    return table


def test_topics_beyond_the_limit_are_refused_and_those_that_exist_are_served():
    table = limited(max_topics=len(make().table) + 2)
    table.create_for_send("a", "TBW102", 4)
    table.update([TopicConfig(topic_name="b")])
    for create in (
        lambda: table.create_for_send("c", "TBW102", 4),
        lambda: table.create_for_send_back("%RETRY%c", 1),
        lambda: table.update([TopicConfig(topic_name="a"), TopicConfig(topic_name="c")]),
    ):
        with pytest.raises(RequestError, match="delete some or raise maxTopics"):
            create()
    assert table.create_for_send("a", "TBW102", 4) is table.get("a")
    table.update([TopicConfig(topic_name="a", perm=4)])
    table.create_if_absent(TopicConfig(topic_name="TRANS_CHECK_MAX_TIME_TOPIC"))
    table.delete("b")
    assert not table.delete("b")
    table.limits = BrokerLimits(max_topics=len(table.table) + 1)
    assert table.create_for_send("c", "TBW102", 4)


def test_queues_beyond_the_limit_are_refused():
    table = limited(max_queues_per_topic=3)
    for queues in ({"read_queue_nums": 4}, {"write_queue_nums": 2**31 - 1}):
        with pytest.raises(RequestError, match="raise maxQueuesPerTopic"):
            table.update(
                [TopicConfig(topic_name="t", **({"read_queue_nums": 3, "write_queue_nums": 3} | queues))]
            )
    assert shape(table.create_for_send("t", "TBW102", 8)) == (3, 3, 6)
    assert shape(table.create_for_send_back("%RETRY%g", 2**31 - 1)) == (3, 3, 6)
    assert list(table.queue_ids(2)) == [0, 1]
    assert list(table.queue_ids(2**31 - 1)) == [0, 1, 2], "of a table that another broker wrote"


def test_queues_of_all_topics_together_are_bounded():
    used = sum(topic.write_queue_nums for topic in make().table.values())
    table = limited(max_queues=used + 12)
    table.create_for_send("a", "TBW102", 8)
    with pytest.raises(RequestError, match="delete topics or raise maxQueues"):
        table.create_for_send("b", "TBW102", 8)
    table.update([TopicConfig(topic_name="a", read_queue_nums=4, write_queue_nums=4)])
    table.update([TopicConfig(topic_name="a", read_queue_nums=4, write_queue_nums=4, perm=4)])
    table.create_for_send("b", "TBW102", 8)
    with pytest.raises(RequestError, match="delete topics or raise maxQueues"):
        table.create_for_send("c", "TBW102", 1)
    table.delete("a")
    table.create_for_send("c", "TBW102", 4)


def test_a_new_topic_is_encoded_once_however_many_there_are(monkeypatch):
    encoded = []

    def counted(config, **more):
        encoded.append(config.topic_name)
        return original(config, **more)

    original = TopicConfig.to_json
    monkeypatch.setattr(TopicConfig, "to_json", counted)
    table = make()
    encoded.clear()
    for number in range(50):
        table.create_for_send(f"t{number}", "TBW102", 4)
        trio.run(table.save_changes)
    assert encoded == [f"t{number}" for number in range(50)]
