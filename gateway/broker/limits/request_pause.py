"""Holds requests while the parts of a broker that serve them are replaced, and refuses them while there are none.

Theory of operation
-------------------
Problem: a broker that changes its role closes its store and opens it again, within some tenths of a second. Clients
stay connected meanwhile. A refusal would reach the application: a Java producer tries three times within milliseconds.

1. `hold` begins to keep requests, in the order in which they come. Whoever replaces the parts waits until requests that
   began before are answered.
2. `lift` and `settle_held` pass the held requests on to the new handlers, in their order; later ones are not held.
3. After `MAX_HOLD_S`, and beyond `MAX_HELD_BYTES`, requests are refused with SYSTEM_BUSY, which makes stock producers
   try another broker. So are all requests while the parts cannot be built again: no store could serve them.

The guard stands after access control and the limit of the waiting time, so that a held request is checked once, when
it comes, and not refused for the time that it was held.
"""

from collections import deque
from collections.abc import Set
from functools import partial
from typing import Final, NamedTuple

from codec.command import Command
from codec.constants import ResponseCode
from remoting.connection import Connection, Handler
from remoting.errors import RequestError

MAX_HOLD_S: Final = 2.0
"""Less than the 3 s after which stock clients give up a request."""
MAX_HELD_BYTES: Final = 64 * 1024 * 1024


class HeldRequest(NamedTuple):
    """A request that waits for the new handlers."""

    connection: Connection
    command: Command


class RequestPause:
    """The guard that holds or refuses requests. Requests of the ``exempt`` codes always pass.

    Whoever calls `hold`, `fence` or `lift` applies the guards of the server again, and then calls `settle_held`.
    """

    def __init__(self, exempt: Set[int] = frozenset()) -> None:
        self._exempt = exempt
        self._served: Set[int] = frozenset()
        self._is_holding = False
        self._refusal: str | None = None
        self._handlers: dict[int, Handler] = {}
        self._held: deque[HeldRequest] = deque()
        self._held_bytes = 0

    @property
    def refusal(self) -> str | None:
        """The reason for which requests are refused; None while they are served or held."""
        return self._refusal

    @property
    def held_count(self) -> int:
        """Number of requests that wait."""
        return len(self._held)

    def guard(self, code: int, handler: Handler) -> Handler:
        """Hold or refuse the requests of a code, if that is to be done now."""
        self._handlers[code] = handler
        if not self._is_holding or code in self._exempt or code in self._served:
            return handler
        return self._take

    def hold(self, served: Set[int] = frozenset()) -> None:
        """Hold requests from now on, but those of the ``served`` codes."""
        self._is_holding, self._refusal, self._served = True, None, served

    def fence(self, reason: str) -> None:
        """Refuse requests from now on that would be held: nothing could serve them, or it takes too long."""
        self._is_holding, self._refusal = True, reason

    def lift(self) -> None:
        """Let requests through to the handlers that `guard` is applied to next."""
        self._is_holding, self._refusal = False, None

    def settle_held(self) -> None:
        """Refuse the held requests after `fence`; after `lift` pass them on to the present handlers, in their order."""
        held, self._held, self._held_bytes = self._held, deque(), 0
        for connection, command in held:
            connection.end_request()
            if not connection.closed:
                connection.answer_late(command, partial(self._answer, connection, command))

    def _take(self, connection: Connection, command: Command) -> bytes | None:
        if self._refusal is not None:
            raise busy(self._refusal)
        if self._held_bytes + len(command.body) > MAX_HELD_BYTES:
            raise busy("the broker changes its role, and too many requests wait for that")
        connection.begin_request()
        self._held.append(HeldRequest(connection, command))
        self._held_bytes += len(command.body)
        return None

    def _answer(self, connection: Connection, command: Command) -> bytes | None:
        if self._refusal is not None:
            raise busy(self._refusal)
        return self._handlers[command.code](connection, command)


def busy(remark: str) -> RequestError:
    """Return a refusal that makes stock producers try another broker."""
    return RequestError(ResponseCode.SYSTEM_BUSY, f"[REJECTREQUEST]{remark}")
