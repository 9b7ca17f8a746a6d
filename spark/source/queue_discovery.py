"""Which queues a query reads, and where they begin and end: asked again when what is known is too old.

Not responsible for asking (`spark.cluster`) nor for what becomes of queues that are gone.
"""

import re
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from spark.cluster import Extent, Queue, QueueAddresses
from spark.endpoint import Address
from spark.errors import EndpointError
from spark.source.options import TopicSelection

_MAX_SNAPSHOT_AGE_S: Final = 0.1
"""For so long extents are not asked again: a stream without a trigger looks up to 165 times a second."""


class QueueCatalog(Protocol):
    """Of a cluster what is needed here."""

    def list_topics(self) -> list[str]: ...

    def find_queues(self, topics: Sequence[str]) -> dict[Queue, Address]: ...

    def unknown_topic_error(self, topic: str) -> EndpointError: ...

    def fetch_extents(self, queues: QueueAddresses) -> dict[Queue, Extent]: ...


class QueueSnapshot(NamedTuple):
    """The queues of a query at one moment: whom to ask, and where they begin and end. Both have the same keys."""

    queues: dict[Queue, Address]
    extents: dict[Queue, Extent]

    @property
    def begin_offsets(self) -> dict[Queue, int]:
        """The first offset of each."""
        return {queue: extent.begin for queue, extent in self.extents.items()}

    @property
    def end_offsets(self) -> dict[Queue, int]:
        """Where the next message of each will be."""
        return {queue: extent.end for queue, extent in self.extents.items()}


class QueueDiscovery:
    """`max_age_s`: how soon new topics, queues and brokers are noticed. `clock` counts seconds."""

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
        self._view = QueueSnapshot({}, {})
        self._queues_at = self._view_at = float("-inf")

    def take_snapshot(self, *, fresh: bool = False) -> QueueSnapshot:
        """What there is, as of the last 100 ms, or of now. Raises EndpointError."""
        if fresh or self._clock() - self._view_at > _MAX_SNAPSHOT_AGE_S:
            if fresh or self._clock() - self._queues_at > self._max_age_s:
                self._queues = self._find_queues()
                self._queues_at = self._clock()
            self._view = QueueSnapshot(self._queues, self._cluster.fetch_extents(self._queues))
            self._view_at = self._clock()
        return self._view

    def require_snapshot(self) -> QueueSnapshot:
        """What there is now. Raises EndpointError where a topic or queue asked for by name does not exist."""
        view = self.take_snapshot(fresh=True)
        named = list(self._topics.names or self._topics.assigned or ())
        there = {queue.topic for queue in self._cluster.find_queues(named)} if named else set()
        for topic in named:
            if topic not in there:
                raise self._cluster.unknown_topic_error(topic)
        missing = sorted(queue for queue in self._assigned_queues() if queue not in view.queues)
        if missing:
            raise EndpointError(f"option assign: there is no queue {', '.join(map(str, missing))}")
        return view

    def _find_queues(self) -> dict[Queue, Address]:
        names = self._topic_names()
        found = self._cluster.find_queues(names) if names else {}
        if self._topics.assigned is not None:
            wanted = self._assigned_queues()
            found = {queue: address for queue, address in found.items() if queue in wanted}
        return dict(sorted(found.items()))

    def _topic_names(self) -> list[str]:
        if self._topics.pattern is None:
            return list(self._topics.names or self._topics.assigned or ())
        # Retries and dead letters are no business of a pattern, unless it speaks of them.
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
