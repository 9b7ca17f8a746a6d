"""The heartbeats of brokers, in memory: which replicas are alive, and how far their logs reach.

Every controller gets all heartbeats, not only the leading one, so a new leader knows at once who is alive. A controller
that has just started does not. Until each broker had the time for a heartbeat (`Liveness.is_unheard`), a silent one may
well be alive, and no election takes its place away.

A master may also be silent here because only its link to this controller is cut. As long as another controller led,
that one answered its heartbeats, and each answer lets it accept messages for a part of its time-out. So a new leader
waits that long before it replaces a master that it does not hear (`Liveness.may_hold_lease`).

Source: DefaultBrokerHeartbeatManager, 5.4.0. Deviations: the official controller elects right after its start, among
whoever has sent a heartbeat by then; it keeps the first connection of a broker, so that the end of a later one is not
noticed; and it never takes a smaller end of a log, so that a truncated replica looks better than it is.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from remoting.connection import Connection
from remoting.requests.namesrv import MASTER_LEASE_SHARE

DEFAULT_TIMEOUT_S: Final = 10.0
"""For heartbeats without a time-out. Source: BrokerHeartbeatManager.DEFAULT_BROKER_CHANNEL_EXPIRED_TIME, 5.4.0."""
MAX_TIMEOUT_S: Final = 600.0
"""A longer time-out of a heartbeat counts as this one: until it is over, a silent broker keeps its place in memory."""
LOWEST_PRIORITY: Final = (1 << 31) - 1
MAX_LIVE_BROKERS: Final = 20_000
"""Heartbeats of further brokers are refused unless they are registered: whoever reaches the port can invent names."""
UNKNOWN: Final = -1
"""Epoch or offset of a heartbeat that does not have it."""


class ReplicaKey(NamedTuple):
    """One broker as it names itself in heartbeats."""

    cluster: str
    name: str
    broker_id: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The content of one heartbeat."""

    address: str
    timeout_s: float = DEFAULT_TIMEOUT_S
    epoch: int = UNKNOWN
    max_offset: int = UNKNOWN
    confirm_offset: int = UNKNOWN
    election_priority: int = LOWEST_PRIORITY


@dataclass(slots=True)
class LiveBroker:
    """The last heartbeat of a broker, when it came, and over which connection."""

    heartbeat: Heartbeat
    connection: Connection | None
    heard_at_s: float

    @property
    def dies_at_s(self) -> float:
        return self.heard_at_s + self.heartbeat.timeout_s


class Liveness:
    """The brokers that have sent heartbeats. Times are those of ``monotonic``, in seconds."""

    def __init__(self, monotonic: Callable[[], float], start_wait_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Begin without heartbeats; brokers have ``start_wait_s`` for the first one."""
        self._monotonic = monotonic
        self._start_wait_s = start_wait_s
        self._settled_at_s = monotonic() + start_wait_s
        self._brokers: dict[ReplicaKey, LiveBroker] = {}
        self._heard: set[ReplicaKey] = set()
        self._leads_since_s = -math.inf
        self._lease_holders: frozenset[ReplicaKey] = frozenset()
        # Of brokers that are not alive any more, where they are longer than usual.
        self._long_timeouts_s: dict[ReplicaKey, float] = {}
        self._restarted_epochs: dict[ReplicaKey, int] = {}

    def record(self, key: ReplicaKey, heartbeat: Heartbeat, connection: Connection | None = None) -> bool:
        """Note a heartbeat; return True if the broker was not alive before."""
        is_new = not self.is_alive(key)
        now_s = self._monotonic()
        self._brokers[key] = LiveBroker(heartbeat, connection, now_s)
        if now_s < self._settled_at_s and len(self._heard) < MAX_LIVE_BROKERS:
            self._heard.add(key)
        return is_new

    @property
    def is_full(self) -> bool:
        """True if there is no room for further brokers, except for registered ones."""
        return len(self._brokers) >= MAX_LIVE_BROKERS

    def wait_for_heartbeats(self) -> None:
        """Give brokers the time for a heartbeat again, because heartbeats of some were refused."""
        self._settled_at_s = self._monotonic() + self._start_wait_s

    def begin_term(self, masters: Iterable[ReplicaKey]) -> None:
        """Note that this controller leads from now on, and the masters that another one has elected before."""
        self._leads_since_s = self._monotonic()
        self._lease_holders = frozenset(masters)

    def may_hold_lease(self, key: ReplicaKey) -> bool:
        """Tell whether a master may still accept messages because the controller that led before has heard it."""
        if key not in self._lease_holders or self.is_alive(key):
            return False
        broker = self._brokers.get(key)
        timeout_s = (
            self._long_timeouts_s.get(key, DEFAULT_TIMEOUT_S)
            if broker is None
            else broker.heartbeat.timeout_s
        )
        return self._monotonic() < self._leads_since_s + MASTER_LEASE_SHARE * timeout_s

    def note_restart(self, key: ReplicaKey, epoch: int) -> None:
        """Note that the master of an epoch was started again, and may have lost the end of its log."""
        if key not in self._restarted_epochs and len(self._restarted_epochs) >= MAX_LIVE_BROKERS:
            del self._restarted_epochs[next(iter(self._restarted_epochs))]
        self._restarted_epochs[key] = epoch

    def was_restarted(self, key: ReplicaKey, epoch: int) -> bool:
        """Tell whether the master of an epoch was started again since its election."""
        return self._restarted_epochs.get(key) == epoch

    def is_alive(self, key: ReplicaKey) -> bool:
        """Tell whether the broker's last heartbeat is recent enough."""
        broker = self._brokers.get(key)
        return broker is not None and self._monotonic() <= broker.dies_at_s

    def is_unheard(self, key: ReplicaKey) -> bool:
        """Tell whether nothing is known of a broker yet, because this controller has only just started."""
        if key in self._heard or key in self._brokers:
            return False
        return self._monotonic() < self._settled_at_s

    def live_broker(self, key: ReplicaKey) -> LiveBroker | None:
        """Return what is known of a broker that is alive."""
        return self._brokers[key] if self.is_alive(key) else None

    def alive_keys(self) -> list[ReplicaKey]:
        """Return all brokers that are alive."""
        return [key for key in self._brokers if self.is_alive(key)]

    def remove_silent(self) -> list[tuple[ReplicaKey, LiveBroker]]:
        """Forget the brokers whose time is over, and return them."""
        if self._monotonic() >= self._settled_at_s:
            self._heard.clear()
        silent = [(key, broker) for key, broker in self._brokers.items() if not self.is_alive(key)]
        for key, _ in silent:
            self._forget(key)
        return silent

    def remove_connection(self, connection: Connection) -> list[ReplicaKey]:
        """Forget the brokers whose last heartbeat came over a connection that closed, and return them."""
        keys = [key for key, broker in self._brokers.items() if broker.connection is connection]
        for key in keys:
            self._forget(key)
        return keys

    def _forget(self, key: ReplicaKey) -> None:
        timeout_s = self._brokers.pop(key).heartbeat.timeout_s
        self._long_timeouts_s.pop(key, None)
        if timeout_s > DEFAULT_TIMEOUT_S and len(self._long_timeouts_s) < MAX_LIVE_BROKERS:
            self._long_timeouts_s[key] = timeout_s

    def seconds_to_next_death(self) -> float | None:
        """Return the time until the next broker is dead unless a heartbeat comes; None without brokers."""
        deaths = [broker.dies_at_s for broker in self._brokers.values()]
        return max(0.0, min(deaths) - self._monotonic()) if deaths else None

    def excuse_pause(self, pause_s: float) -> None:
        """Give all brokers more time, because this process did not run for a while, and so read no heartbeats."""
        self._settled_at_s += pause_s
        for broker in self._brokers.values():
            broker.heard_at_s += pause_s
