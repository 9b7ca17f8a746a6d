"""One client connection and its own way to the upstream.

Not responsible for listening or dialling (gate is), nor for what the upstream sends (leg is).
"""

import logging
from contextlib import suppress
from typing import Final

import trio

from codec.command import decode_frame
from codec.constants import FLAG_RESPONSE
from codec.errors import FrameError
from gateway.shadow.proxy.addresses import joined
from gateway.shadow.proxy.context import Context
from gateway.shadow.proxy.peek import START, UNKNOWN, Cutter, Head, code_of, head_of, telling_start
from gateway.shadow.proxy.pending_requests import Pending
from gateway.shadow.proxy.rewrite import EDITED_ANSWERS, EDITED_REQUESTS, edit_request
from gateway.shadow.proxy.target_leg import INTRODUCING, TargetPath
from gateway.shadow.proxy.upstream_leg import Leg
from gateway.shadow.proxy.wire import Wire
from gateway.shadow.traffic.exchange import Side
from remoting.requests.namesrv import RegisterBroker
from remoting.transport import Transport

log = logging.getLogger(__name__)

LOOKED_AT = EDITED_ANSWERS | EDITED_REQUESTS | {RegisterBroker.code}
WAIT: Final = b"wait"
"""Instead of what the primary gets of a request: nobody knows yet where it goes."""


class Link:
    """Passes frames both ways until either side ends.

    A peer that does not take its bytes stops the reading of those who bring them. What was received for an end
    is still delivered to it, within ``linger_s``, when the other one has gone.
    """

    __slots__ = (
        "_context",
        "_cutter",
        "_ended",
        "_identity",
        "_looked_at",
        "_passed",
        "_plain",
        "_waiting",
        "primary",
        "target",
        "view",
        "wire",
    )

    def __init__(
        self, number: int, client: Transport, upstream: Transport, context: Context, nursery: trio.Nursery
    ) -> None:
        settings = context.settings
        self._identity = number, joined(*client.remote)
        self._context = context
        self._ended = trio.Event()
        self._cutter = Cutter(settings.frame_bytes)
        self._passed: list[tuple[Leg, Pending, Head]] = []
        self.view = context.book.view_for(client.local)
        self.wire = Wire(
            client, self, nursery, read_bytes=settings.read_bytes, high_bytes=settings.kept_bytes
        )
        self.primary = Leg(upstream, self, context, nursery)
        self._waiting: tuple[bytes, list[int]] | None = None
        dial = context.dial_target
        self.target = None if dial is None else TargetPath(self, context, dial, nursery)
        self._looked_at = LOOKED_AT if dial is None else LOOKED_AT | INTRODUCING
        may_pass = dial is None and settings.read_bytes <= settings.frame_bytes  # else one may be too long
        self._plain = context.hub.plain_header_starts if may_pass else set()

    async def run(self) -> None:
        """Passes frames until either side ends and the other got what was its."""
        clients, seen_as = self._context.book.clients, joined(*self.primary.wire.local)
        clients[seen_as] = joined(*self.wire.remote)
        self.primary.wire.start()
        self.wire.start()
        try:
            await self._ended.wait()
            with trio.move_on_after(self._context.settings.linger_s):
                await self._settle()
        finally:
            clients.pop(seen_as, None)
            self.primary.wire.close()
            self.wire.close()
            self.primary.forget()
            if self.target is not None:
                self.target.close()

    async def _settle(self) -> None:
        """What waits to be sent leaves, answers that are held as well."""
        self.primary.wire.finish()
        while self._holding and not self.wire.closed.is_set():  # noqa: ASYNC110 - seldom, and short
            await trio.sleep(0.01)
        self.wire.finish()
        if self.target is not None:
            self.target.finish()
        await self.primary.wire.closed.wait()
        await self.wire.closed.wait()

    @property
    def _holding(self) -> bool:
        return self.primary.holding or (self.target is not None and self.target.holding)

    def end(self) -> None:
        """Ends the link as if the upstream had closed it."""
        self._ended.set()

    def cut(self) -> None:
        """Ends the link at once: nothing more is delivered."""
        self.wire.close()
        self.primary.wire.close()
        self._ended.set()

    def identity(self) -> tuple[int, str]:
        """Number of the connection, and "host:port" of the client."""
        return self._identity

    @property
    def kept_bytes(self) -> int:
        """Bytes held for both ends: unsent ones and unfinished frames."""
        more = 0 if self.target is None else self.target.kept_bytes
        waiting = 0 if self._waiting is None else len(self._waiting[0])
        return self.wire.kept_bytes + len(self._cutter.kept) + self.primary.kept_bytes + more + waiting

    # -- what the client sends ------------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """Passes whole frames on."""
        if data[START] not in self._plain or not self._is_plain(data):
            self._cut(data)
            return
        counts = self._context.counts
        counts.requests += 1
        counts.request_bytes += len(data)
        wire = self.primary.wire
        if not wire.write(data) and wire.full:
            self.wire.pause()

    def _is_plain(self, data: bytes) -> bool:
        """Whether this is one frame for nobody but the primary, if the start of its header is that of such frames."""
        if self._cutter.kept or self.primary.questions or data[4]:
            return False
        return int.from_bytes(data[:4]) == len(data) - 4

    def _cut(self, data: bytes) -> None:
        data, stops = self._cutter.cut(data)
        if stops:
            counts = self._context.counts
            counts.requests += len(stops)
            counts.request_bytes += stops[-1]
            self._pass_on(data, stops)
        if self._cutter.problem is not None:
            self._context.counts.bad_frames += 1
            log.warning(
                "connection closed: bad frame",
                extra={"remote": self.wire.remote, "reason": self._cutter.problem},
            )
            self._ended.set()

    def _pass_on(self, data: bytes, stops: list[int]) -> None:
        interests, primary = self._context.hub.interests, self.primary
        looked_at, target = self._looked_at, self.target
        answers = primary.questions or (target is not None and target.expects_answers)
        pieces: list[bytes] = []
        begin = start = 0
        for stop in stops:
            code = code_of(data, start, stop)
            if answers or code in looked_at or interests[code].inspected:
                if begin < start:
                    pieces.append(data[begin:start])
                frame = self._request(code, data[start:stop])
                if frame is WAIT:
                    self._wait(data[start : stops[-1]], [each - start for each in stops if each > start])
                    begin = start
                    break
                if frame is not None:
                    pieces.append(frame)
                begin = stop
            start = stop
        if begin == 0 and start:
            primary.wire.write(data if start == len(data) else data[:start])
            if target is None and len(stops) == 1 and (known := telling_start(data)) is not None:
                self._context.hub.plain_header_starts.add(known)
        else:
            pieces.append(data[begin:start])
            passed = b"".join(pieces)
            if passed:
                primary.wire.write(passed)
            self._stamp()
        if target is not None and target.full:
            target.stalls()
            self.wire.pause()
        elif primary.wire.full:
            self.wire.pause()

    def _wait(self, data: bytes, stops: list[int]) -> None:
        """Keeps whole frames until the director has decided, and reads no more before that."""
        self._waiting = data, stops
        self.wire.pause()
        self._context.hub.call_after_decision(self._go_on)

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not self._ended.is_set():
            self._pass_on(*waiting)
            self._read_on()

    def _read_on(self) -> None:
        if self.target is not None and self.target.full:
            self.target.stalls()
        elif self._waiting is None and not self.primary.wire.full:
            self.wire.resume()

    def _request(self, code: int, frame: bytes) -> bytes | None:
        """One frame somebody has to look at; what the primary gets of it, None for nothing."""
        head = head_of(frame, 0, len(frame)) if code != UNKNOWN else None
        if head is None:
            return frame
        if head.flag & FLAG_RESPONSE:
            return self._answer(head, frame)
        target, hub = self.target, self._context.hub
        if target is not None and code in INTRODUCING:
            target.introduce(head, frame)
        elif hub.is_directed(code):
            side = hub.choose_side(code, frame)
            if side is Side.WAIT:
                return WAIT
            if side is Side.TARGET and target is not None:
                target.send(head, frame)
                return None
        pending = self.primary.remember(head, frame)
        if pending is not None:
            self._passed.append((self.primary, pending, head))
        if code == RegisterBroker.code:
            self._registers(frame)
        return edit_request(frame, self.view) if code in EDITED_REQUESTS else frame

    def _registers(self, frame: bytes) -> None:
        """A broker that comes to the gateway is none of the primary's: its address is not replaced in answers."""
        with suppress(FrameError):
            address = decode_frame(frame, 4, len(frame)).ext.get("brokerAddr")
            if address:
                self._context.book.leave_alone(address)

    def _answer(self, head: Head, frame: bytes) -> bytes | None:
        """The client answers whoever asked."""
        if self.target is not None and self.target.pass_answer(head, frame):
            return None
        self.primary.answered_by_client(head, frame)
        return frame

    def _stamp(self) -> None:
        passed, self._passed = self._passed, []
        for leg, pending, head in passed:
            leg.passed(pending, head)

    def give_up_older_than(self, asked_s: float) -> None:
        """Waits no longer for answers to what was asked before."""
        self.primary.give_up_older_than(asked_s)
        if self.target is not None:
            self.target.give_up_older_than(asked_s)

    # -- the ends -------------------------------------------------------------------------------------------------

    def ended(self, reason: str) -> None:
        """The client has gone."""
        log.debug("client gone", extra={"remote": self.wire.remote, "reason": reason})
        self._ended.set()

    def drained(self) -> None:
        """The client takes answers again."""
        self.primary.wire.resume()
        if self.target is not None:
            self.target.resume()

    def leg_ended(self, leg: Leg, reason: str) -> None:
        """An upstream has gone. The target may, as long as the client waits for no answer of it."""
        log.debug("upstream gone", extra={"upstream": leg.upstream.address, "reason": reason})
        if leg is self.primary or self.target is None or self.target.close():
            self._ended.set()

    def leg_drained(self, leg: Leg) -> None:
        """An upstream takes requests again."""
        if self.target is not None and leg is self.target.leg:
            self.target.relieve()
        self._read_on()
