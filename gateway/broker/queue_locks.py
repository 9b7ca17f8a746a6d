"""Queue locks for orderly consumption: leases of one minute on a queue for one client of a group.

A client renews its lease by locking again. When a client leaves without unlocking, its leases expire.
"""

import logging
from collections.abc import Iterable

from remoting.bodies.queues import MessageQueue as Queue
from storage.clock import Clock

log = logging.getLogger(__name__)

DEFAULT_LEASE_MS = 60_000


class _Lease:
    __slots__ = ("client_id", "renewed_ms")

    def __init__(self, client_id: str, renewed_ms: int) -> None:
        self.client_id = client_id
        self.renewed_ms = renewed_ms


class QueueLocks:
    """Leases by consumer group. Source: RebalanceLockManager, 5.4.0."""

    def __init__(self, clock: Clock, *, lease_ms: int = DEFAULT_LEASE_MS) -> None:
        self._clock = clock
        self._lease_ms = lease_ms
        self._groups: dict[str, dict[Queue, _Lease]] = {}

    def lock(self, group: str, queues: Iterable[Queue], client_id: str) -> set[Queue]:
        """Take or renew the leases that are free, expired or the client's own. Return the queues that it holds now."""
        now = self._clock.now_ms()
        leases = self._groups.setdefault(group, {})
        return {queue for queue in queues if self._acquire(leases, queue, client_id, now)}

    def _acquire(self, leases: dict[Queue, _Lease], queue: Queue, client_id: str, now_ms: int) -> bool:
        lease = leases.get(queue)
        if lease is None:
            leases[queue] = _Lease(client_id, now_ms)
            return True
        if lease.client_id != client_id:
            if not self._is_expired(lease, now_ms):
                return False
            log.warning("queue lock taken over", extra={"queue": queue, "client": client_id})
            lease.client_id = client_id
        lease.renewed_ms = now_ms
        return True

    def unlock(self, group: str, queues: Iterable[Queue], client_id: str) -> None:
        """Release the leases that the client holds; ignore queues that other clients hold."""
        leases = self._groups.get(group)
        if leases is None:
            return
        for queue in queues:
            lease = leases.get(queue)
            if lease is not None and lease.client_id == client_id:
                del leases[queue]
        if not leases:
            del self._groups[group]

    def all_expired(self, group: str) -> bool:
        """Tell whether no client currently consumes any queue of the group in order."""
        now = self._clock.now_ms()
        return all(self._is_expired(lease, now) for lease in self._groups.get(group, {}).values())

    def _is_expired(self, lease: _Lease, now_ms: int) -> bool:
        return now_ms - lease.renewed_ms > self._lease_ms
