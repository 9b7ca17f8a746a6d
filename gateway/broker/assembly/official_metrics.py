"""Metrics of one broker under the names that official brokers use since 5.1, so that existing dashboards keep working.

Source: BrokerMetricsManager, BrokerMetricsConstant and DefaultStoreMetricsManager, 5.4.0. Values, units and labels are
the official ones. The lag of consumers is in `assembly/consumer_lag.py`.

At most `maxMetricSeries` topics, and as many groups with their topics, have series of their own: the first ones that
were seen. The others are summed under the name `other`, so that a scrape stays small whatever clients create.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from typing import Final, TypeVar

from codec.constants import version_name
from codec.topics import DLQ_PREFIX, RETRY_PREFIX, is_system_group, is_system_topic
from gateway.broker.consumers.client_registry import ClientRegistry
from gateway.broker.delayed.timer_delivery import TimerDelivery
from gateway.broker.messages.stored_messages import earliest_log_timestamp
from gateway.broker.statistics.stored_counts import StoredCount
from gateway.broker.statistics.traffic_stats import BrokerStats, TrafficCount
from gateway.runtime.metrics import Distribution, FixedHistogram, Metric
from storage.store import MessageStore

K = TypeVar("K", bound=Hashable)
Labels = Mapping[str, str]

MILLISECONDS: Final = "milliseconds"
OTHER: Final = "other"
"""The name under which topics and groups beyond `maxMetricSeries` are summed."""
ITEMS_PER_SLICE: Final = 128
SLOTS_PER_SLICE: Final = 4096
WAITING_TIME_BOUNDS_S: Final = (5, 60, 300, 900, 3600, 14400, 28800, 86400)
"""Source: TimerMetrics, 5.4.0."""
_CONSUME_MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}


def node_labels(cluster: str, broker_name: str) -> Labels:
    """Return the labels that every official series of a broker has."""
    return {"cluster": cluster, "node_type": "broker", "node_id": broker_name}


def yes_or_no(value: bool) -> str:
    """Return the text of a label that is true or false, as Java writes it."""
    return "true" if value else "false"


def sum_traffic(
    counts: Mapping[K, TrafficCount], limit: int, other: K
) -> Iterator[tuple[K, TrafficCount] | None]:
    """Yield the first ``limit`` counters, then the sum of the rest under ``other``; None lets other tasks run."""
    rest = TrafficCount()
    items = list(counts.items())
    for number, (key, count) in enumerate(items):
        if number % ITEMS_PER_SLICE == ITEMS_PER_SLICE - 1:
            yield None
        if number < limit:
            yield key, count
        else:
            rest.messages += count.messages
            rest.bytes += count.bytes
    if len(items) > limit:
        yield other, rest


def histograms_by_topic(
    name: str, histograms: Mapping[str, FixedHistogram], meaning: str, labels: Labels, limit: int, unit: str
) -> Iterator[Distribution | None]:
    """Yield a histogram for each of the first ``limit`` topics, then one of the rest; None lets other tasks run."""
    rest: FixedHistogram | None = None
    for number, (topic, histogram) in enumerate(list(histograms.items())):
        if number % ITEMS_PER_SLICE == ITEMS_PER_SLICE - 1:
            yield None
        if number < limit:
            yield Distribution(name, histogram, meaning, {**labels, "topic": topic or OTHER}, unit)
        elif rest is None:
            rest = histogram.copy()
        else:
            rest.merge(histogram)
    if rest is not None:
        yield Distribution(name, rest, meaning, {**labels, "topic": OTHER}, unit)


def counts_by_topic(
    name: str, counts: Mapping[str, TrafficCount], meaning: str, labels: Labels, limit: int
) -> Iterator[Metric | None]:
    """Yield the messages of each topic as counters."""
    for pair in sum_traffic(counts, limit, ""):
        if pair is None:
            yield None
            continue
        topic, count = pair
        yield Metric(name, count.messages, meaning, labels={**labels, "topic": topic or OTHER})


def stored_metrics(
    counts: Mapping[str, StoredCount], labels: Labels, limit: int
) -> Iterator[Metric | Distribution | None]:
    """Yield messages in, their bytes and their sizes, by topic and type of message."""
    rest = StoredCount()
    items = list(counts.items())
    for number, (topic, count) in enumerate(items):
        if number % ITEMS_PER_SLICE == ITEMS_PER_SLICE - 1:
            yield None
        if number < limit:
            yield from _stored_in_topic(topic, count, labels)
        else:
            rest.add(count)
    if len(items) > limit:
        yield from _stored_in_topic("", rest, labels)


def _stored_in_topic(topic: str, count: StoredCount, labels: Labels) -> Iterator[Metric | Distribution]:
    of_topic = {**labels, "topic": topic or OTHER, "is_system": yes_or_no(is_system_topic(topic))}
    for kind, stored in count.by_type():
        of_type = {**of_topic, "message_type": kind.value}
        yield Metric("rocketmq_messages_in_total", stored.messages, "messages stored", labels=of_type)
        yield Metric("rocketmq_throughput_in_total", stored.bytes, "bytes of messages stored", labels=of_type)
        meaning = "sizes of stored messages in bytes; a batch counts once, with the mean of its messages"
        yield Distribution("rocketmq_message_size", stored.sizes, meaning, of_type)


def traffic_metrics(stats: BrokerStats, labels: Labels, limit: int) -> Iterator[Metric | Distribution | None]:
    """Yield messages and bytes in and out, by topic and group, and the messages that groups gave up on."""
    yield from stored_metrics(stats.stored, labels, limit)
    for pair in sum_traffic(stats.delivered, limit, ("", "")):
        if pair is None:
            yield None
            continue
        (group, topic), count = pair
        is_retry = yes_or_no(topic.startswith((RETRY_PREFIX, DLQ_PREFIX)))
        of_group = {**_group_labels(labels, group, topic), "is_retry": is_retry}
        yield Metric("rocketmq_messages_out_total", count.messages, "messages delivered", labels=of_group)
        yield Metric("rocketmq_throughput_out_total", count.bytes, "bytes delivered", labels=of_group)
    meaning = "messages that groups gave up on, by the topic they were sent to"
    for pair in sum_traffic(stats.dead_letters, limit, ("", "")):
        if pair is None:
            yield None
            continue
        (group, topic), count = pair
        of_group = _group_labels(labels, group, topic)
        yield Metric("rocketmq_send_to_dlq_messages_total", count.messages, meaning, labels=of_group)


def _group_labels(labels: Labels, group: str, topic: str) -> dict[str, str]:
    is_system = yes_or_no(is_system_topic(topic) or is_system_group(group))
    return {
        **labels, "topic": topic or OTHER, "consumer_group": group or OTHER, "is_system": is_system,
    }  # fmt: skip


def connection_count_metrics(clients: ClientRegistry, labels: Labels, limit: int) -> Iterator[Metric | None]:
    """Yield the connections of producers by client version, and of consumers by group as well."""
    producers: Counter[tuple[str, str]] = Counter()
    for members in list(clients.producers.values()):
        producers.update(
            (producer.language, version_name(producer.version)) for producer in list(members.values())
        )
        yield None
    for (language, version), number in producers.items():
        of_client = {**labels, "language": language.lower(), "version": version.lower()}
        of_client["protocol_type"] = "remoting"
        meaning = "memberships of connections in producer groups"
        yield Metric("rocketmq_producer_connections", number, meaning, "gauge", of_client)
    consumers: Counter[tuple[str, str, str, str]] = Counter()
    for position, group in enumerate(list(clients.consumers.values())):
        name = group.name if position < limit else OTHER
        mode = _CONSUME_MODES.get(group.consume_type or "", "unknown")
        consumers.update(
            (name, mode, consumer.language, version_name(consumer.version))
            for consumer in list(group.clients.values())
        )
        yield None
    for (name, mode, language, version), number in consumers.items():
        of_group = {**labels, "consumer_group": name, "consume_mode": mode, "protocol_type": "remoting"}
        of_group |= {"language": language.lower(), "version": version.lower()}
        of_group["is_system"] = yes_or_no(is_system_group(name))
        meaning = "connections of consumers"
        yield Metric("rocketmq_consumer_connections", number, meaning, "gauge", of_group)


def _storage_labels(labels: Labels) -> Labels:
    """Return the labels of every series of a store. Source: DefaultStoreMetricsManager.newAttributesBuilder, 5.4.0."""
    return {**labels, "storage_type": "local", "storage_medium": "disk"}


def storage_metrics(store: MessageStore, labels: Labels) -> Iterator[Metric]:
    """Yield size and age of the commit log, and what is not flushed or not indexed yet."""
    stored = _storage_labels(labels)

    def gauge(name: str, value: float, meaning: str, unit: str = "bytes") -> Metric:
        return Metric(f"rocketmq_storage_{name}", value, meaning, "gauge", stored, unit)

    end = store.max_physical_offset
    yield gauge("size", end - store.min_physical_offset, "bytes in the commit log")
    yield gauge("flush_behind_bytes", max(0, end - store.durable_offset), "bytes that a power cut would lose")
    unindexed_bytes = store.index.unindexed_bytes if store.config.message_index_enable else 0
    yield gauge("dispatch_behind_bytes", unindexed_bytes, "bytes whose messages are not in the index yet")
    earliest_ms = earliest_log_timestamp(store)
    age_ms = max(0, store.clock.now_ms() - earliest_ms) if earliest_ms >= 0 else 0
    yield gauge("message_reserve_time", age_ms, "age of the oldest message, in ms", MILLISECONDS)


def timer_metrics(timers: TimerDelivery, labels: Labels, limit: int) -> Iterator[Metric | None]:
    """Yield how far the delivery of timer messages is, and how many wait."""
    counts, stored = timers.metrics, _storage_labels(labels)

    def gauge(name: str, value: float, meaning: str, unit: str = "") -> Metric:
        return Metric(f"rocketmq_timer_{name}", value, meaning, "gauge", stored, unit)

    yield gauge("enqueue_lag", timers.behind_messages, "timer messages not read into the wheel yet")
    meaning = "age of the first of them, in ms"
    yield gauge("enqueue_latency", timers.enqueue_behind_ms, meaning, MILLISECONDS)
    yield gauge("dequeue_lag", timers.waiting_count, "timer messages in the wheel, due or not")
    meaning = "lateness of the delivery of timer messages, in ms"
    yield gauge("dequeue_latency", timers.behind_ms, meaning, MILLISECONDS)
    yield from _waiting_times(timers, stored)
    rest = 0
    meaning = "timer messages that wait for their time"
    topics = counts.topics()
    for number, topic in enumerate(topics):
        if number % ITEMS_PER_SLICE == ITEMS_PER_SLICE - 1:
            yield None
        if number >= limit:
            rest += counts.count(topic)
            continue
        yield Metric(
            "rocketmq_timing_messages", counts.count(topic), meaning, "gauge", {**stored, "topic": topic}
        )
    if len(topics) > limit:
        yield Metric("rocketmq_timing_messages", rest, meaning, "gauge", {**stored, "topic": OTHER})


def _waiting_times(timers: TimerDelivery, labels: Labels) -> Iterator[Metric | None]:
    """Yield the numbers of timer messages that wait, by the time left. Each excludes the smaller ones."""
    meaning = "timer messages whose time comes within the bound, but not within the next smaller one"
    for numbers in timers.waiting_counts(WAITING_TIME_BOUNDS_S, SLOTS_PER_SLICE):
        if numbers is None:
            yield None
            continue
        for bound_s, number in zip(WAITING_TIME_BOUNDS_S, numbers, strict=True):
            of_bound = {**labels, "timer_bound_s": str(bound_s)}
            yield Metric("rocketmq_timer_message_snapshot", number, meaning, "gauge", of_bound)


def timer_traffic_metrics(
    stats: BrokerStats, labels: Labels, limit: int
) -> Iterator[Metric | Distribution | None]:
    """Yield timer messages that were scheduled and delivered, and their delays, by their real topic."""
    stored = _storage_labels(labels)
    meaning = "timer messages put into the wheel"
    yield from counts_by_topic("rocketmq_timer_enqueue_total", stats.timers_scheduled, meaning, stored, limit)
    meaning = "timer messages delivered"
    yield from counts_by_topic("rocketmq_timer_dequeue_total", stats.timers_delivered, meaning, stored, limit)
    name, meaning = (
        "rocketmq_delay_message_latency",
        "time from the birth of timer messages to their slot, in s",
    )
    yield from histograms_by_topic(name, stats.timer_delays_s, meaning, stored, limit, "seconds")


def transaction_metrics(
    stats: BrokerStats, labels: Labels, limit: int
) -> Iterator[Metric | Distribution | None]:
    """Yield committed and rolled back transactions by their real topic, and the time to their commit."""
    name = "rocketmq_commit_messages_total"
    yield from counts_by_topic(name, stats.committed, "committed transactions", labels, limit)
    name = "rocketmq_rollback_messages_total"
    yield from counts_by_topic(name, stats.rolled_back, "rolled back transactions", labels, limit)
    meaning = "time from the birth of a half message to its commit, in s"
    latencies = stats.commit_latencies_s
    yield from histograms_by_topic("rocketmq_finish_message_latency", latencies, meaning, labels, limit, "ms")


def revived_metrics(stats: BrokerStats, labels: Labels, limit: int) -> Iterator[Metric | None]:
    """Yield the popped messages that were not acknowledged. Source: PopMetricsManager, 5.4.0."""
    meaning = "messages written to retry topics because nobody acknowledged them"
    for pair in sum_traffic(stats.revived, limit, ("", "")):
        if pair is None:
            yield None
            continue
        (group, topic), count = pair
        written = {
            **labels,
            "consumer_group": group or OTHER,
            "topic": topic or OTHER,
            "put_status": "PUT_OK",
        }
        yield Metric("rocketmq_pop_revive_retry_messages_total", count.messages, meaning, labels=written)


def execution_time_metrics(stats: BrokerStats, labels: Labels) -> Iterator[Distribution]:
    """Yield the time that requests took which create or change topics and groups."""
    meaning = "time to create or change topics, in ms"
    for (outcome, is_system), times in list(stats.topic_changes.histograms.items()):
        of_request = {**labels, "invocation_status": outcome, "is_system": yes_or_no(is_system)}
        yield Distribution("rocketmq_topic_create_execution_time", times, meaning, of_request, MILLISECONDS)
    meaning = "time to create or change groups, in ms"
    for (outcome, _), times in list(stats.group_changes.histograms.items()):
        of_request = {**labels, "invocation_status": outcome}
        name = "rocketmq_consumer_group_create_execution_time"
        yield Distribution(name, times, meaning, of_request, MILLISECONDS)
