"""Topics whose creation was not written before the process was killed."""

import logging

import pytest

from gateway.broker.topics.topic_recovery import restore_topics
from gateway.broker.topics.topic_table import TopicDefaults, TopicTable
from gateway.config.limits import BrokerLimits
from gateway.tests.broker_fakes import FakeClock, memory_config_file
from storage.append import NewMessage
from storage.config import memory_config
from storage.files import MemoryFiles
from storage.store import MessageStore


class Broker:
    """Topics and messages, where a start without a stop before loses what was not written."""

    def __init__(self):
        self.clock = FakeClock()
        self.files = MemoryFiles()
        self.store = MessageStore.open(memory_config(), self.files, self.clock)
        self.limits = BrokerLimits()
        self.start()

    def start(self):
        file = memory_config_file("topics.json", self.files)
        self.topics = TopicTable(file, self.clock, TopicDefaults("c1", "b1"), self.limits)
        restore_topics(self.topics, self.store)

    def send(self, topic, queue_id=0):
        self.clock.pass_ms(1)
        self.topics.create_for_send(topic, "TBW102", 4)
        self.store.append(NewMessage(topic, queue_id, b"x", b""))

    def shape(self, topic):
        config = self.topics.get(topic)
        return config and (config.read_queue_nums, config.write_queue_nums, config.perm)


@pytest.fixture
def broker():
    return Broker()


def test_a_topic_that_a_send_created_before_the_process_was_killed_is_there_again(broker, caplog):
    broker.send("saved")
    broker.topics.persist()
    for queue_id in (0, 3):
        broker.send("orders", queue_id)
    broker.send("wide", 20)
    broker.send("%RETRY%g", 0)
    caplog.set_level(logging.WARNING)
    broker.start()
    assert broker.shape("orders") == (8, 8, 6)
    assert broker.shape("wide") == (21, 21, 6)
    assert broker.shape("%RETRY%g") == (1, 1, 6)
    assert [record.topic for record in caplog.records] == ["orders", "wide", "%RETRY%g"]
    assert broker.topics.is_dirty


def test_a_deleted_topic_stays_deleted_even_if_its_messages_are_recovered(broker):
    broker.send("orders")
    broker.clock.pass_ms(1)
    broker.topics.delete("orders")
    broker.topics.persist()
    broker.start()
    assert broker.shape("orders") is None


def test_a_topic_of_queues_that_nobody_can_serve_is_cut(broker):
    broker.limits = BrokerLimits(max_queues_per_topic=10)
    broker.store.append(NewMessage("huge", 2**31 - 1, b"x", b""))
    broker.start()
    assert broker.shape("huge") == (10, 10, 6)


def test_topics_beyond_the_limit_are_named(broker, caplog):
    broker.limits = BrokerLimits(max_topics=len(broker.topics.table))
    broker.send("orders")
    broker.start()
    assert broker.shape("orders") is None
    assert [record.message for record in caplog.records] == ["topic with messages not restored"]


def test_system_topics_are_left_alone(broker):
    broker.store.append(NewMessage("rmq_sys_anything", 0, b"x", b""))
    broker.start()
    assert broker.shape("rmq_sys_anything") is None
