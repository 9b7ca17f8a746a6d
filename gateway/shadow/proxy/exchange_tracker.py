"""Match answers to requests at one upstream, and publish the exchanges that somebody observes."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from codec.constants import FLAG_ONEWAY
from gateway.shadow.proxy.frame_peek import FrameHead
from gateway.shadow.proxy.listener_context import ListenerContext, UpstreamAddress
from gateway.shadow.traffic.exchange import Exchange, Hub, Side

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
        # A client that reuses an opaque has given up on the earlier request: an answer can only be matched with one of
        # them.
        if request.opaque in by_opaque:
            given_up.append(self._remove(request.opaque))
        by_opaque[request.opaque] = request
        self.buffered_bytes += len(request.frame) + OVERHEAD_BYTES
        # Without a bound, requests that are never answered (or are answered as oneway) would fill the memory.
        while len(by_opaque) > self._max_requests or self.buffered_bytes > self._max_bytes:
            given_up.append(self._remove(next(iter(by_opaque))))
        return given_up

    def take(self, opaque: int) -> PendingRequest | None:
        """Remove and return the request that an answer belongs to."""
        return self._remove(opaque) if opaque in self.by_opaque else None

    def take_older_than(self, asked_s: float) -> list[PendingRequest]:
        """Remove and return the requests that were received before ``asked_s``."""
        old = []
        # In order of arrival, so the first young one ends the search.
        for request in self.by_opaque.values():
            if request.asked_s >= asked_s:
                break
            old.append(request)
        # In a second loop, because a dict must not change while it is iterated.
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


class ClientIdentity(NamedTuple):
    """The client of a session, as exchanges name it."""

    connection: int
    """Number of the connection, from 1, never reused."""
    address: str
    """ "host:port" of the client."""


class FinishedExchanges:
    """Exchanges of one session that are published as soon as the client has its answers."""

    __slots__ = ("_hub", "waiting")

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.waiting: list[Exchange] = []

    def publish_all(self) -> None:
        """Publish the waiting exchanges in their order."""
        exchanges, self.waiting = self.waiting, []
        for exchange in exchanges:
            self._hub.publish_exchange(exchange)


class ExchangeTracker:
    """Remembers requests in both directions between one client and one upstream."""

    __slots__ = (
        "_client",
        "_clock",
        "_counters",
        "_finished",
        "_hub",
        "held_answers",
        "requests",
        "reverse_requests",
        "side",
        "upstream",
    )

    def __init__(
        self,
        client: ClientIdentity,
        upstream: UpstreamAddress,
        side: Side,
        context: ListenerContext,
        finished: FinishedExchanges,
    ) -> None:
        settings = context.settings
        self._client = client
        self._clock = context.clock
        self._counters = context.counters
        self._hub = context.hub
        self._finished = finished
        self.side = side
        self.upstream = upstream
        self.requests = PendingRequests(settings.remembered, settings.remembered_bytes)
        """Requests of the client that the upstream has to answer."""
        self.reverse_requests = PendingRequests(settings.remembered, settings.remembered_bytes)
        """Requests of the upstream that the client has to answer."""
        self.held_answers = 0
        """Number of answers that the holder keeps back."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the remembered frames."""
        return self.requests.buffered_bytes + self.reverse_requests.buffered_bytes

    # -- requests of the client -----------------------------------------------------------------------------------

    def remember_request(self, head: FrameHead, frame: bytes) -> PendingRequest:
        """Remember a request that is about to be passed on; ``frame`` is empty if nobody observes it."""
        clock = self._clock
        is_oneway = head.flag & FLAG_ONEWAY != 0
        request = PendingRequest(head.code, head.opaque, frame, clock.now_ms(), clock.monotonic(), is_oneway)
        # A oneway request gets no answer to match. It is finished as soon as it was forwarded.
        if not is_oneway and (given_up := self.requests.insert(request)):
            self._give_up(given_up)
        return request

    def mark_forwarded(self, request: PendingRequest, now_s: float) -> None:
        """Note that a request was passed on. An observed oneway request is finished by that."""
        request.forwarded_s = now_s
        if request.is_oneway and request.is_observed:
            self._finish(request, None)

    def finish_or_hold(
        self, request: PendingRequest, answer: bytes, release: Callable[[bytes], None]
    ) -> bool:
        """Finish an answered request; return True if the holder keeps the answer and will call ``release``."""
        # Remembered only to rewrite its answer.
        if not request.is_observed:
            return False
        exchange = self._make_exchange(request, answer)
        # Published after the client has its answer, unless the holder may want to keep the answer back.
        if not self._hub.interests[request.code].holdable:
            self._finished.waiting.append(exchange)
            return False
        # Exchanges that finished earlier are published first: observers see the exchanges of a connection in the order
        # of their answers.
        self._finished.publish_all()
        held = self._hub.publish_exchange(exchange, release)
        self.held_answers += held
        return held

    # -- requests of the upstream ---------------------------------------------------------------------------------

    def remember_reverse_request(self, head: FrameHead, frame: bytes) -> None:
        """Remember a request of the upstream to the client, if anybody observes its code."""
        if not self._hub.interests[head.code].observed:
            return
        request = PendingRequest(head.code, head.opaque, frame, self._clock.now_ms(), self._clock.monotonic())
        if head.flag & FLAG_ONEWAY:
            self._finish(request, None, reverse=True)
        else:
            self._give_up(self.reverse_requests.insert(request), reverse=True)

    def finish_reverse_request(self, opaque: int, answer: bytes) -> None:
        """Finish the upstream's request that the client answers, if it was remembered."""
        request = self.reverse_requests.take(opaque)
        if request is not None:
            self._finish(request, answer, reverse=True)

    # -- the end of waiting ---------------------------------------------------------------------------------------

    def give_up_older_than(self, asked_s: float) -> None:
        """Stop waiting for answers to requests that were received before ``asked_s``."""
        self._give_up(self.requests.take_older_than(asked_s))
        self._give_up(self.reverse_requests.take_older_than(asked_s), reverse=True)

    def finish_all(self) -> None:
        """Finish every remembered request without an answer: the connection has ended."""
        for request in self.requests.take_all():
            if request.is_observed:
                self._finish(request, None)
        for request in self.reverse_requests.take_all():
            self._finish(request, None, reverse=True)

    def _give_up(self, requests: Iterable[PendingRequest], *, reverse: bool = False) -> None:
        for request in requests:
            self._counters.given_up += 1
            if request.is_observed:
                self._finish(request, None, reverse=reverse)

    def _finish(self, request: PendingRequest, answer: bytes | None, *, reverse: bool = False) -> None:
        self._finished.waiting.append(self._make_exchange(request, answer, reverse=reverse))

    def _make_exchange(
        self, request: PendingRequest, answer: bytes | None, *, reverse: bool = False
    ) -> Exchange:
        return Exchange(
            request.code,
            request.frame,
            answer,
            connection=self._client.connection,
            client=self._client.address,
            upstream=self.upstream.address,
            broker=self.upstream.broker,
            wall_ms=request.wall_ms,
            asked_s=request.asked_s,
            forwarded_s=request.forwarded_s,
            answered_s=self._clock.monotonic(),
            reverse=reverse,
            side=self.side,
        )
