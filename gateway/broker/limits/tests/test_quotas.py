import pytest

from gateway.broker.limits.quotas import MIN_WAIT_SHARE_S, PULL, SEND, Quotas
from gateway.broker.topics.topic_table import TopicDefaults, TopicTable
from gateway.tests.broker_fakes import FakeClock, memory_config_file
from gateway.tests.configs import broker_config
from remoting.bodies.topics import TopicConfig


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def topics(clock):
    return TopicTable(memory_config_file(), clock, TopicDefaults("c1", "b1"))


def quotas(topics, clock, **settings):
    return Quotas(broker_config(**settings), topics, clock)


def set_topic(topics, name="t", **attributes):
    changes = {f"+quota.{key.replace('_', '.')}": str(value) for key, value in attributes.items()}
    topics.update([TopicConfig(topic_name=name, attributes=changes)])


def test_nothing_is_limited_unless_configured(topics, clock):
    table = quotas(topics, clock)
    assert (table.sending, table.pulling) == (False, False)
    assert table.describe_exhausted(SEND, "t") is None
    assert table.wait_s(PULL, "t") == 0
    assert table.limit_to_tokens(PULL, "t", 32, 1000) == (32, 1000)


def test_a_second_of_the_quota_may_be_used_at_once_and_comes_back_steadily(topics, clock):
    table = quotas(topics, clock, send_quota_messages=10)
    assert (table.sending, table.pulling) == (True, False)
    for _ in range(10):
        assert table.describe_exhausted(SEND, "t") is None
        table.consume(SEND, "t", 1, 5)
    assert table.describe_exhausted(SEND, "t") == "send quota of this broker: 10 messages per second"
    clock.pass_ms(90)
    assert table.describe_exhausted(SEND, "t")
    clock.pass_ms(20)
    assert table.describe_exhausted(SEND, "t") is None
    clock.pass_ms(60_000)
    table.consume(SEND, "t", 10, 5)
    assert table.describe_exhausted(SEND, "t")


def test_a_longer_burst(topics, clock):
    table = quotas(topics, clock, send_quota_messages=10, quota_burst_s=3)
    table.consume(SEND, "t", 29, 0)
    assert table.describe_exhausted(SEND, "t") is None
    table.consume(SEND, "t", 1, 0)
    assert table.describe_exhausted(SEND, "t")


def test_what_was_taken_beyond_the_quota_is_waited_for(topics, clock):
    table = quotas(topics, clock, pull_quota_bytes=100)
    table.consume(PULL, "t", 1, 300)
    assert table.wait_s(PULL, "t") == pytest.approx(2.01 + MIN_WAIT_SHARE_S)
    clock.pass_ms(2_020)
    assert table.wait_s(PULL, "t") == 0
    assert table.limit_to_tokens(PULL, "t", 32, 1000) in {(32, 1), (32, 2)}


def test_a_pull_gets_what_is_left(topics, clock):
    table = quotas(topics, clock, pull_quota_messages=10, pull_quota_bytes=500)
    table.consume(PULL, "t", 7, 100)
    assert table.limit_to_tokens(PULL, "t", 32, 1000) == (3, 400)


def test_quotas_of_a_topic_concern_it_alone_and_follow_its_attributes(topics, clock):
    table = quotas(topics, clock)
    set_topic(topics, send_bytes=100, pull_messages=2)
    assert (table.sending, table.pulling) == (True, True)
    table.consume(SEND, "t", 1, 100)
    table.consume(PULL, "t", 2, 100)
    assert table.describe_exhausted(SEND, "t") == "send quota of topic[t]: 100 bytes per second"
    assert table.describe_exhausted(PULL, "t") == "pull quota of topic[t]: 2 messages per second"
    assert table.describe_exhausted(SEND, "other") is None
    assert table.wait_s(PULL, "other") == 0
    topics.update(
        [TopicConfig(topic_name="t", attributes={"-quota.send.bytes": "", "-quota.pull.messages": ""})]
    )
    assert (table.sending, table.pulling) == (False, False)
    set_topic(topics, send_bytes=5)
    topics.delete("t")
    assert not table.sending


def test_a_change_elsewhere_keeps_what_was_used(topics, clock):
    table = quotas(topics, clock, send_quota_messages=1)
    table.consume(SEND, "t", 1, 1)
    set_topic(topics, "other", send_bytes=5)
    table.reconfigure(broker_config(send_quota_messages=1, pull_quota_bytes=7))
    assert table.describe_exhausted(SEND, "t")
    table.reconfigure(broker_config(send_quota_messages=2))
    assert table.describe_exhausted(SEND, "t") is None


def test_attributes_another_server_let_in_are_no_reason_to_fail(topics, clock):
    topics.table["t"] = TopicConfig(topic_name="t", attributes={"quota.send.bytes": "many"})
    assert not quotas(topics, clock).sending


def test_topics_without_quotas_cost_nothing_and_quotas_go_with_their_topic(topics, clock):
    table = quotas(topics, clock, send_quota_messages=10)
    of_broker = table._buckets.copy()
    set_topic(topics, "a", send_messages=5)
    bucket = table._buckets[SEND, "messages", "a"]
    set_topic(topics, "b", pull_bytes=5)
    topics.create_for_send("c", "TBW102", 4)
    assert table._buckets[SEND, "messages", "a"] is bucket
    assert (table.sending, table.pulling) == (True, True)
    topics.delete("b")
    assert not table.pulling
    topics.delete("a")
    assert table._buckets == of_broker
    assert all(table._buckets[kind] is of_broker[kind] for kind in of_broker)
