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
from codec.topics import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_PREFIX, SYSTEM_TOPICS, is_system_group
from gateway.broker.client_registry import ClientRegistry
from gateway.broker.stored_counts import StoredCount
from gateway.broker.stored_messages import earliest_log_timestamp
from gateway.broker.timer_delivery import TimerDelivery
from gateway.broker.traffic_stats import BrokerStats, TrafficCount
from gateway.runtime.metrics import Distribution, Metric
from storage.store import MessageStore

K = TypeVar("K", bound=Hashable)
Labels = Mapping[str, str]

MILLISECONDS: Final = "milliseconds"
OTHER: Final = "other"
"""The name under which topics and groups beyond `maxMetricSeries` are summed."""
ITEMS_PER_SLICE: Final = 128
_CONSUME_MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}


def node_labels(cluster: str, broker_name: str) -> Labels:
    """Return the labels that every official series of a broker has."""
    return {"cluster": cluster, "node_type": "broker", "node_id": broker_name}


def is_system_topic(topic: str) -> bool:
    """Return True for the broker's own topics. Source: TopicValidator.isSystemTopic, 5.4.0."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


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
    yield from stored_metrics(stats.put, labels, limit)
    for pair in sum_traffic(stats.got, limit, ("", "")):
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
        producers.update((each.language, version_name(each.version)) for each in list(members.values()))
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
            (name, mode, each.language, version_name(each.version)) for each in list(group.clients.values())
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
    behind = store.index.unindexed_bytes if store.config.message_index_enable else 0
    yield gauge("dispatch_behind_bytes", behind, "bytes whose messages are not in the index yet")
    earliest_ms = earliest_log_timestamp(store)
    age_ms = max(0, store.clock.now_ms() - earliest_ms) if earliest_ms >= 0 else 0
    yield gauge("message_reserve_time", age_ms, "age of the oldest message, in ms", MILLISECONDS)


def timer_metrics(timers: TimerDelivery, labels: Labels, limit: int) -> Iterator[Metric | None]:
    """Yield progress and number of timer messages."""
    counts, stored = timers.metrics, _storage_labels(labels)

    def gauge(name: str, value: float, meaning: str, unit: str = "") -> Metric:
        return Metric(f"rocketmq_timer_{name}", value, meaning, "gauge", stored, unit)

    yield gauge("enqueue_lag", timers.behind_messages, "timer messages not read into the wheel yet")
    meaning = "age of the first of them, in ms"
    yield gauge("enqueue_latency", timers.enqueue_behind_ms, meaning, MILLISECONDS)
    yield gauge("dequeue_lag", timers.waiting_count, "timer messages in the wheel, due or not")
    meaning = "lateness of the delivery of timer messages, in ms"
    yield gauge("dequeue_latency", timers.behind_ms, meaning, MILLISECONDS)
    yield Metric("rocketmq_timer_enqueue_total", timers.enqueued, "timer messages scheduled", labels=stored)
    yield Metric("rocketmq_timer_dequeue_total", timers.delivered, "timer messages delivered", labels=stored)
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
