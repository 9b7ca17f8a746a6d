"""One upstream connection of a link: requests go out, answers and the upstream's own questions come in.

Not responsible for the client's side of the link, nor for choosing where a request goes.
"""

from functools import partial
from typing import Protocol

import trio

from codec.constants import FLAG_ONEWAY, FLAG_RESPONSE
from gateway.shadow.proxy.addresses import View
from gateway.shadow.proxy.context import Context, Upstream
from gateway.shadow.proxy.peek import Cutter, Head, code_of, head_of, is_bare
from gateway.shadow.proxy.pending_requests import Asked, Pending
from gateway.shadow.proxy.rewrite import EDITED_ANSWERS, edit_answer, patch_answers
from gateway.shadow.proxy.wire import Wire
from gateway.shadow.traffic.exchange import Exchange, Side
from remoting.transport import Transport


class Client(Protocol):
    """The other side of the link, as a leg sees it."""

    wire: Wire
    view: View

    def end(self) -> None:
        """Nothing that the client asks can be answered."""

    def leg_ended(self, leg: "Leg", reason: str) -> None:
        """Nothing more comes from this upstream."""

    def leg_drained(self, leg: "Leg") -> None:
        """This upstream takes requests again."""

    def identity(self) -> tuple[int, str]:
        """Number of the connection, and "host:port" of the client."""


class Leg:
    """Owns the wire to one upstream. `side` says whose it is."""

    __slots__ = (
        "_asked",
        "_client",
        "_context",
        "_cutter",
        "_held",
        "_hub",
        "_id_prefix",
        "_over_now",
        "_passes_bare",
        "_reversed",
        "questions",
        "side",
        "upstream",
        "wire",
    )

    def __init__(
        self,
        transport: Transport,
        client: Client,
        context: Context,
        nursery: trio.Nursery,
        side: Side = Side.PRIMARY,
        upstream: Upstream | None = None,
    ) -> None:
        settings = context.settings
        self._client = client
        self._context = context
        self.upstream = upstream or context.upstream
        self.side = side
        self.wire = Wire(
            transport, self, nursery, read_bytes=settings.read_bytes, high_bytes=settings.kept_bytes
        )
        self._cutter = Cutter(settings.frame_bytes)
        self._asked = Asked(settings.remembered, settings.remembered_bytes)
        self._reversed = Asked(settings.remembered, settings.remembered_bytes)
        self.questions = self._reversed.waiting
        """What the upstream asked and waits for: while there is any, answers of the client must be looked at."""
        self._hub = context.hub
        self._passes_bare = settings.read_bytes <= settings.frame_bytes  # else one may be too long
        self._held = 0
        self._over_now: list[Exchange] = []
        self._id_prefix = context.book.id_prefix(self.upstream.address)

    # -- requests of the client -----------------------------------------------------------------------------------

    @property
    def holding(self) -> bool:
        """Whether answers are held back for the client."""
        return self._held > 0

    @property
    def kept_bytes(self) -> int:
        """Bytes held for this upstream or from it: unsent ones, an unfinished frame, remembered requests."""
        remembered = self._asked.kept_bytes + self._reversed.kept_bytes
        return self.wire.kept_bytes + len(self._cutter.kept) + remembered

    def remember(self, head: Head, frame: bytes) -> Pending | None:
        """Notes a request that is about to be passed on; None when nobody has to see its answer."""
        watched = self._hub.is_observed(head.code)
        if not watched and head.code not in EDITED_ANSWERS:
            return None
        return self._note(head, frame if watched else b"")

    def _note(self, head: Head, frame: bytes) -> Pending:
        pending = self._pending(head, frame)
        if not head.flag & FLAG_ONEWAY:
            self._give_up(self._asked.add(pending))
        return pending

    def passed(self, pending: Pending, head: Head) -> None:
        """The request was passed on."""
        pending.forwarded_s = self._context.clock.monotonic()
        if head.flag & FLAG_ONEWAY and pending.watched:
            self._over(pending, None)

    def answered_by_client(self, head: Head, frame: bytes) -> None:
        """The client answers a question of the upstream."""
        pending = self._reversed.take(head.opaque)
        if pending is not None:
            self._over(pending, frame, reverse=True)

    # -- what the upstream sends ----------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """Passes whole frames on to the client."""
        if (
            not self._passes_bare
            or self._asked.waiting
            or self._hub.observes_anything
            or self._cutter.kept
            or not is_bare(data)
        ):
            self._cut(data)
            return
        counts = self._context.counts
        counts.answers += 1
        counts.answer_bytes += len(data)
        client = self._client
        ours = client.view.ids.get(self._id_prefix)
        if not client.wire.write(data if ours is None else data.replace(self._id_prefix, ours)):
            self._wait_for_client()

    def _cut(self, data: bytes) -> None:
        data, stops = self._cutter.cut(data)
        if stops:
            counts = self._context.counts
            counts.answers += len(stops)
            counts.answer_bytes += stops[-1]
            self._pass_on(data, stops)
            if self._over_now:
                self._tell()
        if self._cutter.problem is not None:
            self._context.counts.bad_frames += 1
            self.ended(self._cutter.problem)

    def _pass_on(self, data: bytes, stops: list[int]) -> None:
        client = self._client
        patched = patch_answers(data, stops, client.view, self._id_prefix)
        if self._asked.waiting or self._hub.observes_anything:
            patched = self._look_at(data, patched, stops)
        elif stops[-1] != len(patched):
            patched = patched[: stops[-1]]
        if patched and not client.wire.write(patched):
            self._wait_for_client()

    def _wait_for_client(self) -> None:
        if self._client.wire.full:
            self.wire.pause()

    def _look_at(self, data: bytes, patched: bytes | bytearray, stops: list[int]) -> bytes | bytearray:
        """What the client gets at once of these frames."""
        pieces: list[bytes | bytearray] = []
        asked, watches = self._asked.waiting, self._hub.is_observed
        begin = start = 0
        for stop in stops:
            if asked or watches(code_of(data, start, stop)):
                head = head_of(data, start, stop)
                other = None if head is None else self._looked_at(head, data[start:stop])
                if other is not None:
                    pieces += (patched[begin:start], other)
                    begin = stop
            start = stop
        if begin == 0 and start == len(patched):
            return patched
        pieces.append(patched[begin:start])
        return b"".join(pieces)

    def _looked_at(self, head: Head, frame: bytes) -> bytes | None:
        """What the client gets instead of a frame, nothing if it is held; None when it gets the frame."""
        if not head.flag & FLAG_RESPONSE:
            self._asks(head, frame)
            return None
        pending = self._asked.take(head.opaque)
        if pending is None:
            return None
        if self._holds(pending, frame):
            return b""
        return edit_answer(pending.code, frame, self._client.view) if pending.code in EDITED_ANSWERS else None

    def _holds(self, pending: Pending, frame: bytes) -> bool:
        """Whether an answer is held back. Those that cannot be are told of when the client has them."""
        if not pending.watched:
            return False
        exchange, hub = self._exchange(pending, frame), self._hub
        if not hub.interests[pending.code].holdable:
            self._over_now.append(exchange)
            return False
        self._tell()
        held = hub.publish_exchange(exchange, partial(self._release, pending.code))
        self._held += held
        return held

    def _tell(self) -> None:
        """Tells of the exchanges that are over, in their order."""
        over, self._over_now = self._over_now, []
        for exchange in over:
            self._hub.publish_exchange(exchange)

    def _asks(self, head: Head, frame: bytes) -> None:
        """A question of the upstream to the client."""
        if not self._hub.is_observed(head.code):
            return
        pending = self._pending(head, frame)
        if head.flag & FLAG_ONEWAY:
            self._over(pending, None, reverse=True)
        else:
            self._give_up(self._reversed.add(pending), reverse=True)

    def _release(self, code: int, frame: bytes) -> None:
        """An answer that was held goes to the client."""
        self._held -= 1
        self._client.wire.write(self._released(code, frame))

    def _released(self, code: int, frame: bytes) -> bytes:
        view = self._client.view
        patched = bytes(patch_answers(frame, [len(frame)], view, self._id_prefix))
        return edit_answer(code, patched, view) if code in EDITED_ANSWERS else patched

    # -- what became of exchanges ---------------------------------------------------------------------------------

    def _pending(self, head: Head, frame: bytes) -> Pending:
        clock = self._context.clock
        return Pending(head.code, head.opaque, frame, clock.now_ms(), clock.monotonic())

    def _over(self, pending: Pending, answer: bytes | None, *, reverse: bool = False) -> None:
        """Tells of an exchange whose answer, if there is one, nobody can hold."""
        self._hub.publish_exchange(self._exchange(pending, answer, reverse=reverse))

    def _exchange(self, pending: Pending, answer: bytes | None, *, reverse: bool = False) -> Exchange:
        context = self._context
        number, client = self._client.identity()
        return Exchange(
            pending.code,
            pending.frame,
            answer,
            connection=number,
            client=client,
            upstream=self.upstream.address,
            broker=self.upstream.broker,
            wall_ms=pending.wall_ms,
            asked_s=pending.asked_s,
            forwarded_s=pending.forwarded_s,
            answered_s=context.clock.monotonic(),
            reverse=reverse,
            side=self.side,
        )

    def _give_up(self, pendings: list[Pending], *, reverse: bool = False) -> None:
        for pending in pendings:
            self._context.counts.given_up += 1
            if pending.watched:
                self._over(pending, None, reverse=reverse)

    def give_up_older_than(self, asked_s: float) -> None:
        """Waits no longer for answers to what was asked before."""
        self._give_up(self._asked.older_than(asked_s))
        self._give_up(self._reversed.older_than(asked_s), reverse=True)

    # -- the wire -------------------------------------------------------------------------------------------------

    def ended(self, reason: str) -> None:
        """The upstream is gone."""
        self._client.leg_ended(self, reason)

    def drained(self) -> None:
        """The upstream takes requests again."""
        self._client.leg_drained(self)

    def forget(self) -> None:
        """The link is over: tells of what was not answered."""
        self._tell()
        for pending in self._asked.take_all():
            if pending.watched:
                self._over(pending, None)
        for pending in self._reversed.take_all():
            self._over(pending, None, reverse=True)
