"""All replicated queues: discovered at the primary, created at the target, each followed by a task of its own."""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import trio

from codec.constants import ResponseCode
from codec.topics import DLQ_PREFIX, RETRY_PREFIX
from gateway.runtime.metrics import Metric
from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.clusters.metadata_sync import copy_topic, is_system_topic, topics_of
from gateway.shadow.replication.queue_copier import PullOptions, QueueCopier, QueuePlace
from gateway.shadow.replication.queue_feed import FeedPhase, QueueFeed
from gateway.shadow.replication.read_ahead import ReadAheadBudget
from gateway.shadow.replication.settings import ReplicationSettings
from remoting.bodies.topics import TopicConfig
from remoting.errors import RequestError
from remoting.requests.topics import GetTopicConfig
from toolkit.rate_limiter import TrioRateLimiter

log = logging.getLogger(__name__)

QueueKey = tuple[str, str, int]
"""The primary's broker, topic and queue id."""
QueueSelector = Callable[[str, str, int], bool]
"""Tells whether a queue (broker, topic, queue id) is to be replicated; called again at every discovery."""


class FeedSet:
    """One feed per queue that ``selects_queue`` accepts. ``target_of`` maps a broker of the primary to the target's."""

    def __init__(
        self,
        primary: Cluster,
        target: Cluster,
        settings: ReplicationSettings,
        target_of: Callable[[str], str],
        selects_queue: QueueSelector,
    ) -> None:
        self.feeds: dict[QueueKey, QueueFeed] = {}
        self.problem = ""
        self._primary = primary
        self._target = target
        self._settings = settings
        self._target_of = target_of
        self._selects_queue = selects_queue
        self._pull_options = PullOptions(settings.reader_group, settings.batch_messages)
        self._rate_limiter = TrioRateLimiter(settings.catch_up_rate, settings.catch_up_bytes_rate)
        self._budget = ReadAheadBudget()
        self._scopes: dict[QueueKey, trio.CancelScope] = {}
        self._discovery_requested = trio.Event()
        self._discovery_done = trio.Event()

    # -- discovery ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Discover queues and follow them, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._discovery_requested = trio.Event()
                await self._discover_queues(nursery)
                with trio.move_on_after(self._settings.discover_ms / 1000):
                    await self._discovery_requested.wait()

    def request_discovery(self) -> None:
        """Discover queues at once, because a topic is new or the selection has changed."""
        self._discovery_requested.set()

    async def wait_for_discovery(self) -> None:
        """Return after the next discovery."""
        await self._discovery_done.wait()

    async def _discover_queues(self, nursery: trio.Nursery) -> None:
        try:
            await self._primary.refresh()
            await self._target.refresh()
            for broker in list(self._primary.brokers):
                self._adjust_feeds(nursery, broker, await topics_of(self._primary, broker))
        except Exception as problem:  # noqa: BLE001 - whatever a side does wrong, the next discovery tries again
            reason = str(problem) or type(problem).__name__
            if reason != self.problem:
                log.warning("cannot discover topics to replicate", extra={"reason": reason})
            self.problem = reason
            return
        self.problem = ""
        done, self._discovery_done = self._discovery_done, trio.Event()
        done.set()

    def _adjust_feeds(self, nursery: trio.Nursery, broker: str, topics: Mapping[str, TopicConfig]) -> None:
        selected = {
            (broker, topic, queue_id)
            for topic, config in topics.items()
            for queue_id in range(config.read_queue_nums)
            if self._is_selected(broker, topic, queue_id)
        }
        followed = {key for key in self.feeds if key[0] == broker}
        for key in followed - selected:
            self._scopes.pop(key).cancel()
            del self.feeds[key]
        for key in sorted(selected - followed):
            self._start_feed(nursery, key)

    def _is_selected(self, broker: str, topic: str, queue_id: int) -> bool:
        if is_system_topic(topic):
            return False
        if topic.startswith(RETRY_PREFIX) and not self._settings.retry_topics:
            return False
        if topic.startswith(DLQ_PREFIX) and not self._settings.dead_letters:
            return False
        return self._selects_queue(broker, topic, queue_id)

    def _start_feed(self, nursery: trio.Nursery, key: QueueKey) -> None:
        broker, topic, queue_id = key
        place = QueuePlace(broker, self._target_of(broker), topic, queue_id)
        copier = QueueCopier(self._primary, self._target, place, self._pull_options, self._settings.begin)
        prepare = partial(ensure_queue, self._primary, self._target, place)
        feed = self.feeds[key] = QueueFeed(copier, self._settings, self._rate_limiter, self._budget, prepare)
        scope = self._scopes[key] = trio.CancelScope()
        nursery.start_soon(_run_in_scope, scope, feed)

    # -- progress -----------------------------------------------------------------------------------------------

    async def wait_until(
        self, broker: str, topic: str, queue_id: int, offset: int, *, urgent: bool = True
    ) -> None:
        """Return once the target has the message at this offset of the primary; wait forever if it never gets it.

        ``urgent``: a client waits for it, so the feed of the queue does not pause.
        """
        key = broker, topic, queue_id
        if key not in self.feeds:
            self.request_discovery()
        while key not in self.feeds:
            await self.wait_for_discovery()
        await self.feeds[key].wait_until(offset, urgent=urgent)

    def target_end(self, broker: str, topic: str, queue_id: int) -> int | None:
        """Return the next offset of the target in a queue; None if the queue is not replicated."""
        feed = self.feeds.get((broker, topic, queue_id))
        return None if feed is None else feed.copier.target_end

    def behind_messages(self, topic: str) -> int:
        """Return how many messages of a topic the primary has and the target lacks."""
        return sum(feed.copier.behind_messages for key, feed in self.feeds.items() if key[1] == topic)

    def status_rows(self) -> list[dict[str, Any]]:
        """Return a row for each queue, as JSON."""
        return [
            {
                "broker": broker,
                "topic": topic,
                "queue": queue_id,
                "phase": feed.phase.value,
                "primary": [feed.copier.primary_min, feed.copier.primary_end],
                "target": feed.copier.target_end,
                "copied": feed.copier.copied_messages,
                "problem": feed.problem,
            }
            for (broker, topic, queue_id), feed in sorted(self.feeds.items())
        ]

    def figures(self) -> Iterator[Metric]:
        """Yield metrics about all queues."""
        copiers = [feed.copier for feed in self.feeds.values()]
        yield Metric(
            "kept_messages_total",
            sum(copier.copied_messages for copier in copiers),
            "Messages copied at their offsets.",
        )
        yield Metric(
            "kept_bytes_total", sum(copier.copied_bytes for copier in copiers), "Bytes of these messages."
        )
        behind = sum(copier.behind_messages for copier in copiers)
        yield Metric("kept_behind_messages", behind, "Messages the target lacks.", "gauge")
        failures = sum(feed.failures for feed in self.feeds.values())
        yield Metric(
            "kept_failures_total", failures, "Failures to copy a queue, each followed by another attempt."
        )
        for phase in FeedPhase:
            count = sum(feed.phase is phase for feed in self.feeds.values())
            yield Metric("kept_queues", count, "Queues by phase.", "gauge", {"phase": phase.value})


async def _run_in_scope(scope: trio.CancelScope, feed: QueueFeed) -> None:
    with scope:
        await feed.run()


async def ensure_queue(primary: Cluster, target: Cluster, place: QueuePlace) -> None:
    """Create the topic at the target, or add the primary's queues if it lacks this one; change nothing else.

    Raises CLUSTER_ERRORS of `cluster`, KeyError for an unknown broker.
    """
    try:
        config = (await target.ask_broker(place.target_broker, GetTopicConfig(topic=place.topic))).data
    except RequestError as refused:
        if refused.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
    else:
        if place.queue_id < max(config.read_queue_nums, config.write_queue_nums):
            return
    await copy_topic(primary, target, place.broker, place.target_broker, place.topic)
