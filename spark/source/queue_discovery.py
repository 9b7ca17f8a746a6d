"""Discovery of the queues that a query reads, and of the offsets they hold; refreshed when too old."""

import re
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from spark.cluster import Extent, Queue, QueueAddresses
from spark.endpoint import Address
from spark.errors import EndpointError
from spark.source.options import TopicSelection

_MAX_SNAPSHOT_AGE_S: Final = 0.1
"""Maximum age of offsets before they are fetched again. A stream without a trigger polls up to 165 times a second."""


class QueueCatalog(Protocol):
    """Part of `ClusterClient` that finds queues."""

    def list_topics(self) -> list[str]: ...

    def find_queues(self, topics: Sequence[str]) -> dict[Queue, Address]: ...

    def unknown_topic_error(self, topic: str) -> EndpointError: ...

    def fetch_extents(self, queues: QueueAddresses) -> dict[Queue, Extent]: ...


class QueueSnapshot(NamedTuple):
    """Queues of a query at one moment: the broker address and the offsets held, with the same keys."""

    queues: dict[Queue, Address]
    extents: dict[Queue, Extent]

    @property
    def begin_offsets(self) -> dict[Queue, int]:
        """First offset of each queue."""
        return {queue: extent.begin for queue, extent in self.extents.items()}

    @property
    def end_offsets(self) -> dict[Queue, int]:
        """Offset that the next message of each queue will get."""
        return {queue: extent.end for queue, extent in self.extents.items()}


class QueueDiscovery:
    """Finds queues and their offsets. New topics, queues and brokers are noticed after at most `max_age_s`."""

    def __init__(
        self,
        cluster: QueueCatalog,
        topics: TopicSelection,
        max_age_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._max_age_s = max_age_s
        self._clock = clock
        self._queues: dict[Queue, Address] = {}
        self._snapshot = QueueSnapshot({}, {})
        self._queues_at = self._snapshot_at = float("-inf")

    def take_snapshot(self, *, fresh: bool = False) -> QueueSnapshot:
        """Return a snapshot at most 100 ms old, or a new one if `fresh`. Raises EndpointError."""
        if fresh or self._clock() - self._snapshot_at > _MAX_SNAPSHOT_AGE_S:
            if fresh or self._clock() - self._queues_at > self._max_age_s:
                self._queues = self._find_queues()
                self._queues_at = self._clock()
            self._snapshot = QueueSnapshot(self._queues, self._cluster.fetch_extents(self._queues))
            self._snapshot_at = self._clock()
        return self._snapshot

    def require_snapshot(self) -> QueueSnapshot:
        """Return a new snapshot. Raises EndpointError if a topic or queue requested by name does not exist."""
        snapshot = self.take_snapshot(fresh=True)
        named_topics = list(self._topics.names or self._topics.assigned or ())
        existing = (
            {queue.topic for queue in self._cluster.find_queues(named_topics)} if named_topics else set()
        )
        for topic in named_topics:
            if topic not in existing:
                raise self._cluster.unknown_topic_error(topic)
        missing_queues = sorted(queue for queue in self._assigned_queues() if queue not in snapshot.queues)
        if missing_queues:
            raise EndpointError(f"option assign: no such queue: {', '.join(map(str, missing_queues))}")
        return snapshot

    def _find_queues(self) -> dict[Queue, Address]:
        names = self._topic_names()
        queues = self._cluster.find_queues(names) if names else {}
        if self._topics.assigned is not None:
            assigned = self._assigned_queues()
            queues = {queue: address for queue, address in queues.items() if queue in assigned}
        return dict(sorted(queues.items()))

    def _topic_names(self) -> list[str]:
        if self._topics.pattern is None:
            return list(self._topics.names or self._topics.assigned or ())
        # A pattern matches retry and dead-letter topics (%RETRY%…, %DLQ%…) only if it contains a % itself.
        reserved = "%" in self._topics.pattern
        pattern = re.compile(self._topics.pattern)
        return [
            name
            for name in self._cluster.list_topics()
            if pattern.fullmatch(name) and (reserved or not name.startswith("%"))
        ]

    def _assigned_queues(self) -> set[Queue]:
        return {
            Queue(topic, broker, queue_id)
            for topic, brokers in (self._topics.assigned or {}).items()
            for broker, ids in brokers.items()
            for queue_id in ids
        }
