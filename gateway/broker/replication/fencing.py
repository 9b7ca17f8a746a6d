"""Self-fencing: a master that cannot be sure that it still is one stores nothing.

Theory of operation
-------------------
Problem: a controller that has not heard of a master for `controllerHeartBeatTimeoutMills` elects another one. Both
would then take messages, and those of the former master would be cut off later. The official broker never stops.

A master stores messages only while it has a *lease*. The lease is renewed in two steps over one connection to the
leading controller:

1. a heartbeat (904), which that controller has answered, so that it counts from a time after it was sent;
2. a request that only the leading controller answers (1004), which says that this broker is the master, in the epoch
   in which it acts as one.

The lease ends `LEASE_SHARE` of the time-out after the heartbeat was *sent*. The controller elects nobody before the
whole time-out after the heartbeat *came*. It also elects at once when the connection of the heartbeats closes, so the
lease is suspended then, until the same controller has answered both requests again, or is known to be gone.

The lease is checked when a message is about to be stored, not by a timer: a process that was stopped (SIGSTOP), or
whose machine was suspended, wakes up with an expired lease, whatever it does first.
"""

import time
from collections.abc import Callable
from math import inf
from typing import Final

from codec.command import Command
from codec.constants import ResponseCode
from gateway.broker.replication.role_guard import CHANGING, DECIDING, STORING
from remoting.connection import Connection, Handler
from remoting.errors import RequestError
from storage.clock import Clock, SystemClock

LEASE_SHARE: Final = 0.9
"""Part of the controller's time-out for which a heartbeat is good. The rest is for clocks that do not run alike."""
GUARDED: Final = STORING | DECIDING | CHANGING


def clock_with_suspension(clock: Clock) -> Callable[[], float]:
    """Return the clock of leases: that of the system, also while the machine was suspended, or the one of a test."""
    if isinstance(clock, SystemClock) and hasattr(time, "CLOCK_BOOTTIME"):
        return lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    return clock.monotonic


class Lease:
    """The right of this broker to store messages as the master. Times are those of ``now``, in seconds."""

    def __init__(self, timeout_s: float, now: Callable[[], float]) -> None:
        self.now = now
        self._length_s = LEASE_SHARE * timeout_s
        self._end_s = -inf
        self._is_suspended = False

    @property
    def is_valid(self) -> bool:
        """True while no other master can have been elected."""
        return not self._is_suspended and self.now() < self._end_s

    @property
    def remaining_s(self) -> float:
        """The time until the lease ends unless it is renewed; 0 without one."""
        return max(0.0, self._end_s - self.now()) if not self._is_suspended else 0.0

    def renew(self, heartbeat_sent_s: float) -> None:
        """Begin or prolong the lease: the leader has confirmed the role after a heartbeat that was sent then."""
        self._is_suspended = False
        self._end_s = max(self._end_s, heartbeat_sent_s + self._length_s)

    def suspend(self) -> None:
        """Store nothing until `renew` or `resume`: the leader may take this broker for dead."""
        self._is_suspended = True

    def resume(self) -> None:
        """End a suspension without renewing the lease: the leader that may have taken this broker for dead is gone."""
        self._is_suspended = False

    def end(self) -> None:
        """Store nothing until `renew`: this broker is not the master any more, or not yet."""
        self._end_s = -inf


class LeaseGuard:
    """Refuses, at a master, what stores or changes anything while the lease is not valid. A guard.

    It has to be the last of the guards: another one may keep a request waiting. ``is_master`` tells whether the broker
    has that role now.
    """

    def __init__(self, lease: Lease, broker_name: str, is_master: Callable[[], bool]) -> None:
        self._lease = lease
        self._broker_name = broker_name
        self._is_master = is_master

    def guard(self, code: int, handler: Handler) -> Handler:
        """Check the lease before each request of a code that stores or changes something."""
        if code not in GUARDED or not self._is_master():
            return handler
        lease = self._lease

        def handle(connection: Connection, command: Command) -> bytes | None:
            if not lease.is_valid:
                raise RequestError(ResponseCode.SYSTEM_BUSY, f"[REJECTREQUEST]{self.reason}")
            return handler(connection, command)

        return handle

    @property
    def reason(self) -> str:
        """The reason for a refusal, in words."""
        return (
            f"{self._broker_name} stores nothing: its controllers do not confirm that it still is the master, and may "
            "have elected another one"
        )

    def limit_plain_sends(self, count_allowed: Callable[[Connection], int]) -> Callable[[Connection], int]:
        """Return the function that says how many plain sends may be taken at once, with this check before it."""
        lease = self._lease
        return lambda connection: count_allowed(connection) if lease.is_valid else 0
