"""All metrics of one broker: the official ones, and our own of its store, its waiting requests and skipped records."""

from collections.abc import Iterator

from gateway.broker.assembly.consumer_lag import ConsumerLags
from gateway.broker.official_metrics import (
    Labels,
    connection_count_metrics,
    node_labels,
    storage_metrics,
    timer_metrics,
    traffic_metrics,
)
from gateway.broker.processors.broker import Broker
from gateway.broker.store_metrics import store_metrics
from gateway.runtime.metrics import Metric


def broker_metrics(part: str, broker: Broker) -> Iterator[Metric | None]:
    """Yield all metrics of a broker, our own with the label ``part``; None wherever other tasks may run in between."""
    yield from broker.damaged.metrics()
    yield from store_metrics(part, broker.store)
    labels = {"part": part}
    yield Metric(
        "waiting_requests", len(broker.long_polls), "requests that wait for messages", "gauge", labels
    )
    meaning = "consumer groups whose members subscribe to different messages, so that some are skipped"
    yield Metric("inconsistent_groups", len(broker.clients.inconsistent_groups), meaning, "gauge", labels)
    held = broker.group_commit.held_count
    yield Metric("held_answers", held, "answers that wait for the disk", "gauge", labels)
    meaning = "flushes of the commit log to the disk"
    yield Metric("flushes_total", broker.group_commit.flushes, meaning, labels=labels)
    meaning = "duration of the longest flush since the start"
    yield Metric("longest_flush_seconds", broker.group_commit.longest_flush_s, meaning, "gauge", labels)
    yield from _official_metrics(broker)


def _official_metrics(broker: Broker) -> Iterator[Metric | None]:
    config = broker.config
    node, limit = node_labels(config.broker_cluster_name, config.broker_name), config.limits.max_metric_series
    yield from _counts(broker, node)
    yield from storage_metrics(broker.store, node)
    yield from traffic_metrics(broker.stats, node, limit)
    yield None
    yield from connection_count_metrics(broker.clients, node, limit)
    if broker.timer_delivery is not None:
        yield from timer_metrics(broker.timer_delivery, node, limit)
    reviver = broker.pop.state.reviver
    lags = ConsumerLags(broker.store, broker.topics, broker.offsets, broker.clients, reviver)
    yield from lags.metrics(node, limit)


def _counts(broker: Broker, node: Labels) -> Iterator[Metric]:
    permission, topics, groups = (
        broker.config.broker_permission,
        len(broker.topics.table),
        len(broker.groups.table),
    )
    yield Metric("rocketmq_broker_permission", permission, "4 read, 2 write, 6 both", "gauge", node)
    yield Metric("rocketmq_topic_number", topics, "topics", "gauge", node)
    yield Metric("rocketmq_consumer_group_number", groups, "subscription groups", "gauge", node)
    ends = broker.transactions
    yield Metric("rocketmq_commit_messages_total", ends.committed, "committed transactions", labels=node)
    yield Metric(
        "rocketmq_rollback_messages_total", ends.rolled_back, "rolled back transactions", labels=node
    )
