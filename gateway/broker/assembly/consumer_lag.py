"""The lag of every group in every topic, as metrics with official names.

Source: ConsumerLagCalculator, 5.4.0. Deviations: groups without online members are shown as well, because their lag is
what an alarm has to see, and so are retry topics of push consumers, with ``is_retry="true"``.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from codec.topics import RETRY_PREFIX, is_system_group, is_system_topic
from gateway.broker.assembly.official_metrics import (
    ITEMS_PER_SLICE,
    MILLISECONDS,
    OTHER,
    Labels,
    yes_or_no,
)
from gateway.broker.consumers.client_registry import ClientRegistry
from gateway.broker.consumers.consumer_offsets import ConsumerOffsets
from gateway.broker.pop.reviver import Reviver
from gateway.broker.topics.topic_table import TopicTable
from gateway.runtime.metrics import Metric
from storage.store import MessageStore


@dataclass(slots=True)
class GroupLag:
    """The lag of a group in a topic; all messages are counted, also those that a filter leaves out.

    ``lag`` counts messages that are not consumed, ``in_flight`` those of them that pops have taken. The times are store
    timestamps in ms of the oldest message that is not consumed, and of the oldest that is not delivered; 0 for none.
    """

    lag: int = 0
    in_flight: int = 0
    oldest_unconsumed_ms: int = 0
    oldest_undelivered_ms: int = 0

    def add(self, other: "GroupLag") -> None:
        """Add the lag of another queue, topic or group."""
        self.lag += other.lag
        self.in_flight += other.in_flight
        self.oldest_unconsumed_ms = _earlier(self.oldest_unconsumed_ms, other.oldest_unconsumed_ms)
        self.oldest_undelivered_ms = _earlier(self.oldest_undelivered_ms, other.oldest_undelivered_ms)

    def metrics(self, labels: Labels, now_ms: int) -> Iterator[Metric]:
        """Yield the five official gauges of a group and topic."""

        def gauge(name: str, value: float, meaning: str, unit: str = "") -> Metric:
            return Metric(f"rocketmq_consumer_{name}", value, meaning, "gauge", labels, unit)

        meaning_of_age = "age of the oldest of them, in ms"
        yield gauge("lag_messages", self.lag, "messages of a topic that a group has not consumed")
        yield gauge("lag_latency", _age(self.oldest_unconsumed_ms, now_ms), meaning_of_age, MILLISECONDS)
        yield gauge("inflight_messages", self.in_flight, "messages that were delivered and not acknowledged")
        yield gauge("ready_messages", self.lag - self.in_flight, "messages that can be delivered")
        yield gauge(
            "queueing_latency", _age(self.oldest_undelivered_ms, now_ms), meaning_of_age, MILLISECONDS
        )


def _earlier(first_ms: int, second_ms: int) -> int:
    return min(first_ms, second_ms) if first_ms and second_ms else first_ms or second_ms


def _age(since_ms: int, now_ms: int) -> int:
    return max(0, now_ms - since_ms) if since_ms else 0


class ConsumerLags:
    """Computes the lag of all groups that have committed offsets."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        clients: ClientRegistry,
        reviver: Reviver,
    ) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._clients = clients
        self._reviver = reviver

    def metrics(self, node: Labels, limit: int) -> Iterator[Metric | None]:
        """Yield the gauges of at most ``limit`` groups and topics, then the sum of the others; None between slices."""
        now_ms = self._store.clock.now_ms()
        rest = GroupLag()
        shown = total = looked_up = 0
        for key in list(self._offsets.table):
            topic, _, group = key.partition("@")
            queues = self._offsets.queue_offsets(group, topic)
            if queues is None or not self._is_consumed(group, topic):
                continue
            total += 1
            lag = GroupLag()
            for queue_id, offset in list(queues.items()):
                lag.add(self._queue_lag(topic, group, queue_id, offset))
                looked_up += 1
                if looked_up % ITEMS_PER_SLICE == 0:
                    yield None
            if shown < limit:
                shown += 1
                yield from lag.metrics(_labels(node, group, topic), now_ms)
            else:
                rest.add(lag)
        if total > shown:
            yield from rest.metrics(_labels(node, OTHER, OTHER), now_ms)

    def _is_consumed(self, group: str, topic: str) -> bool:
        """Return False for offsets that an earlier subscription or a deleted topic left behind."""
        return topic in self._topics and self._clients.may_consume(group, topic)

    def _queue_lag(self, topic: str, group: str, queue_id: int, offset: int) -> GroupLag:
        end = self._store.max_offset(topic, queue_id)
        in_flight = self._reviver.count_outstanding(topic, group, queue_id)
        undelivered = max(0, end - offset)
        next_ms = self._store.store_timestamp_at(topic, queue_id, offset) if undelivered else 0
        first_ms = (
            self._store.store_timestamp_at(topic, queue_id, offset - in_flight) if in_flight else next_ms
        )
        return GroupLag(undelivered + in_flight, in_flight, max(0, first_ms), max(0, next_ms))


def _labels(node: Labels, group: str, topic: str) -> Labels:
    return {
        **node,
        "consumer_group": group,
        "topic": topic,
        "is_retry": yes_or_no(topic.startswith(RETRY_PREFIX)),
        "is_system": yes_or_no(is_system_topic(topic) or is_system_group(group)),
    }
