"""Requests of one connection that wait for their answers, by opaque: bounded in number, bytes and time."""

from collections.abc import Iterator
from typing import Final

OVERHEAD_BYTES: Final = 300
"""Memory of a remembered request besides its frame; routes and the like are remembered without one."""


class PendingRequest:
    """A request that was passed on. `frame` is empty if nobody observes its exchange.

    `asked_s` and `forwarded_s` are monotonic seconds, when the request was received and when it was passed on;
    `wall_ms` is its arrival in ms since 1970.
    """

    __slots__ = ("asked_s", "code", "forwarded_s", "frame", "is_oneway", "opaque", "wall_ms")

    def __init__(
        self, code: int, opaque: int, frame: bytes, wall_ms: int, asked_s: float, is_oneway: bool = False
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.frame = frame
        self.wall_ms = wall_ms
        self.asked_s = asked_s
        self.forwarded_s = asked_s
        self.is_oneway = is_oneway

    @property
    def is_observed(self) -> bool:
        """Tell whether an observer or the holder needs the exchange."""
        return bool(self.frame)


class PendingRequests:
    """At most ``max_requests`` requests with at most ``max_bytes``. The oldest make room for new ones."""

    __slots__ = ("_max_bytes", "_max_requests", "buffered_bytes", "by_opaque")

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self.by_opaque: dict[int, PendingRequest] = {}
        """In the order in which they were received."""
        self.buffered_bytes = 0

    def insert(self, request: PendingRequest) -> list[PendingRequest]:
        """Insert a request; return those given up for it: one with the same opaque, and the oldest above the limits."""
        given_up = []
        by_opaque = self.by_opaque
        if request.opaque in by_opaque:
            given_up.append(self._remove(request.opaque))
        by_opaque[request.opaque] = request
        self.buffered_bytes += len(request.frame) + OVERHEAD_BYTES
        while len(by_opaque) > self._max_requests or self.buffered_bytes > self._max_bytes:
            given_up.append(self._remove(next(iter(by_opaque))))
        return given_up

    def take(self, opaque: int) -> PendingRequest | None:
        """Remove and return the request that an answer belongs to."""
        return self._remove(opaque) if opaque in self.by_opaque else None

    def take_older_than(self, asked_s: float) -> list[PendingRequest]:
        """Remove and return the requests that were received before ``asked_s``."""
        old = []
        for request in self.by_opaque.values():
            if request.asked_s >= asked_s:
                break
            old.append(request)
        for request in old:
            self._remove(request.opaque)
        return old

    def take_all(self) -> Iterator[PendingRequest]:
        """Remove and yield every request."""
        while self.by_opaque:
            yield self._remove(next(iter(self.by_opaque)))

    def _remove(self, opaque: int) -> PendingRequest:
        request = self.by_opaque.pop(opaque)
        self.buffered_bytes -= len(request.frame) + OVERHEAD_BYTES
        return request
