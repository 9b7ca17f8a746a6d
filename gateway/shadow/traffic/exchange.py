"""What passed through the gateway, and the hub between the forwarder and all that looks at traffic.

Not responsible for moving bytes (forward is), nor for what is made of an exchange.
"""

import logging
from collections.abc import Callable, Collection
from enum import Enum
from typing import Final, Protocol

from codec.command import Command, decode_frame

log = logging.getLogger(__name__)

ALL_CODES: Final = None
"""Instead of a set of request codes: every one, known or not."""
Codes = Collection[int] | None


class Side(Enum):
    """Where a request goes."""

    PRIMARY = "primary"
    TARGET = "target"
    WAIT = "wait"
    """Neither yet: it is asked again after `Hub.decided`. Never the side of an `Exchange`."""


class Exchange:
    """One request and its answer, as whole frames with their length word; nobody may change them.

    `broker` is the name of the primary's broker, also where the target answers in its place, "" for a namesrv;
    `upstream` the "host:port" that was asked; `client` who asked. `connection` numbers client connections from 1 and
    is never used twice. `answer` is None for a oneway request and when the connection ended first. `reverse` marks a
    question of the broker to the client. `side` tells who answered.
    Times are monotonic seconds, `wall_ms` is ms since 1970 at the request's arrival.
    """

    __slots__ = (
        "__dict__",
        "_answered",
        "_asked",
        "answer",
        "answered_s",
        "asked_s",
        "broker",
        "client",
        "code",
        "connection",
        "forwarded_s",
        "request",
        "reverse",
        "side",
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
        self._asked: Command | None = None
        self._answered: Command | None = None

    # By hand, since what the standard library offers takes a lock.

    @property
    def asked(self) -> Command:
        """The request, decoded once. Raises FrameError for what is no command."""
        if self._asked is None:
            self._asked = decode_frame(self.request, 4, len(self.request))
        return self._asked

    @property
    def answered(self) -> Command | None:
        """The answer, decoded once. Raises FrameError for what is no command."""
        if self._answered is None and self.answer is not None:
            self._answered = decode_frame(self.answer, 4, len(self.answer))
        return self._answered

    @property
    def size_bytes(self) -> int:
        """Bytes of both frames."""
        return len(self.request) + (0 if self.answer is None else len(self.answer))


class Observer(Protocol):
    """Is told of exchanges when they are over; must return at once, keep what it keeps bounded, and not raise."""

    def codes(self) -> Codes: ...

    def observe(self, exchange: Exchange) -> None: ...


class Director(Protocol):
    """Says, for some request codes, to which side a request goes. At most one; must return at once.

    After `Side.WAIT` the forwarder keeps the request, and all later ones of that client, in order and bounded.
    """

    def codes(self) -> Codes: ...

    def side(self, code: int, frame: bytes) -> Side: ...


class Holder(Protocol):
    """Holds answers back until something else has happened (synchronous mirror modes). At most one."""

    def codes(self) -> Codes: ...

    def hold(self, exchange: Exchange, release: Callable[[bytes], None]) -> bool:
        """True when it will call `release` once, with the frame the client gets; False to let the answer pass now."""


class Hub:
    """Joins one forwarder with the observers, the director and the holder.

    The forwarder looks at three plain predicates per request code (cached tables), so that a code nobody cares for
    costs one dictionary look-up. Whoever changes the codes it wants calls `changed`.
    """

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self._director: Director | None = None
        self._holder: Holder | None = None
        self._watched: dict[int, bool] = {}
        self._directed: dict[int, bool] = {}
        self._wanted: dict[int, bool] = {}
        self._by_code: dict[int, tuple[Observer, ...]] = {}
        self._waiting: list[Callable[[], None]] = []
        self.any_watched = False
        """Whether there is anybody for whom requests of some code have to be remembered."""
        self.plain: set[bytes] = set()
        """How headers begin that the forwarder passes on untouched; it adds them, `changed` forgets them."""

    def observe_with(self, observer: Observer) -> None:
        """Adds an observer."""
        self._observers.append(observer)
        self.changed()

    def direct_with(self, director: Director) -> None:
        """Sets the director. Raises ValueError when there is one."""
        if self._director is not None:
            raise ValueError("there is a director already")
        self._director = director
        self.changed()

    def hold_with(self, holder: Holder) -> None:
        """Sets the holder. Raises ValueError when there is one."""
        if self._holder is not None:
            raise ValueError("there is a holder already")
        self._holder = holder
        self.changed()

    def changed(self) -> None:
        """Forgets which codes are wanted; they are asked for again."""
        self._watched.clear()
        self._directed.clear()
        self._wanted.clear()
        self._by_code.clear()
        self.plain.clear()
        self.any_watched = bool(self._observers) or self._holder is not None

    def wanted(self, code: int) -> bool:
        """Whether somebody watches or directs requests of this code."""
        known = self._wanted.get(code)
        if known is None:
            known = self._wanted[code] = self.watches(code) or self.directs(code)
        return known

    def watches(self, code: int) -> bool:
        """Whether the forwarder has to remember requests of this code until they are answered."""
        known = self._watched.get(code)
        if known is None:
            known = self._watched[code] = bool(self._observers_of(code)) or self.may_hold(code)
        return known

    def directs(self, code: int) -> bool:
        """Whether `side` has to be asked for requests of this code."""
        known = self._directed.get(code)
        if known is None:
            director = self._director
            known = self._directed[code] = director is not None and _wants(director.codes(), code)
        return known

    def may_hold(self, code: int) -> bool:
        """Whether the holder has to be asked for answers to requests of this code, before clients have them."""
        return self._holder is not None and _wants(self._holder.codes(), code)

    def side(self, code: int, frame: bytes) -> Side:
        """Where a request goes; the primary where nobody says otherwise."""
        return Side.PRIMARY if self._director is None else self._director.side(code, frame)

    def when_decided(self, callback: Callable[[], None]) -> None:
        """Calls back, once, after the director has made up its mind; for what was told to wait."""
        self._waiting.append(callback)

    def decided(self) -> None:
        """The director's answers are other ones now: what waits asks again."""
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            try:
                callback()
            except Exception:
                log.exception("what waited failed")

    def over(self, exchange: Exchange, release: Callable[[bytes], None] | None = None) -> bool:
        """Tells of an exchange that is over; True when its answer is held and `release` will be called.

        Without ``release`` (oneway, reverse, connection ended) nothing can be held.
        """
        for observer in self._observers_of(exchange.code):
            try:
                observer.observe(exchange)
            except Exception:
                log.exception("an observer failed", extra={"observer": type(observer).__name__})
        holder = self._holder
        if release is None or holder is None or exchange.answer is None:
            return False
        return self.may_hold(exchange.code) and holder.hold(exchange, release)

    def _observers_of(self, code: int) -> tuple[Observer, ...]:
        known = self._by_code.get(code)
        if known is None:
            known = tuple(each for each in self._observers if _wants(each.codes(), code))
            self._by_code[code] = known
        return known


def _wants(codes: Codes, code: int) -> bool:
    return codes is ALL_CODES or code in codes
