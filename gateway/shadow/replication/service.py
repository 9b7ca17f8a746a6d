"""Offset-preserving replication from the primary to a target that runs this server, as one unit.

A feed follows each queue that rules and modes select (`feed_set.py`), writers wait for the feeds on behalf of mirrored
exchanges (`replication_writer.py`), and two background tasks keep the rest in step: consumer offsets, and the marks of
queues that had diverged. The composition root hands this service to the mirror, which knows it as a
`ForwardReplication`.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Final

import trio

from codec.topics import DLQ_PREFIX, RETRY_PREFIX, group_of_retry_topic
from gateway.runtime.metrics import Metric
from gateway.runtime.supervise import TaskSupervisor
from gateway.shadow.clusters.cluster import CLUSTER_ERRORS, Cluster
from gateway.shadow.clusters.cluster_pair import find_counterpart
from gateway.shadow.mirror.diverged_queues import DivergedQueues
from gateway.shadow.mirror.rules import MirrorRules
from gateway.shadow.mirror.settings import OFF, STRICT_DUAL, SYNC_BEST_EFFORT, TARGET_PRIMARY
from gateway.shadow.replication.consumer_offset_sync import ConsumerOffsetSync
from gateway.shadow.replication.feed_set import FeedSet
from gateway.shadow.replication.replication_writer import ReplicationWriter
from gateway.shadow.replication.settings import QueueCopySettings
from gateway.shadow.traffic.subject import Subject

HEAL_INTERVAL_S: Final = 1.0
HEAL_DELAY_MS: Final = 1_000
"""A request that got no answer may still be stored this long after the queue was marked."""
MAX_STATUS_ROWS: Final = 500


class ReplicationService:
    """Replicates while `run` runs. ``declared`` maps the primary's broker names to the target's."""

    def __init__(
        self,
        settings: QueueCopySettings,
        declared: Mapping[str, str],
        primary: Cluster,
        target: Cluster,
        rules: MirrorRules,
        diverged: DivergedQueues,
    ) -> None:
        def target_of(broker: str) -> str:
            return find_counterpart(broker, target.brokers, declared)

        self.feeds = FeedSet(primary, target, settings, target_of, queue_selector(rules))
        self.offset_sync = ConsumerOffsetSync(primary, target, self.feeds, target_of)
        self.tasks = TaskSupervisor("replication")
        self._settings = settings
        self._primary = primary
        self._target = target
        self._rules = rules
        self._diverged = diverged

    def make_writer(self, broker: str, target_broker: str) -> ReplicationWriter:
        """Return the writer for a broker of the primary and its counterpart."""
        return ReplicationWriter(
            self._primary,
            self._target,
            broker,
            target_broker,
            self.feeds,
            self._settings.hold_ms,
            answer_hold_predicate(self._rules),
        )

    async def run(self) -> None:
        """Replicate until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.tasks.keep_running, "discover queues", self.feeds.run)
            nursery.start_soon(self.tasks.keep_running, "sync consumer offsets", self._sync_offsets)
            nursery.start_soon(self.tasks.keep_running, "clear healed marks", self._watch_marks_and_modes)

    async def _watch_marks_and_modes(self) -> None:
        modes = self._rules.mode_overrides()
        while True:
            await trio.sleep(HEAL_INTERVAL_S)
            clear_healed_marks(self._diverged, self.feeds)
            if modes != self._rules.mode_overrides():
                modes = self._rules.mode_overrides()
                self.feeds.request_discovery()

    async def _sync_offsets(self) -> None:
        while True:
            await trio.sleep(self._settings.offsets_ms / 1000)
            with contextlib.suppress(*CLUSTER_ERRORS, LookupError):  # the feeds report an unreachable side
                await self.offset_sync.sync_offsets()

    def collect_metrics(self) -> Iterator[Metric]:
        """Yield the metrics of the feeds, and the number of consumer offsets moved by comparing tables."""
        yield from self.feeds.collect_metrics()
        yield Metric(
            "replication_offsets_total",
            self.offset_sync.moved_total,
            "Consumer offsets moved by comparing tables.",
        )

    def status(self) -> list[dict[str, Any]]:
        """Return the replicated queues as a table: those with problems first, then by messages behind."""
        return self.feeds.status_rows(MAX_STATUS_ROWS)

    def failing_queues(self) -> Iterator[tuple[str, str]]:
        """Yield queues that are not copied at the moment, and why; at most `MAX_STATUS_ROWS`."""
        return islice(self.feeds.failing_queues(), MAX_STATUS_ROWS)


def clear_healed_marks(diverged: DivergedQueues, feeds: FeedSet) -> int:
    """Clear the marks of queues that the target has had completely since they were marked; return how many."""
    cleared = 0
    for mark in list(diverged):
        feed = feeds.feeds.get((mark.broker, mark.topic, mark.queue_id))
        if (
            feed is not None
            and feed.complete_ms > mark.last_ms + HEAL_DELAY_MS
            and feed.copier.target_end > mark.offset
        ):
            cleared += diverged.clear_marks(mark.topic, mark.broker, mark.queue_id)
    return cleared


SEND_MESSAGE: Final = 10


def find_queue_rule(rules: MirrorRules, topic: str) -> int | None:
    """Return the rule for a topic's queues: the first that names the topic.

    Retry and dead-letter topics belong to the first rule that names their consumer group.
    """
    derived = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    name = group_of_retry_topic(topic).removeprefix(DLQ_PREFIX) if derived else topic
    for index, rule in enumerate(rules.rules):
        if any(fnmatchcase(name, pattern) for pattern in (rule.groups if derived else rule.topics)):
            return index
    return None


def queue_selector(rules: MirrorRules) -> Callable[[str, str, int], bool]:
    """Return a function that tells whether a queue (broker, topic, queue id) is to be replicated at the moment."""

    def selects_queue(broker: str, topic: str, queue_id: int) -> bool:
        index = find_queue_rule(rules, topic)
        # In target-primary the target leads the topic, and its queues grow by the sends of clients.
        if index is None or rules.effective_mode(index, topic) in (OFF, TARGET_PRIMARY):
            return False
        return rules.is_sampled(index, SEND_MESSAGE, Subject(topic, queue_id=queue_id))

    return selects_queue


def answer_hold_predicate(rules: MirrorRules) -> Callable[[str], bool]:
    """Return a function that tells whether clients wait until the target has a topic's messages."""

    def holds_answers(topic: str) -> bool:
        index = find_queue_rule(rules, topic)
        return index is not None and rules.effective_mode(index, topic) in (SYNC_BEST_EFFORT, STRICT_DUAL)

    return holds_answers
