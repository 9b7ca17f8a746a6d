"""Which queues a query reads, and where they begin and end: asked again when what is known is too old.

Not responsible for asking (`spark.cluster`) nor for what becomes of queues that are gone.
"""

import re
import time
from collections.abc import Callable
from typing import Final, Protocol

from spark.cluster import Extent, Queue, Queues
from spark.errors import EndpointError
from spark.source.options import Topics

_FRESH_S: Final = 0.1
"""For so long extents are not asked again: a stream without a trigger looks up to 165 times a second."""


class Asked(Protocol):
    """Of a cluster what is needed here."""

    def topics(self) -> list[str]: ...

    def queues(self, topic: str) -> dict[Queue, tuple[str, int]]: ...

    def unknown(self, topic: str) -> EndpointError: ...

    def extents(self, queues: Queues) -> dict[Queue, Extent]: ...


class Discovery:
    """`max_age_s`: how soon new topics, queues and brokers are noticed. `clock` counts seconds."""

    def __init__(
        self,
        cluster: Asked,
        topics: Topics,
        max_age_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._max_age_s = max_age_s
        self._clock = clock
        self._queues: dict[Queue, tuple[str, int]] = {}
        self._queues_at = self._extents_at = float("-inf")
        self._extents: dict[Queue, Extent] = {}

    def queues(self, *, fresh: bool = False) -> dict[Queue, tuple[str, int]]:
        """The queues there are. Raises EndpointError."""
        if fresh or self._clock() - self._queues_at > self._max_age_s:
            self._queues = self._find()
            self._queues_at = self._clock()
        return self._queues

    def extents(self, *, fresh: bool = False) -> dict[Queue, Extent]:
        """Where these queues begin and end. Raises EndpointError."""
        if fresh or self._clock() - self._extents_at > _FRESH_S:
            self._extents = self._cluster.extents(self.queues(fresh=fresh))
            self._extents_at = self._clock()
        return self._extents

    def require(self) -> None:
        """Raises EndpointError where a topic or queue that was asked for by name does not exist."""
        found = self.queues(fresh=True)
        there = {queue.topic for queue in found}
        for topic in self._topics.names or self._topics.assigned or ():
            if topic not in there and not self._cluster.queues(topic):
                raise self._cluster.unknown(topic)
        missing = sorted(queue for queue in self._wanted() if queue not in found)
        if missing:
            raise EndpointError(f"option assign: there is no queue {', '.join(map(str, missing))}")

    def _find(self) -> dict[Queue, tuple[str, int]]:
        found = {
            queue: address
            for topic in self._names()
            for queue, address in self._cluster.queues(topic).items()
        }
        if self._topics.assigned is not None:
            wanted = self._wanted()
            found = {queue: address for queue, address in found.items() if queue in wanted}
        return dict(sorted(found.items()))

    def _names(self) -> list[str]:
        if self._topics.pattern is None:
            return list(self._topics.names or self._topics.assigned or ())
        # Retries and dead letters are no business of a pattern, unless it speaks of them.
        reserved = "%" in self._topics.pattern
        pattern = re.compile(self._topics.pattern)
        return [
            name
            for name in self._cluster.topics()
            if pattern.fullmatch(name) and (reserved or not name.startswith("%"))
        ]

    def _wanted(self) -> set[Queue]:
        return {
            Queue(topic, broker, queue_id)
            for topic, brokers in (self._topics.assigned or {}).items()
            for broker, ids in brokers.items()
            for queue_id in ids
        }
