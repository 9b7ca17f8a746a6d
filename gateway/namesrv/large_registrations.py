"""Large registrations: decoded in a thread, one at a time, so that they delay no other request.

100,000 topics take 0.7 s to decode. A thread shares the interpreter with the event loop, which then waits 5 ms at a
time. Small registrations are decoded at once; those of a connection whose large one is still being decoded wait for it,
so that a connection's registrations take effect in order.
"""

from functools import partial
from typing import Final

import trio

from codec.constants import ResponseCode
from gateway.config.limits import NamesrvLimits
from gateway.namesrv.registration import Registration, read_registration
from gateway.runtime.run_blocking import RunBlocking
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.requests.namesrv import RegisterBroker

MAX_INLINE_BYTES: Final = 512 * 1024
"""Up to this size, when inflated, a registration is decoded on the event loop: 3,000 topics, 15 ms."""
MAX_ZLIB_RATIO: Final = 1_032
MAX_WAITING: Final = 64
MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
_WAITING: Final = "registrations waiting"


class LargeRegistrations:
    """The queue of registrations that wait for the thread, bounded in number and bytes."""

    def __init__(self, run_blocking: RunBlocking) -> None:
        self._run_blocking = run_blocking
        self._lock = trio.Lock()
        self._waiting = 0
        self._waiting_bytes = 0

    @staticmethod
    def must_wait(request: RegisterBroker, connection: Connection) -> bool:
        """Return True for a registration that is large, or follows a large one of the same connection."""
        inflated_bytes = len(request.body) * (MAX_ZLIB_RATIO if request.compressed else 1)
        return inflated_bytes > MAX_INLINE_BYTES or connection.state.get(_WAITING, 0) > 0

    def begin(self, request: RegisterBroker, connection: Connection) -> None:
        """Count a registration that will be read; `end` must follow. Raises RequestError(SYSTEM_BUSY) at a limit."""
        if self._waiting >= MAX_WAITING or self._waiting_bytes + len(request.body) > MAX_WAITING_BYTES:
            raise RequestError(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]too many large registrations are waiting")
        self._waiting += 1
        self._waiting_bytes += len(request.body)
        connection.state[_WAITING] = connection.state.get(_WAITING, 0) + 1

    def end(self, request: RegisterBroker, connection: Connection) -> None:
        """Finish a registration counted by `begin`."""
        self._waiting -= 1
        self._waiting_bytes -= len(request.body)
        connection.state[_WAITING] -= 1

    async def read(self, request: RegisterBroker, zone: str | None, limits: NamesrvLimits) -> Registration:
        """Decode and check a registration in the thread, after those before it. Raises RequestError."""
        async with self._lock:
            read: Registration = await self._run_blocking(partial(read_registration, request, zone, limits))
        return read
