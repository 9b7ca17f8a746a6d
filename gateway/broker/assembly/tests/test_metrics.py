"""The metrics of a broker under official names."""

import math
from dataclasses import replace
from typing import Any

import pytest

from gateway.broker.assembly.metrics import broker_metrics, native_metrics
from gateway.broker.consumers.client_registry import GroupMember
from gateway.broker.statistics.stored_counts import MessageType
from gateway.broker.statistics.traffic_stats import BrokerStats
from gateway.runtime.metrics import Distribution, Metric
from gateway.tests.broker_fakes import FakeConnection
from gateway.tests.broker_world import World
from remoting.bodies.heartbeat import ConsumerData, SubscriptionData


@pytest.fixture
def world():
    world = World()
    world.topic("t", 2)
    world.broker.groups.find_or_create("g")
    return world


def collected(world):
    """Return the values of all metrics by name, each by the labels that not all series have."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for each in broker_metrics("broker-a", world.broker):
        if isinstance(each, Metric):
            own = tuple(
                value
                for name, value in each.labels.items()
                if name in ("consumer_group", "topic", "consume_mode", "is_retry", "language")
            )
            found.setdefault(each.name, {})[own] = each.value
    return found


def send(world, topic, queue_id=0, size=10):
    world.put(topic, queue_id)
    world.broker.stats.stored[topic].count_message(size)


def test_all_series_name_cluster_and_broker(world):
    official = [
        each for each in broker_metrics("p", world.broker) if each and each.name.startswith("rocketmq_")
    ]
    config = world.broker.config
    node = {"cluster": config.broker_cluster_name, "node_type": "broker", "node_id": config.broker_name}
    assert len(official) > 10
    assert all(node.items() <= each.labels.items() for each in official)


class Taker:
    """Stands for `NativeSends`."""

    frames = 0
    take: Any = None


def test_native_sends_and_their_share(world):
    def shown(taker):
        return [sample.value for sample in native_metrics("broker-a", taker, world.broker.stats)]

    taker = Taker()
    assert shown(taker) == [0, 0, 0]
    for _ in range(4):
        send(world, "t")
    taker.frames, taker.take = 3, lambda *_: None
    assert shown(taker) == [3, 0.75, 1]
    taker.frames = 9  # the counts began anew meanwhile
    assert shown(taker) == [9, 1, 1]
    names = {sample.name: sample.kind for sample in native_metrics("p", taker, world.broker.stats)}
    assert names == {
        "native_sends_total": "counter", "native_sends_share": "gauge", "native_sends_on": "gauge"
    }  # fmt: skip


def test_traffic_by_topic_and_group(world):
    send(world, "t", size=100)
    send(world, "t", 1, size=50)
    world.broker.stats.dead_letters["g", "t"].count_messages(2, 0)
    world.broker.stats.delivered["g", "t"].count_messages(1, 100)
    found = collected(world)
    assert found["rocketmq_messages_in_total"]["t",] == 2
    assert found["rocketmq_throughput_in_total"]["t",] == 150
    assert found["rocketmq_messages_out_total"]["t", "g", "false"] == 1
    assert found["rocketmq_throughput_out_total"]["t", "g", "false"] == 100
    assert found["rocketmq_send_to_dlq_messages_total"] == {("t", "g"): 2}


def test_sizes_by_topic_and_type_of_message(world):
    for size in (100, 5_000):
        send(world, "t", size=size)
    world.broker.stats.stored["t"].count_fifo(2_000)
    samples = [each for each in broker_metrics("p", world.broker) if isinstance(each, Distribution)]
    found = {
        (each.labels["topic"], each.labels["message_type"], each.labels["is_system"]): each.histogram
        for each in samples
        if each.name == "rocketmq_message_size"
    }
    assert {key: (sizes.count, sizes.total) for key, sizes in found.items()} == {
        ("t", "normal", "false"): (2, 5_100),
        ("t", "fifo", "false"): (1, 2_000),
    }
    assert list(found["t", "normal", "false"].shown_buckets()) == [
        (1 << 10, 1), (4 << 10, 1), (512 << 10, 2), (1 << 20, 2), (2 << 20, 2), (4 << 20, 2), (math.inf, 2),
    ]  # fmt: skip


def test_messages_are_counted_by_type(world):
    send(world, "t", size=100)
    world.broker.stats.stored["t"].count_request(MessageType.DELAY, 50, 2)
    found = {
        (each.name, each.labels["message_type"]): each.value
        for each in broker_metrics("p", world.broker)
        if isinstance(each, Metric) and "_in_total" in each.name
    }
    assert found == {
        ("rocketmq_messages_in_total", "normal"): 1,
        ("rocketmq_throughput_in_total", "normal"): 100,
        ("rocketmq_messages_in_total", "delay"): 2,
        ("rocketmq_throughput_in_total", "delay"): 50,
    }


def test_lag_of_a_group_that_is_offline(world):
    for _ in range(3):
        send(world, "t")
        world.clock.pass_ms(1_000)
    world.broker.offsets.commit_offset("g", "t", 0, 1)
    found = collected(world)
    key = ("g", "t", "false")
    assert found["rocketmq_consumer_lag_messages"] == {key: 2}
    assert found["rocketmq_consumer_lag_latency"] == {key: 2_000}
    assert found["rocketmq_consumer_ready_messages"] == {key: 2}
    assert found["rocketmq_consumer_inflight_messages"] == {key: 0}
    assert found["rocketmq_consumer_queueing_latency"] == {key: 2_000}


def test_a_group_that_has_consumed_everything_has_no_lag(world):
    send(world, "t")
    world.clock.pass_ms(1_000)
    world.broker.offsets.commit_offset("g", "t", 0, 1)
    found = collected(world)
    assert found["rocketmq_consumer_lag_messages"] == {("g", "t", "false"): 0}
    assert found["rocketmq_consumer_lag_latency"] == {("g", "t", "false"): 0}


def test_offsets_that_a_subscription_left_behind_are_not_lag(world):
    world.topic("u", 1)
    for topic in ("t", "u"):
        world.broker.offsets.commit_offset("g", topic, 0, 0)
    world.beat(FakeConnection(), "t")
    assert set(collected(world)["rocketmq_consumer_lag_messages"]) == {("g", "t", "false")}


def test_messages_that_pops_hold_are_in_flight(world):
    for _ in range(3):
        send(world, "t")
        world.clock.pass_ms(1_000)
    world.broker.offsets.commit_offset("g", "t", 0, 2)
    world.broker.pop.state.reviver._outstanding_counts["t", "g", 0] = 2
    found = collected(world)
    key = ("g", "t", "false")
    assert found["rocketmq_consumer_lag_messages"] == {key: 3}
    assert found["rocketmq_consumer_inflight_messages"] == {key: 2}
    assert found["rocketmq_consumer_ready_messages"] == {key: 1}
    assert found["rocketmq_consumer_lag_latency"] == {key: 3_000}
    assert found["rocketmq_consumer_queueing_latency"] == {key: 1_000}


def test_connections_by_group_and_language(world):
    world.beat(FakeConnection(), "t")
    world.beat(FakeConnection(), "t")
    (series,) = collected(world)["rocketmq_consumer_connections"].items()
    assert series == (("g", "push", "other"), 2)


def test_groups_whose_members_disagree_are_counted(world):
    assert collected(world)["inconsistent_groups"] == {(): 0}
    for number, tags in enumerate("ab"):
        subscription = SubscriptionData(topic="t", sub_string=tags, sub_version=number)
        data = ConsumerData(group_name="g", subscription_data_set=[subscription])
        member = GroupMember(FakeConnection(), f"c{number}", "JAVA", 400)
        world.broker.clients.register_consumer(member, data)
    assert collected(world)["inconsistent_groups"] == {(): 1}


def test_topics_and_groups_beyond_the_limit_are_summed(world):
    limits = replace(world.broker.config.limits, max_metric_series=2)
    world.broker.config = replace(world.broker.config, limits=limits)
    for number in range(5):
        topic = f"many-{number}"
        world.topic(topic, 1)
        send(world, topic, size=10)
        world.broker.stats.delivered["g", topic].count_messages(1, 10)
        world.broker.offsets.commit_offset("g", topic, 0, 0)
    found = collected(world)
    assert found["rocketmq_messages_in_total"] == {("many-0",): 1, ("many-1",): 1, ("other",): 3}
    assert found["rocketmq_messages_out_total"]["other", "other", "false"] == 3
    lags = found["rocketmq_consumer_lag_messages"]
    assert len(lags) == 3
    assert lags["other", "other", "false"] == 3
    # The series of a topic stays its own, so that no counter of a scrape ever falls.
    send(world, "many-4", size=10)
    assert collected(world)["rocketmq_messages_in_total"]["other",] == 4


def test_a_long_collection_lets_other_tasks_run(world):
    stats = BrokerStats()
    for number in range(1_000):
        stats.stored[f"t-{number}"].count_message(1)
    world.broker.stats = stats
    pauses = sum(each is None for each in broker_metrics("broker-a", world.broker))
    assert pauses >= 7


def test_storage(world):
    send(world, "t")
    world.clock.pass_ms(5_000)
    found = collected(world)
    assert found["rocketmq_storage_size"][()] == world.broker.store.max_physical_offset
    assert found["rocketmq_storage_message_reserve_time"][()] == 5_000
    assert found["rocketmq_storage_flush_behind_bytes"][()] >= 0
