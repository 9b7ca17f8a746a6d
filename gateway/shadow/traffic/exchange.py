"""An exchange (one request and its answer), and the hub that connects the proxy with everything that uses traffic.

The proxy publishes each exchange that somebody observes. Observers (mirror, capture, comparison, report) get it
after the client has its answer; the director decides beforehand to which cluster a request goes; the holder may keep
an answer back. The proxy itself lives in `gateway/shadow/proxy`.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from codec.command import Command, decode_frame
from codec.errors import FrameError
from gateway.runtime.metrics import Metric

if TYPE_CHECKING:
    from gateway.shadow.traffic.subject import Subject

log = logging.getLogger(__name__)

MAX_KNOWN_CODES: Final = 4096
"""Request codes whose interests are kept: clients can use any 32-bit number as a code."""
ALL_CODES: Final = None
"""Stands for every request code, known or not, in place of a set of codes."""
Codes = Collection[int] | None
ReleaseAnswer = Callable[[bytes], None]
"""Sends a held answer to its client, or another frame in its place."""


class Side(Enum):
    """The cluster that a request goes to."""

    PRIMARY = "primary"
    TARGET = "target"
    WAIT = "wait"
    """Not decided yet: ask again after `Hub.announce_decision`. Never the side of an `Exchange`."""


class Exchange:
    """One request and its answer, as whole frames with their length prefix. The frames must not be changed.

    `broker` is the name of the primary's broker, even if the target answered in its place, and "" for a namesrv.
    `upstream` is the "host:port" that the request went to, `client` the "host:port" it came from. `connection` numbers
    client connections from 1; numbers are never reused. `answer` is None for a oneway request, and when the connection
    ended first. `reverse` marks a request from the broker to the client. `side` is the cluster that answered.
    Times are monotonic seconds; `wall_ms` is the request's arrival in ms since 1970.

    Three fields belong to the parts that process an exchange. `subject` is the cache of `subject_of`. The mirror sets
    `is_in_doubt` while the target may have carried out the request without answering. If an earlier process may have
    delivered it, `search_depth` is the number of the target's last messages to search for it, and otherwise 0.
    """

    __slots__ = (
        "_decoded_answer",
        "_decoded_request",
        "_keeps_decoded",
        "answer",
        "answered_s",
        "asked_s",
        "broker",
        "client",
        "code",
        "connection",
        "forwarded_s",
        "is_in_doubt",
        "request",
        "reverse",
        "search_depth",
        "side",
        "subject",
        "upstream",
        "wall_ms",
    )

    def __init__(
        self,
        code: int,
        request: bytes,
        answer: bytes | None,
        *,
        connection: int,
        client: str,
        upstream: str,
        broker: str,
        wall_ms: int,
        asked_s: float,
        forwarded_s: float,
        answered_s: float,
        reverse: bool = False,
        side: Side = Side.PRIMARY,
    ) -> None:
        self.code = code
        self.request = request
        self.answer = answer
        self.connection = connection
        self.client = client
        self.upstream = upstream
        self.broker = broker
        self.wall_ms = wall_ms
        self.asked_s = asked_s
        self.forwarded_s = forwarded_s
        self.answered_s = answered_s
        self.reverse = reverse
        self.side = side
        self.subject: Subject | None = None
        self.is_in_doubt = False
        self.search_depth = 0
        self._keeps_decoded = True
        self._decoded_request: Command | None = None
        self._decoded_answer: Command | None = None

    # Cached by hand, because functools.cached_property takes a lock.

    @property
    def request_command(self) -> Command:
        """The request, decoded once. Raises FrameError if it is not a command."""
        command = self._decoded_request
        if command is None:
            command = decode_frame(self.request, 4, len(self.request))
            if self._keeps_decoded:
                self._decoded_request = command
        return command

    @property
    def answer_command(self) -> Command | None:
        """The answer, decoded once. Raises FrameError if it is not a command."""
        command = self._decoded_answer
        if command is None and self.answer is not None:
            command = decode_frame(self.answer, 4, len(self.answer))
            if self._keeps_decoded:
                self._decoded_answer = command
        return command

    def forget_decoded(self) -> None:
        """Free the decoded commands, which take four times the memory of small frames; from now on each look decodes.

        Another thread may be reading them: each property returns what it has found, not the attribute.
        """
        self._keeps_decoded = False
        self._decoded_request = self._decoded_answer = None

    @property
    def size_bytes(self) -> int:
        """Bytes of both frames together."""
        return len(self.request) + (0 if self.answer is None else len(self.answer))


class Observer(Protocol):
    """A part of the gateway that gets finished exchanges. It must return at once, bound its memory, and not raise."""

    def codes(self) -> Codes: ...

    def observe(self, exchange: Exchange) -> None: ...


class Director(Protocol):
    """Decides for some request codes to which cluster a request goes. A hub has at most one; it must return at once.

    After `Side.WAIT` the proxy keeps the request and all later ones of that client, in order and bounded.
    """

    def codes(self) -> Codes: ...

    def choose_side(self, code: int, frame: bytes) -> Side: ...


class Holder(Protocol):
    """An observer that may keep answers back until something else has happened (synchronous mirror modes).

    A hub has at most one, and tells it of an exchange after all other observers. It must return at once and not raise.
    """

    def codes(self) -> Codes: ...

    def holdable_codes(self) -> Codes:
        """Return those of `codes` whose answers may be held at the moment."""

    def observe(self, exchange: Exchange, release: ReleaseAnswer | None = None) -> bool:
        """Return False to let the answer pass now, or True and call ``release`` once with the frame to send.

        Without ``release`` the answer cannot be held.
        """


class Interest(NamedTuple):
    """The parts of the gateway that care about requests of one code."""

    inspected: bool
    """Observed or directed: the proxy has to look at each request."""
    observed: bool
    """An observer or the holder needs the exchange: the proxy remembers the request until it is answered."""
    directed: bool
    """The director chooses the side of each request."""
    holdable: bool
    """The holder has to see each answer before the client gets it."""
    observers: tuple[Observer, ...]
    holder: Holder | None
    """The holder, if it observes these requests."""


class _InterestTable(dict[int, Interest]):
    """Interests by request code, computed at the first look-up, so that later ones enter no Python function."""

    def __init__(self, compute: Callable[[int], Interest]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, code: int) -> Interest:
        # Begun anew, not trimmed: the codes in use are computed again at their next request.
        if len(self) >= MAX_KNOWN_CODES:
            self.clear()
        interest = self[code] = self._compute(code)
        return interest


class Hub:
    """Connects one proxy with the observers, the director and the holder.

    An observer, director or holder whose `codes` change must call `refresh_interests`.
    """

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self._director: Director | None = None
        self._holder: Holder | None = None
        self._after_decision: list[Callable[[], None]] = []
        self._is_ignored: Callable[[Exchange], bool] | None = None
        self.observer_failures: Counter[str] = Counter()
        self.interests: dict[int, Interest] = _InterestTable(self._compute_interest)
        """By request code; every code has an entry."""
        self.observes_anything = False
        """Tells whether requests of any code have to be remembered."""
        self.plain_header_starts: set[bytes] = set()
        """First header bytes of requests that are passed on untouched. The proxy adds to it; any change clears it."""
        self.writable_routes: Mapping[str, Collection[str]] = {}
        """Brokers by topic whose queues clients see as writable, whatever the primary's namesrv says."""

    def add_observer(self, observer: Observer) -> None:
        """Publish exchanges to an observer from now on."""
        self._observers.append(observer)
        self.refresh_interests()

    def set_director(self, director: Director) -> None:
        """Set the director. Raises ValueError if there is one already."""
        if self._director is not None:
            raise ValueError("there is a director already")
        self._director = director
        self.refresh_interests()

    def set_holder(self, holder: Holder) -> None:
        """Set the holder. Raises ValueError if there is one already."""
        if self._holder is not None:
            raise ValueError("there is a holder already")
        self._holder = holder
        self.refresh_interests()

    def ignore_exchanges(self, is_ignored: Callable[[Exchange], bool]) -> None:
        """Publish no exchange for which ``is_ignored`` is true."""
        self._is_ignored = is_ignored

    def refresh_interests(self) -> None:
        """Ask every part again which codes it cares about, at the next request."""
        self.interests.clear()
        # The proxy decided from the old interests which frames nobody needs to see.
        self.plain_header_starts.clear()
        self.observes_anything = bool(self._observers) or self._holder is not None

    def _compute_interest(self, code: int) -> Interest:
        observers = tuple(observer for observer in self._observers if _includes(observer.codes(), code))
        directed = self._director is not None and _includes(self._director.codes(), code)
        holder = self._holder
        if holder is not None and not _includes(holder.codes(), code):
            holder = None
        holdable = holder is not None and _includes(holder.holdable_codes(), code)
        observed = bool(observers) or holder is not None
        return Interest(observed or directed, observed, directed, holdable, observers, holder)

    def is_observed(self, code: int) -> bool:
        """Tell whether requests of this code are remembered until they are answered."""
        return self.interests[code].observed

    def is_directed(self, code: int) -> bool:
        """Tell whether `choose_side` has to be called for requests of this code."""
        return self.interests[code].directed

    def choose_side(self, code: int, frame: bytes) -> Side:
        """Return the side that a request goes to: the primary unless the director says otherwise."""
        return Side.PRIMARY if self._director is None else self._director.choose_side(code, frame)

    def call_after_decision(self, callback: Callable[[], None]) -> None:
        """Call back once, after the director's next decision: for requests whose side was `Side.WAIT`."""
        self._after_decision.append(callback)

    def announce_decision(self) -> None:
        """Call everyone who waits for a decision; the director answers differently from now on."""
        # Taken first: a callback may have to wait again, for the next decision.
        callbacks, self._after_decision = self._after_decision, []
        for callback in callbacks:
            try:
                callback()
            except Exception:
                log.exception("callback after a director's decision failed")

    def publish_to(self, observer: Observer, exchange: Exchange) -> None:
        """Tell one observer of an exchange that is for no other part."""
        try:
            observer.observe(exchange)
        except FrameError:
            return  # the request or its answer is not a command: the servers judge that
        except Exception:  # noqa: BLE001 - logged by `_note_failure`
            self._note_failure(type(observer).__name__)

    def publish_exchange(self, exchange: Exchange, release: ReleaseAnswer | None = None) -> bool:
        """Tell the observers of an exchange; return True if its answer is held and ``release`` will be called.

        Without ``release`` (oneway, reverse, connection ended) no answer can be held.
        """
        if self._is_ignored is not None and self._is_ignored(exchange):
            return False
        interest = self.interests[exchange.code]
        for observer in interest.observers:
            self.publish_to(observer, exchange)
        if interest.holder is None:
            return False
        # The holder comes last. It is the mirror, which may report the outcome of the exchange at once; the capture has
        # to know the exchange before it gets the outcome.
        may_hold = interest.holdable and exchange.answer is not None
        try:
            return interest.holder.observe(exchange, release if may_hold else None)
        except FrameError:
            return False
        except Exception:  # noqa: BLE001 - logged by `_note_failure`
            self._note_failure(type(interest.holder).__name__)
            return False

    def _note_failure(self, observer: str) -> None:
        """Count the failure of an observer, and log the 1st, 2nd, 4th, 8th… one: a client may cause many."""
        self.observer_failures[observer] += 1
        if self.observer_failures[observer].bit_count() == 1:
            extra = {"observer": observer, "failures": self.observer_failures[observer]}
            log.exception("observer failed", extra=extra)

    def metrics(self) -> Iterator[Metric]:
        """Yield the failures of observers."""
        for observer, count in self.observer_failures.items():
            labels = {"observer": observer}
            meaning = "Exchanges that a part of the gateway failed to process."
            yield Metric("observer_failures_total", count, meaning, labels=labels)


def _includes(codes: Codes, code: int) -> bool:
    return codes is ALL_CODES or code in codes
