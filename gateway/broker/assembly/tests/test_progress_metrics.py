"""Metrics of what waits in a broker: half messages, pops and timer messages, on a simulated cluster."""

from contextlib import suppress
from dataclasses import replace
from math import inf

import trio

from gateway.broker.assembly.metrics import broker_metrics
from gateway.broker.statistics.traffic_stats import ExecutionTimes
from gateway.runtime.metrics import Distribution, Metric
from gateway.tests.broker_fakes import FakeClock
from gateway.tests.cluster import Cluster, Node, message, simulated
from gateway.tests.popping import pop_request
from gateway.tests.transacting import ROLLBACK, started
from remoting.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupList
from remoting.bodies.topics import CreateTopicListRequestBody, TopicConfig
from remoting.errors import RequestError
from remoting.requests.groups import UpdateAndCreateSubscriptionGroup, UpdateAndCreateSubscriptionGroupList
from remoting.requests.topics import UpdateAndCreateTopic, UpdateAndCreateTopicList

TOPIC = "orders"
"""The topic of half messages in these tests."""
LATE = 100
"""Seconds after which a half message has been asked about, with the settings of these tests."""
CHECKS = {
    "transaction_check_interval_ms": 30_000,
    "transaction_timeout_ms": 6_000,
    "transaction_check_max": 2,
}


def values(node: Node) -> dict[str, float]:
    """Return metrics by name, the sum of series of the same name."""
    found: dict[str, float] = {}
    for each in broker_metrics("p", node.broker):
        if each is not None and not isinstance(each, Distribution):
            found[each.name] = found.get(each.name, 0) + each.value
    return found


def series(node: Node, name: str) -> dict[tuple[str, ...], float]:
    """Return the values of a metric by the values of the labels that only some metrics have."""
    common = {"cluster", "node_type", "node_id", "storage_type", "storage_medium"}
    return {
        tuple(value for label, value in each.labels.items() if label not in common): each.value
        for each in broker_metrics("p", node.broker)
        if isinstance(each, Metric) and each.name == name
    }


def buckets(node: Node, name: str) -> dict[tuple[str, ...], list[tuple[float, int]]]:
    """Return the upper bounds with cumulative counts of a histogram, by the values of its own labels."""
    common = {"cluster", "node_type", "node_id", "storage_type", "storage_medium"}
    return {
        tuple(value for label, value in each.labels.items() if label not in common): list(
            each.histogram.shown_buckets()
        )
        for each in broker_metrics("p", node.broker)
        if isinstance(each, Distribution) and each.name == name
    }


@simulated
async def test_half_messages_wait_until_they_are_ended(cluster: Cluster) -> None:
    node, producer = await started(cluster, **CHECKS)
    sent = [await producer.half(key=f"U{number}") for number in range(3)]
    assert values(node)["rocketmq_half_messages"] == 3
    await trio.sleep(7)
    await producer.end(sent[1])
    await producer.end(sent[2], ROLLBACK)
    assert values(node)["rocketmq_half_messages"] == 1
    ((labels, latencies),) = buckets(node, "rocketmq_finish_message_latency").items()
    assert labels == (TOPIC,)
    assert latencies[:2] == [(5, 0), (60, 1)]
    assert series(node, "rocketmq_commit_messages_total") == {(TOPIC,): 1}
    assert series(node, "rocketmq_rollback_messages_total") == {(TOPIC,): 1}
    await trio.sleep(40)
    found = values(node)
    assert found["rocketmq_half_messages"] == 1, "checked, and still undecided"
    assert found["transaction_checks_total"] == len(producer.questions) >= 1
    await trio.sleep(LATE)
    found = values(node)
    assert (found["rocketmq_half_messages"], found["half_messages_given_up_total"]) == (0, 1)
    assert not any(node.broker.transactions.op_messages._ended.values()), (
        "the walk forgets what it has passed"
    )


@simulated
async def test_pops_that_are_out_and_revived(cluster: Cluster) -> None:
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    for _ in range(2):
        await client.ask(message(queue_id=0))
    request = pop_request(queue_id=0, invisible_time=20_000)
    await client.ask(request)
    await trio.sleep(3)
    found = values(node)
    assert found["rocketmq_pop_checkpoint_buffer_size"] == found["rocketmq_pop_revive_lag"] == 1
    assert 3_000 <= found["rocketmq_pop_revive_latency"] < 4_000
    assert "rocketmq_pop_revive_retry_messages_total" not in found
    await trio.sleep(30)
    found = values(node)
    assert found["rocketmq_pop_checkpoint_buffer_size"] == found["rocketmq_pop_revive_lag"] == 0
    assert found["rocketmq_pop_revive_latency"] == 0
    revived = series(node, "rocketmq_pop_revive_retry_messages_total")
    assert revived == {(request.consumer_group, request.topic, "PUT_OK"): 2}


@simulated
async def test_timer_messages_that_nobody_schedules(cluster: Cluster) -> None:
    node = await cluster.add_broker(timer_wheel_enable=True, timer_stop_enqueue=True)
    client = cluster.dial(node.address)
    await client.ask(message(properties={"TIMER_DELAY_SEC": "3600"}))
    await trio.sleep(5)
    found = values(node)
    assert found["rocketmq_timer_enqueue_lag"] == 1
    assert found["rocketmq_timer_enqueue_latency"] >= 5_000


@simulated
async def test_timer_messages_by_topic_and_time_left(cluster: Cluster) -> None:
    node = await cluster.add_broker(timer_wheel_enable=True)
    client = cluster.dial(node.address)
    for topic, delay_s in (("a", 3), ("a", 200), ("a", 2_000), ("b", 90_000)):
        await client.ask(message(topic=topic, properties={"TIMER_DELAY_SEC": str(delay_s)}))
    await trio.sleep(1)
    waiting = series(node, "rocketmq_timer_message_snapshot")
    assert {bound for (bound,) in waiting} == {"5", "60", "300", "900", "3600", "14400", "28800", "86400"}
    assert {bound: number for (bound,), number in waiting.items() if number} == {"5": 1, "300": 1, "3600": 1}
    assert values(node)["rocketmq_timer_dequeue_lag"] == 4
    assert series(node, "rocketmq_timer_enqueue_total") == {("a",): 3, ("b",): 1}
    assert series(node, "rocketmq_timer_dequeue_total") == {}
    delays = buckets(node, "rocketmq_delay_message_latency")
    assert delays["a",][:3] == [(60, 1), (600, 2), (3600, 3)]
    assert delays["b",][3:6] == [(43_200, 0), (86_400, 0), (259_200, 1)]
    await trio.sleep(5)
    assert series(node, "rocketmq_timer_dequeue_total") == {("a",): 1}
    assert values(node)["rocketmq_timer_dequeue_lag"] == 3
    stats = node.broker.stats
    stats.forget_topic("a")
    assert series(node, "rocketmq_timer_enqueue_total") == {("b",): 1}
    assert set(buckets(node, "rocketmq_delay_message_latency")) == {("b",)}


@simulated
async def test_histograms_of_topics_beyond_the_limit_are_summed(cluster: Cluster) -> None:
    node = await cluster.add_broker(timer_wheel_enable=True)
    latencies = node.broker.stats.commit_latencies_s
    for topic in ("a", "b", "c"):
        latencies[topic].record(7)
    limits = replace(node.broker.config.limits, max_metric_series=1)
    node.broker.config = replace(node.broker.config, limits=limits)
    found = buckets(node, "rocketmq_finish_message_latency")
    assert {topic: counts[1] for (topic,), counts in found.items()} == {"a": (60, 1), "other": (60, 2)}
    assert dict(latencies["b"].shown_buckets())[60] == 1, "the histogram of a topic stays its own"


@simulated
async def test_times_to_create_topics_and_groups(cluster: Cluster) -> None:
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    fields = {
        "default_topic": "TBW102",
        "read_queue_nums": 1,
        "write_queue_nums": 1,
        "perm": 6,
        "order": False,
    }
    for name in ("t", "SELF_TEST_TOPIC"):
        request = UpdateAndCreateTopic(topic=name, topic_filter_type="SINGLE_TAG", topic_sys_flag=0, **fields)
        with suppress(RequestError):
            await client.ask(request)
    topics = CreateTopicListRequestBody(
        topic_config_list=[TopicConfig(topic_name="u"), TopicConfig(topic_name="v")]
    )
    await client.ask(UpdateAndCreateTopicList(data=topics))
    await client.ask(UpdateAndCreateSubscriptionGroup(data=SubscriptionGroupConfig(group_name="g")))
    with suppress(RequestError):
        await client.ask(UpdateAndCreateSubscriptionGroup(data=SubscriptionGroupConfig(group_name="a b")))
    groups = SubscriptionGroupList(group_config_list=[SubscriptionGroupConfig(group_name="h")])
    await client.ask(UpdateAndCreateSubscriptionGroupList(data=groups))
    times = buckets(node, "rocketmq_topic_create_execution_time")
    assert {labels: counts[-1][1] for labels, counts in times.items()} == {
        ("success", "false"): 2, ("failure", "true"): 1,
    }  # fmt: skip
    assert [bound for bound, _ in times["success", "false"]] == [10, 100, 1000, 3000, 5000, inf]
    times = buckets(node, "rocketmq_consumer_group_create_execution_time")
    assert {labels: counts[-1][1] for labels, counts in times.items()} == {("success",): 2, ("failure",): 1}


def test_execution_times_are_in_milliseconds() -> None:
    times, clock = ExecutionTimes(), FakeClock()
    with times.measure(clock):
        clock.pass_ms(150)
    assert [count for _, count in times.histograms["success", False].shown_buckets()] == [0, 0, 1, 1, 1, 1]
    assert times.histograms["success", False].total == 150
