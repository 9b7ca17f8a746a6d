"""Copies the history of chosen topics from the primary to a target of ours, at the primary's queue offsets.

The target's queues are the only state: each queue continues at the offset that the target expects next, however the
last attempt ended. The mirror copies messages that arrive later. Targets that assign offsets of their own are
refused.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

import trio

from gateway.runtime.parallel import process_in_parallel
from gateway.shadow.clusters.cluster import CLUSTER_ERRORS, MAX_QUEUES_PER_TOPIC, Cluster
from gateway.shadow.clusters.metadata_sync import is_system_topic, topics_of
from gateway.shadow.replication.feed_set import ensure_queue
from gateway.shadow.replication.queue_copier import PullOptions, QueueCopier, QueuePlace, QueueStuck
from gateway.shadow.replication.read_ahead import ReadAheadBudget, ReadAheadCopier
from toolkit.rate_limiter import TrioRateLimiter

MAX_FAILURES: Final = 8
"""Consecutive failures after which a queue is given up; its problem says why."""
MIN_BACK_OFF_S: Final = 0.2


class BackfillError(ValueError):
    """History cannot be copied to this target; the text says why."""


@dataclass(slots=True)
class QueueProgress:
    """Progress of one queue: of the offsets [begin, goal), those before `position` are at the target."""

    queue_place: QueuePlace
    begin: int
    goal: int
    position: int
    problem: str = ""

    @property
    def copied_messages(self) -> int:
        """Messages that the target has."""
        return max(0, min(self.position, self.goal) - self.begin)

    @property
    def total_messages(self) -> int:
        """Messages that the primary had when the backfill began."""
        return max(0, self.goal - self.begin)

    @property
    def is_finished(self) -> bool:
        """True if everything is copied, or the queue was given up."""
        return bool(self.problem) or self.position >= self.goal


class Backfill:
    """Copies the history of topics: `find_queues` first, then `run`. Both may be called again.

    ``rate`` is in messages per second and ``bytes_rate`` in bytes per second, for all queues together; 0 means
    unlimited. ``target_of`` returns the target's broker for one of the primary's, or raises LookupError.
    """

    def __init__(
        self,
        primary: Cluster,
        target: Cluster,
        target_of: Callable[[str], str],
        *,
        kind: str = "ours",
        rate: float = 5_000.0,
        bytes_rate: float = 0.0,
        parallel: int = 8,
        reader: PullOptions | None = None,
    ) -> None:
        if kind != "ours":
            raise BackfillError(
                'history can be copied only to a target of kind "ours": any other assigns queue offsets of its own'
            )
        self.queues: list[QueueProgress] = []
        self.rate_limiter = TrioRateLimiter(rate, bytes_rate)
        self._primary = primary
        self._target = target
        self._target_of = target_of
        self._reader = reader or PullOptions()
        self._budget = ReadAheadBudget()
        self._parallel = parallel
        self._not_paused = trio.Event()
        self._not_paused.set()
        self._started_s: float | None = None
        self._copied_before = 0

    # -- finding the queues ----------------------------------------------------------------------------------------

    async def find_queues(self, topics: Collection[str]) -> None:
        """Find the queues of topics and their progress.

        Raises CLUSTER_ERRORS, and LookupError for a topic that the primary does not have.
        """
        await self._primary.refresh()
        await self._target.refresh()
        queue_places = []
        for broker in self._primary.brokers:
            configs = await topics_of(self._primary, broker)
            for topic in sorted(topics & configs.keys()):
                if is_system_topic(topic):
                    raise BackfillError(f"{topic} is a system topic, which every broker writes itself")
                count = configs[topic].read_queue_nums
                if count > MAX_QUEUES_PER_TOPIC:
                    raise BackfillError(f"{topic} has {count} queues, more than {MAX_QUEUES_PER_TOPIC}")
                queues = range(count)
                queue_places += [
                    QueuePlace(broker, self._target_of(broker), topic, queue_id) for queue_id in queues
                ]
        missing = set(topics) - {queue.topic for queue in queue_places}
        if missing:
            raise LookupError(f"the primary has no topic {', '.join(sorted(missing))}")
        self.queues = [await self._find_progress(queue_place) for queue_place in queue_places]

    async def _find_progress(self, queue_place: QueuePlace) -> QueueProgress:
        await ensure_queue(self._primary, self._target, queue_place)
        copy = self._new_copier(queue_place)
        problem = ""
        try:
            await copy.refresh_offsets()
        except QueueStuck as reason:
            problem = str(reason)
        return QueueProgress(
            queue_place, copy.primary_min, copy.primary_end, max(copy.target_end, copy.primary_min), problem
        )

    def _new_copier(self, queue_place: QueuePlace) -> QueueCopier:
        return QueueCopier(self._primary, self._target, queue_place, self._reader)

    # -- copying ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Copy all queues up to the offsets that the primary had in `find_queues`, several queues in parallel."""
        self._started_s, self._copied_before = trio.current_time(), self.copied_messages
        await process_in_parallel(self.queues, self._fill_queue, self._parallel)

    def pause(self) -> None:
        """Stop after the reads that are under way."""
        self._not_paused = trio.Event()

    def resume(self) -> None:
        """Continue after `pause`."""
        self._not_paused.set()

    async def _fill_queue(self, progress: QueueProgress) -> None:
        failures = 0
        while not progress.is_finished and failures < MAX_FAILURES:
            before = progress.position
            try:
                await self._copy_range(progress)
            except QueueStuck as reason:
                progress.problem = str(reason)
            except (*CLUSTER_ERRORS, LookupError) as problem:
                # After progress, a failure is the first of a new series.
                failures = 1 if progress.position > before else failures + 1
                if failures == MAX_FAILURES:
                    progress.problem = str(problem) or type(problem).__name__
                await trio.sleep(MIN_BACK_OFF_S * 2**failures)

    async def _copy_range(self, progress: QueueProgress) -> None:
        """Copy one batch, which shows whether the two queues fit together, then several in parallel."""
        copy = self._new_copier(progress.queue_place)
        await copy.refresh_offsets()

        async def on_put(count: int, size_bytes: int) -> None:
            progress.position = max(copy.target_end, progress.begin)
            await self.rate_limiter.acquire(count, size_bytes)

        while max(copy.target_end, copy.primary_min) < progress.goal:
            await self._wait_while_paused()
            before = copy.copied_bytes
            # This put verifies that both sides hold the same queue, on which reading ahead relies.
            count = await copy.copy_once(0)
            await on_put(count, copy.copied_bytes - before)
            await ReadAheadCopier(
                copy, progress.goal, self._budget, self.rate_limiter, on_put, self._wait_while_paused
            ).run()
        # The primary may have deleted everything up to the goal in the meantime. Then nothing is left to copy.
        progress.position = max(copy.target_end, progress.goal if copy.primary_min >= progress.goal else 0)

    async def _wait_while_paused(self) -> None:
        await self._not_paused.wait()

    # -- progress --------------------------------------------------------------------------------------------------

    @property
    def copied_messages(self) -> int:
        """Messages that the target has, out of `total_messages`."""
        return sum(progress.copied_messages for progress in self.queues)

    @property
    def total_messages(self) -> int:
        """Messages of all queues."""
        return sum(progress.total_messages for progress in self.queues)

    def eta_s(self) -> float | None:
        """Return the remaining time in seconds at the average speed so far; None if unknown."""
        if self._started_s is None or self.copied_messages <= self._copied_before:
            return None
        per_s = (self.copied_messages - self._copied_before) / max(
            1e-9, trio.current_time() - self._started_s
        )
        return (self.total_messages - self.copied_messages) / per_s

    def describe_problems(self) -> Iterable[str]:
        """Yield the reason for each queue that could not be copied completely."""
        for progress in self.queues:
            if progress.problem:
                queue_place = progress.queue_place
                yield f"{queue_place.topic} queue {queue_place.queue_id} of {queue_place.broker}: {progress.problem}"
