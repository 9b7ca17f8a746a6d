"""Names, kinds and labels of the metrics, compared with a recording of an official broker."""

import re
import tomllib
from pathlib import Path

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from gateway.broker.assembly.metrics import broker_metrics
from gateway.broker.statistics.stored_counts import MessageType
from gateway.http_server.exposition import render_exposition
from gateway.runtime.metrics import MetricRegistry
from gateway.tests.broker_fakes import FakeConnection
from gateway.tests.broker_world import World

RECORDED = tomllib.loads(Path(__file__).with_name("official_metrics.toml").read_text())
PAGE = Path(__file__).parents[4] / "docs" / "reference" / "metrics.md"
NODE = {"cluster", "node_type", "node_id"}
MISSING = {
    "rocketmq_pop_buffer_scan_time_consume_milliseconds", "rocketmq_pop_offset_buffer_size",
    "rocketmq_pop_revive_in_message_total", "rocketmq_pop_revive_out_message_total",
    "rocketmq_processor_watermark", "rocketmq_rpc_latency_milliseconds",
}  # fmt: skip
"""Official metrics that a broker of ours does not have; the page of metrics says why."""
FEWER_LABELS = {"rocketmq_half_messages": {"topic"}}
"""Official labels that ours lack."""


async def shown():
    """Return kind and labels of the metrics of a broker on which everything has happened once, by name."""
    world = World(timer_wheel_enable=True)
    broker, stats = world.broker, world.broker.stats
    world.topic("t", 1)
    world.beat(FakeConnection(), "t", producers=["p"])
    broker.groups.find_or_create("g")
    broker.offsets.commit_offset("g", "t", 0, 0)
    for kind in MessageType:
        stats.stored["t"].count_request(kind, 100)
    stats.delivered["g", "t"].count_messages(1, 100)
    for by_group in (stats.dead_letters, stats.revived):
        by_group["g", "t"].count_messages(1, 0)
    for by_topic in (stats.committed, stats.rolled_back, stats.timers_scheduled, stats.timers_delivered):
        by_topic["t"].count_messages(1, 0)
    for histograms in (stats.commit_latencies_s, stats.timer_delays_s):
        histograms["t"].record(1)
    for changes in (stats.topic_changes, stats.group_changes):
        with changes.measure(world.clock):
            pass
    broker.timer_delivery.metrics.adjust_count("t", 1, 0)
    registry = MetricRegistry()
    registry.register(lambda: broker_metrics("broker-a", broker))
    text = (await render_exposition(registry, "rocketmq_gateway_")).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("rocketmq_") and not family.name.startswith("rocketmq_gateway_"):
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = set().union(*(each.labels for each in family.samples))
            found[name] = (family.type, labels - {"le"})
    return found


def test_metrics_are_those_of_an_official_broker():
    found = trio.run(shown)
    assert found.keys() == RECORDED.keys() - MISSING
    for name, (kind, labels) in found.items():
        official = RECORDED[name]
        expected = NODE | set(official["labels"]) - FEWER_LABELS.get(name, set())
        assert (kind, labels) == (official["kind"], expected), name


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_the_page_lists_every_official_metric(name):
    page = PAGE.read_text()
    served, missing = page.split("These official metrics are missing:")
    part = missing if name in MISSING else served
    assert re.search(rf"`{name.removesuffix('_milliseconds') if name in MISSING else name}`", part)
