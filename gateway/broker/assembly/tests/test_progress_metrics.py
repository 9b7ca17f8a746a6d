"""Metrics of what waits in a broker: half messages, pops and timer messages, on a simulated cluster."""

import trio

from gateway.broker.assembly.metrics import broker_metrics
from gateway.runtime.metrics import Distribution
from gateway.tests.cluster import Cluster, Node, message, simulated
from gateway.tests.popping import pop_request
from gateway.tests.transacting import ROLLBACK, started

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


def latencies(node: Node) -> list[tuple[float, int]]:
    samples = [each for each in broker_metrics("p", node.broker) if isinstance(each, Distribution)]
    (found,) = [each for each in samples if each.name == "rocketmq_finish_message_latency"]
    return list(found.histogram.shown_buckets())


@simulated
async def test_half_messages_wait_until_they_are_ended(cluster: Cluster) -> None:
    node, producer = await started(cluster, **CHECKS)
    sent = [await producer.half(key=f"U{number}") for number in range(3)]
    assert values(node)["rocketmq_half_messages"] == 3
    await trio.sleep(7)
    await producer.end(sent[1])
    await producer.end(sent[2], ROLLBACK)
    assert values(node)["rocketmq_half_messages"] == 1
    assert latencies(node)[:2] == [(5, 0), (60, 1)]
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
    await client.ask(pop_request(queue_id=0, invisible_time=20_000))
    await trio.sleep(3)
    found = values(node)
    assert found["rocketmq_pop_checkpoint_buffer_size"] == found["rocketmq_pop_revive_lag"] == 1
    assert 3_000 <= found["rocketmq_pop_revive_latency"] < 4_000
    assert found["rocketmq_pop_revive_retry_messages_total"] == 0
    await trio.sleep(30)
    found = values(node)
    assert found["rocketmq_pop_checkpoint_buffer_size"] == found["rocketmq_pop_revive_lag"] == 0
    assert found["rocketmq_pop_revive_latency"] == 0
    assert found["rocketmq_pop_revive_retry_messages_total"] == 2


@simulated
async def test_timer_messages_that_nobody_schedules(cluster: Cluster) -> None:
    node = await cluster.add_broker(timer_wheel_enable=True, timer_stop_enqueue=True)
    client = cluster.dial(node.address)
    await client.ask(message(properties={"TIMER_DELAY_SEC": "3600"}))
    await trio.sleep(5)
    found = values(node)
    assert found["rocketmq_timer_enqueue_lag"] == 1
    assert found["rocketmq_timer_enqueue_latency"] >= 5_000
