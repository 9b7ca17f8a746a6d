"""Requests of one connection that wait for their answers, by opaque; bounded in number, bytes and time.

Not responsible for what is done with an answer.
"""

from collections.abc import Iterator


class Pending:
    """A request that was passed on. `frame` is empty when nobody wants to see it with its answer."""

    __slots__ = ("asked_s", "code", "forwarded_s", "frame", "opaque", "wall_ms")

    def __init__(self, code: int, opaque: int, frame: bytes, wall_ms: int, asked_s: float) -> None:
        self.code = code
        self.opaque = opaque
        self.frame = frame
        self.wall_ms = wall_ms
        self.asked_s = asked_s
        self.forwarded_s = asked_s

    @property
    def watched(self) -> bool:
        """Whether somebody wants to see it with its answer."""
        return bool(self.frame)


class Asked:
    """At most ``most`` requests with at most ``most_bytes`` of frames; the oldest are given up for new ones."""

    __slots__ = ("_most", "_most_bytes", "kept_bytes", "waiting")

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self.waiting: dict[int, Pending] = {}
        self.kept_bytes = 0

    def add(self, pending: Pending) -> list[Pending]:
        """Remembers a request; those that had to be given up for it."""
        given_up = []
        same = self.take(pending.opaque)
        if same is not None:
            given_up.append(same)
        self.waiting[pending.opaque] = pending
        self.kept_bytes += len(pending.frame)
        while len(self.waiting) > self._most or self.kept_bytes > self._most_bytes:
            given_up.append(self._drop(next(iter(self.waiting))))
        return given_up

    def take(self, opaque: int) -> Pending | None:
        """The request an answer belongs to."""
        return self._drop(opaque) if opaque in self.waiting else None

    def older_than(self, asked_s: float) -> list[Pending]:
        """Gives up those that were asked before."""
        old = []
        for pending in self.waiting.values():  # in the order they were asked
            if pending.asked_s >= asked_s:
                break
            old.append(pending)
        for pending in old:
            self._drop(pending.opaque)
        return old

    def take_all(self) -> Iterator[Pending]:
        """Gives up all."""
        while self.waiting:
            yield self._drop(next(iter(self.waiting)))

    def _drop(self, opaque: int) -> Pending:
        pending = self.waiting.pop(opaque)
        self.kept_bytes -= len(pending.frame)
        return pending
