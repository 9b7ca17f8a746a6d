"""Queue locks for orderly consumption: leases of one minute on a queue for one client of a group.

A client renews its lease by locking again. When a client leaves without unlocking, its leases expire.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

from gateway.broker.topics.limit_errors import limit_error
from gateway.config.limits import BrokerLimits
from remoting.bodies.queues import MessageQueue as Queue
from storage.clock import Clock

log = logging.getLogger(__name__)

DEFAULT_LEASE_MS = 60_000
LEASES_PER_SLICE: Final = 1000

LeaseKey = tuple[str, str, int]
"""Group, topic and queue id. Whatever broker name a client gives, the queue is one of this broker."""


class _Lease:
    __slots__ = ("client_id", "renewed_ms")

    def __init__(self, client_id: str, renewed_ms: int) -> None:
        self.client_id = client_id
        self.renewed_ms = renewed_ms


class _GroupLeases:
    """The number of a group's leases, and the time of the last renewal of any."""

    __slots__ = ("count", "renewed_ms")

    def __init__(self) -> None:
        self.count = 0
        self.renewed_ms = 0


class QueueLocks:
    """Leases by consumer group. Source: RebalanceLockManager, 5.4.0.

    ``limits`` are set again when the configuration changes. Deviation: expired leases are removed; the official broker
    keeps the lease of every queue that was ever named.
    """

    def __init__(
        self, clock: Clock, *, lease_ms: int = DEFAULT_LEASE_MS, limits: BrokerLimits | None = None
    ) -> None:
        self._clock = clock
        self._lease_ms = lease_ms
        self.limits = limits or BrokerLimits()
        self._leases: OrderedDict[LeaseKey, _Lease] = OrderedDict()  # in the order of their renewal
        self._groups: dict[str, _GroupLeases] = {}

    def lock(self, group: str, queues: Iterable[Queue], client_id: str) -> set[Queue]:
        """Lease free and expired queues to a client, and renew its own leases. Return the queues that it holds now.

        At the limit of leases no more are taken; RequestError is raised if the client then holds none.
        """
        now, held, refused = self._clock.now_ms(), set(), False
        for queue in queues:
            key = _key(group, queue)
            lease = self._leases.get(key)
            if lease is None:
                if not self._has_room(now):
                    refused = True
                    continue
                self._add(key, client_id)
            elif lease.client_id != client_id:
                if now - lease.renewed_ms <= self._lease_ms:
                    continue
                queue_fields = {"topic": queue.topic, "queue_id": queue.queue_id}
                log.warning(
                    "queue lock taken over", extra={**queue_fields, "group": group, "client": client_id}
                )
                lease.client_id = client_id
            self._renew(key, now)
            held.add(queue)
        if refused and not held:
            raise limit_error("maxQueueLocks", self.limits.max_queue_locks, "queue locks", "stop consumers")
        return held

    def _has_room(self, now_ms: int) -> bool:
        if len(self._leases) >= self.limits.max_queue_locks:
            self._remove_expired(now_ms, LEASES_PER_SLICE)
        return len(self._leases) < self.limits.max_queue_locks

    def _add(self, key: LeaseKey, client_id: str) -> None:
        self._leases[key] = _Lease(client_id, 0)
        self._groups.setdefault(key[0], _GroupLeases()).count += 1

    def _renew(self, key: LeaseKey, now_ms: int) -> None:
        self._leases[key].renewed_ms = self._groups[key[0]].renewed_ms = now_ms
        self._leases.move_to_end(key)

    def _remove(self, key: LeaseKey) -> None:
        del self._leases[key]
        group = self._groups[key[0]]
        group.count -= 1
        if not group.count:
            del self._groups[key[0]]

    def unlock(self, group: str, queues: Iterable[Queue], client_id: str) -> None:
        """Release the leases that the client holds; ignore queues that other clients hold."""
        for queue in queues:
            key = _key(group, queue)
            lease = self._leases.get(key)
            if lease is not None and lease.client_id == client_id:
                self._remove(key)

    def forget_topic(self, topic: str) -> None:
        """Release the leases of all groups on the queues of a deleted topic."""
        for key in [key for key in self._leases if key[1] == topic]:
            self._remove(key)

    def all_expired(self, group: str) -> bool:
        """Tell whether no lock on any queue of the group is still in force."""
        leases = self._groups.get(group)
        return leases is None or self._clock.now_ms() - leases.renewed_ms > self._lease_ms

    def remove_expired(self) -> Iterator[None]:
        """Remove expired leases in slices; other tasks may run at each yield."""
        while self._remove_expired(self._clock.now_ms(), LEASES_PER_SLICE):
            yield

    def _remove_expired(self, now_ms: int, max_leases: int) -> bool:
        """Remove at most ``max_leases`` expired leases; return True if there may be more."""
        for _ in range(max_leases):
            key = next(iter(self._leases), None)
            if key is None or now_ms - self._leases[key].renewed_ms <= self._lease_ms:
                return False
            self._remove(key)
        return True


def _key(group: str, queue: Queue) -> LeaseKey:
    return group, queue.topic, queue.queue_id
