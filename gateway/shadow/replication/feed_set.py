"""All replicated queues: discovered at the primary, created at the target, each followed by a task of its own."""

import heapq
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import trio

from codec.constants import ResponseCode
from codec.topics import DLQ_PREFIX, RETRY_PREFIX
from gateway.runtime.metrics import Metric
from gateway.runtime.parallel import process_in_parallel
from gateway.shadow.clusters.cluster import MAX_QUEUES_PER_TOPIC, Cluster
from gateway.shadow.clusters.metadata_sync import copy_topic, is_system_topic, topics_of
from gateway.shadow.replication.queue_copier import PullOptions, QueueCopier, QueuePlace
from gateway.shadow.replication.queue_feed import FeedPhase, QueueFeed
from gateway.shadow.replication.read_ahead import ReadAheadBudget
from gateway.shadow.replication.settings import QueueCopySettings
from remoting.bodies.topics import TopicConfig
from remoting.errors import RequestError
from remoting.requests.topics import GetTopicConfig
from toolkit.rate_limiter import TrioRateLimiter

log = logging.getLogger(__name__)

QUEUES_PER_TURN: Final = 500
"""Queues that are examined before other tasks have their turn: about 2 ms."""
MAX_BROKERS_ASKED_AT_A_TIME: Final = 32
MIN_PAUSE_PER_DISCOVERY: Final = 10
"""The pause between discoveries is at least this many times as long as the last one took."""
GONE_S: Final = 3_600.0

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
        settings: QueueCopySettings,
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
        self._seen_s: dict[str, float] = {}
        self._discovery_requested = trio.Event()
        self._discovery_done = trio.Event()
        self.left_out = 0
        """Queues that are not copied because there are too many, as of the last discovery."""

    # -- discovery ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Discover queues and follow them, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._discovery_requested = trio.Event()
                started_s = trio.current_time()
                await self._discover_queues(nursery)
                took_s = trio.current_time() - started_s
                # Brokers with a hundred thousand topics take long to list them, and must not spend their time on that.
                with trio.move_on_after(
                    max(self._settings.discover_ms / 1000, took_s * MIN_PAUSE_PER_DISCOVERY)
                ):
                    await self._discovery_requested.wait()

    def request_discovery(self) -> None:
        """Discover queues at once, because a topic is new or the selection has changed."""
        self._discovery_requested.set()

    async def wait_for_discovery(self) -> None:
        """Return after the next discovery."""
        await self._discovery_done.wait()

    async def _discover_queues(self, nursery: trio.Nursery) -> None:
        """Ask all brokers of the primary for their topics; one that does not answer holds up no other."""
        try:
            await self._primary.refresh()
            await self._target.refresh()
        except Exception as problem:  # noqa: BLE001 - whatever a side does wrong, the next discovery tries again
            self._note_problem(str(problem) or type(problem).__name__)
            return
        self._stop_feeds_of_gone_brokers()
        self.left_out = 0
        problems: list[str] = []

        async def ask_broker(broker: str) -> None:
            try:
                await self._adjust_feeds(nursery, broker, await topics_of(self._primary, broker))
            except Exception as problem:  # noqa: BLE001 - as above
                problems.append(str(problem) or type(problem).__name__)

        await process_in_parallel(list(self._primary.brokers), ask_broker, MAX_BROKERS_ASKED_AT_A_TIME)
        if self.left_out:
            problems.append(
                f"{self.left_out} queues are more than [replication] queues, or than a topic may have"
            )
        self._note_problem(problems[0] if problems else "")
        # Tasks that wait now are woken by this discovery; those that begin to wait later, by the next one.
        done, self._discovery_done = self._discovery_done, trio.Event()
        done.set()

    def _note_problem(self, reason: str) -> None:
        if reason and reason != self.problem:
            log.warning("cannot discover topics to replicate", extra={"reason": reason})
        self.problem = reason

    async def _adjust_feeds(
        self, nursery: trio.Nursery, broker: str, topics: Mapping[str, TopicConfig]
    ) -> None:
        selected = await self._select_queues(broker, topics)
        followed = {key for key in self.feeds if key[0] == broker}
        for key in followed - selected:
            self._stop_feed(key)
        for number, key in enumerate(sorted(selected - followed)):
            # The limit is for all brokers together. Queues beyond it are counted and reported as a problem.
            if len(self.feeds) >= self._settings.queues:
                self.left_out += len(selected - followed) - number
                return
            self._start_feed(nursery, key)
            if not number % QUEUES_PER_TURN:
                await trio.lowlevel.checkpoint()

    async def _select_queues(self, broker: str, topics: Mapping[str, TopicConfig]) -> set[QueueKey]:
        """Return the queues to follow, yielding to other tasks in between."""
        selected: set[QueueKey] = set()
        since_turn = 0
        for topic, config in topics.items():
            if self._is_topic_copied(topic):
                if config.read_queue_nums > MAX_QUEUES_PER_TOPIC:
                    self.left_out += config.read_queue_nums
                    continue
                for queue_id in range(config.read_queue_nums):
                    if self._selects_queue(broker, topic, queue_id):
                        selected.add((broker, topic, queue_id))
                    since_turn += 1
                    if since_turn >= QUEUES_PER_TURN:
                        since_turn = 0
                        await trio.lowlevel.checkpoint()
            since_turn += 1
        return selected

    def _is_topic_copied(self, topic: str) -> bool:
        if is_system_topic(topic):
            return False
        if topic.startswith(RETRY_PREFIX) and not self._settings.retry_topics:
            return False
        return not topic.startswith(DLQ_PREFIX) or self._settings.dead_letters

    def _stop_feeds_of_gone_brokers(self) -> None:
        """Stop the feeds of brokers that the primary has not named for `GONE_S`; the target keeps their state."""
        now_s = trio.current_time()
        for broker in self._primary.brokers:
            self._seen_s[broker] = now_s
        for broker in [name for name, seen_s in self._seen_s.items() if now_s - seen_s > GONE_S]:
            del self._seen_s[broker]
            for key in [key for key in self.feeds if key[0] == broker]:
                self._stop_feed(key)

    def _stop_feed(self, key: QueueKey) -> None:
        self._scopes.pop(key).cancel()
        del self.feeds[key]

    def _start_feed(self, nursery: trio.Nursery, key: QueueKey) -> None:
        broker, topic, queue_id = key
        queue_place = QueuePlace(broker, self._target_of(broker), topic, queue_id)
        copier = QueueCopier(
            self._primary, self._target, queue_place, self._pull_options, self._settings.begin
        )
        prepare = partial(ensure_queue, self._primary, self._target, queue_place)
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
        # The first message of a new topic is mirrored before the topic is discovered.
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

    def status_rows(self, most: int) -> list[dict[str, Any]]:
        """Return rows of queues, as JSON: those with problems first, then by messages behind."""

        def urgency(item: tuple[QueueKey, QueueFeed]) -> tuple[bool, int, QueueKey]:
            key, feed = item
            return not feed.problem, feed.copier.target_end - feed.copier.primary_end, key

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
            for (broker, topic, queue_id), feed in heapq.nsmallest(most, self.feeds.items(), key=urgency)
        ]

    def failing_queues(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each queue that is not copied at the moment, and the reason."""
        for (broker, topic, queue_id), feed in self.feeds.items():
            if feed.problem:
                yield f"{topic} {broker} {queue_id}", feed.problem

    def collect_metrics(self) -> Iterator[Metric]:
        """Yield metrics about all queues."""
        messages = size_bytes = behind = failures = 0
        phases = dict.fromkeys(FeedPhase, 0)
        for feed in self.feeds.values():
            copier = feed.copier
            messages += copier.copied_messages
            size_bytes += copier.copied_bytes
            behind += copier.behind_messages
            failures += feed.failures
            phases[feed.phase] += 1
        yield Metric("replication_messages_total", messages, "Messages copied at their offsets.")
        yield Metric("replication_bytes_total", size_bytes, "Bytes of these messages.")
        yield Metric("replication_behind_messages", behind, "Messages the target lacks.", "gauge")
        meaning = "Failures to copy a queue, each followed by another attempt."
        yield Metric("replication_failures_total", failures, meaning)
        yield Metric("replication_queues_left_out", self.left_out, "Queues not copied: too many.", "gauge")
        for phase, count in phases.items():
            yield Metric("replication_queues", count, "Queues by phase.", "gauge", {"phase": phase.value})


async def _run_in_scope(scope: trio.CancelScope, feed: QueueFeed) -> None:
    with scope:
        await feed.run()


async def ensure_queue(primary: Cluster, target: Cluster, queue_place: QueuePlace) -> None:
    """Create the topic at the target, or add the primary's queues if it lacks this one; change nothing else.

    Raises CLUSTER_ERRORS of `cluster`, KeyError for an unknown broker.
    """
    try:
        config = (
            await target.ask_broker(queue_place.target_broker, GetTopicConfig(topic=queue_place.topic))
        ).data
    except RequestError as refused:
        if refused.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
    else:
        if queue_place.queue_id < max(config.read_queue_nums, config.write_queue_nums):
            return
    await copy_topic(primary, target, queue_place.broker, queue_place.target_broker, queue_place.topic)
