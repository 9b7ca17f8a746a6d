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

The lease ends `MASTER_LEASE_SHARE` of the time-out after the heartbeat was *sent*. The controller elects nobody before
the whole time-out after the heartbeat *came*, and one of this project that begins to lead waits for that share of it
before it replaces a master that it does not hear. If it never heard that master, it takes the default for its time-out:
a longer one does not make the lease longer. A controller also elects at once when the connection of the heartbeats
closes, so the lease is suspended then, until the same controller has answered both requests again, or is known to be
gone. That takes a moment, for which requests wait (`LeaseGuard`): clients must not see each end of a controller.

An answer may come late. So each end and each suspension of the lease begins a new *generation*, and an answer counts
only if its question was asked in the present one.

The lease is checked when a message is about to be stored, not by a timer: a process that was stopped (SIGSTOP), or
whose machine was suspended, wakes up with an expired lease, whatever it does first. Requests are checked before they
are handled; the store checks it once more at each append, because background tasks and the later parts of a large batch
come from no request that was just checked.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final

from codec.command import Command
from codec.constants import ResponseCode
from gateway.broker.replication.role_guard import CHANGING, DECIDING, STORING
from remoting.connection import Connection, Handler
from remoting.errors import RequestError
from remoting.requests.namesrv import MASTER_LEASE_SHARE
from storage.errors import StoreFull

MAX_HOLD_S: Final = 1.0
"""Longest time for which requests wait because the lease is suspended."""
MAX_HELD_BYTES: Final = 16 * 1024 * 1024
DEFAULT_TIMEOUT_S: Final = 10.0
"""The time-out of a broker that a controller has not heard. Source: BrokerHeartbeatManager, 5.4.0."""
GUARDED: Final = STORING | DECIDING | CHANGING


class Lease:
    """The right of this broker to store messages as the master. Times are those of ``now``, in seconds."""

    def __init__(self, timeout_s: float, now: Callable[[], float]) -> None:
        self.now = now
        self._length_s = MASTER_LEASE_SHARE * min(timeout_s, DEFAULT_TIMEOUT_S)
        self._end_s = -inf
        self._is_suspended = False
        self._generation = 0
        self._suspended_s = -inf
        self._listeners: list[Callable[[], None]] = []

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever the lease may have become valid, or invalid."""
        self._listeners.append(listener)

    def notify(self) -> None:
        """Call the listeners, also because time has passed."""
        for listener in self._listeners:
            listener()

    @property
    def is_valid(self) -> bool:
        """True while no other master can have been elected."""
        return not self._is_suspended and self.now() < self._end_s

    @property
    def may_be_valid_soon(self) -> bool:
        """True for a moment after the end of the leader's connection: it may only have been the leader's end."""
        now_s = self.now()
        return self._is_suspended and now_s < self._end_s and now_s < self._suspended_s + MAX_HOLD_S

    @property
    def remaining_s(self) -> float:
        """The time until the lease ends unless it is renewed; 0 without one."""
        return max(0.0, self._end_s - self.now()) if not self._is_suspended else 0.0

    @property
    def generation(self) -> int:
        """The number of ends and suspensions; to be read before the leader is asked, and handed to `renew`."""
        return self._generation

    def renew(self, heartbeat_sent_s: float, generation: int) -> None:
        """Begin or prolong the lease: the leader has confirmed the role after a heartbeat that was sent then.

        Does nothing if the lease has ended, or was suspended, since the leader was asked.
        """
        if generation != self._generation:
            return
        self._is_suspended = False
        self._end_s = max(self._end_s, heartbeat_sent_s + self._length_s)
        self.notify()

    def suspend(self) -> None:
        """Store nothing until `renew` or `resume`: the leader may take this broker for dead."""
        self._generation += 1
        if not self._is_suspended:
            self._is_suspended, self._suspended_s = True, self.now()

    def resume(self) -> None:
        """End a suspension without renewing the lease: the leader that may have taken this broker for dead is gone."""
        self._is_suspended = False
        self.notify()

    def end(self) -> None:
        """Store nothing until `renew`: this broker is not the master any more, or not yet."""
        self._generation += 1
        self._end_s = -inf
        self.notify()


class LeaseGuard:
    """Refuses, at a master, what stores or changes anything while the lease is not valid. A guard.

    While the lease may be valid again soon, requests wait. It has to be the last of the guards: another one may keep a
    request waiting. ``is_master`` tells whether the broker has that role now.
    """

    def __init__(self, lease: Lease, broker_name: str, is_master: Callable[[], bool]) -> None:
        self._lease = lease
        self._broker_name = broker_name
        self._is_master = is_master
        self._handlers: dict[int, Handler] = {}
        self._held: list[tuple[Connection, Command]] = []
        self._held_bytes = 0
        lease.add_listener(self._settle_held)

    def guard(self, code: int, handler: Handler) -> Handler:
        """Check the lease before each request of a code that stores or changes something."""
        if code not in GUARDED:
            return handler
        self._handlers[code] = handler
        if not self._is_master():
            return handler
        lease = self._lease

        def handle(connection: Connection, command: Command) -> bytes | None:
            if lease.is_valid:
                return handler(connection, command)
            if not lease.may_be_valid_soon or self._held_bytes + len(command.body) > MAX_HELD_BYTES:
                raise self._refusal()
            connection.begin_request()
            self._held.append((connection, command))
            self._held_bytes += len(command.body)
            return None

        return handle

    def _settle_held(self) -> None:
        """Pass waiting requests on to the present handlers, or refuse them, unless they may still wait."""
        if self._lease.may_be_valid_soon:
            return
        held, self._held, self._held_bytes = self._held, [], 0
        for connection, command in held:
            connection.end_request()
            if not connection.closed:
                connection.answer_late(command, partial(self._answer, connection, command))

    def _answer(self, connection: Connection, command: Command) -> bytes | None:
        if not (self._lease.is_valid and self._is_master()):
            raise self._refusal()
        return self._handlers[command.code](connection, command)

    def _refusal(self) -> RequestError:
        return RequestError(ResponseCode.SYSTEM_BUSY, f"[REJECTREQUEST]{self._reason}")

    @property
    def _reason(self) -> str:
        return (
            f"{self._broker_name} stores nothing: its controllers do not confirm that it still is the master, and may "
            "have elected another one"
        )

    def check_append(self) -> None:
        """Check the lease before an append. Raises StoreFull: background tasks try again later, as with a full disk."""
        if self._is_master() and not self._lease.is_valid:
            raise StoreFull(self._reason)

    def limit_plain_sends(self, count_allowed: Callable[[Connection], int]) -> Callable[[Connection], int]:
        """Return the function that says how many plain sends may be taken at once, with this check before it."""
        lease = self._lease
        return lambda connection: count_allowed(connection) if lease.is_valid else 0
