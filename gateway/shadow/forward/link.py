"""One client connection and its own way to the upstream.

Not responsible for listening or dialling (gate is), nor for what the upstream sends (leg is).
"""

import logging
from contextlib import suppress

import trio

from codec.command import decode_frame
from codec.constants import FLAG_RESPONSE
from codec.errors import FrameError
from gateway.shadow.forward.asked import Pending
from gateway.shadow.forward.context import Context
from gateway.shadow.forward.leg import Leg
from gateway.shadow.forward.peek import UNKNOWN, Cutter, Head, code_of, head_of
from gateway.shadow.forward.rewrite import EDITED_ANSWERS, EDITED_REQUESTS, edit_request
from gateway.shadow.forward.wire import Wire
from remoting.requests.namesrv import RegisterBroker
from remoting.transport import Transport

log = logging.getLogger(__name__)

LOOKED_AT = EDITED_ANSWERS | EDITED_REQUESTS | {RegisterBroker.code}


class Link:
    """Passes frames both ways until either side ends.

    A peer that does not take its bytes stops the reading of those who bring them. What was received for an end
    is still delivered to it, within ``linger_s``, when the other one has gone.
    """

    __slots__ = ("_context", "_cutter", "_ended", "_number", "_passed", "primary", "view", "wire")

    def __init__(
        self, number: int, client: Transport, upstream: Transport, context: Context, nursery: trio.Nursery
    ) -> None:
        settings = context.settings
        self._number = number
        self._context = context
        self._ended = trio.Event()
        self._cutter = Cutter(settings.frame_bytes)
        self._passed: list[tuple[Leg, Pending, Head]] = []
        self.view = context.book.view_for(client.local)
        self.wire = Wire(
            client, self, nursery, read_bytes=settings.read_bytes, high_bytes=settings.kept_bytes
        )
        self.primary = Leg(upstream, self, context, nursery)

    async def run(self) -> None:
        """Passes frames until either side ends and the other got what was its."""
        self.primary.wire.start()
        self.wire.start()
        try:
            await self._ended.wait()
            with trio.move_on_after(self._context.settings.linger_s):
                await self._settle()
        finally:
            self.primary.wire.close()
            self.wire.close()
            self.primary.forget()

    async def _settle(self) -> None:
        """What waits to be sent leaves, answers that are held as well."""
        self.primary.wire.finish()
        while self.primary.holding and not self.wire.closed.is_set():  # noqa: ASYNC110 - seldom, and short
            await trio.sleep(0.01)
        self.wire.finish()
        await self.primary.wire.closed.wait()
        await self.wire.closed.wait()

    def end(self) -> None:
        """Ends the link as if the upstream had closed it."""
        self._ended.set()

    def identity(self) -> tuple[int, str]:
        """Number of the connection, and "host:port" of the client."""
        host, port = self.wire.remote
        return self._number, f"{host}:{port}"

    @property
    def kept_bytes(self) -> int:
        """Bytes held for both ends: unsent ones and unfinished frames."""
        return self.wire.kept_bytes + self._cutter.kept_bytes + self.primary.kept_bytes

    # -- what the client sends ------------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """Passes whole frames on."""
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
        wanted, primary = self._context.hub.wanted, self.primary
        answers = primary.expects_answers
        pieces: list[bytes] = []
        begin = start = 0
        for stop in stops:
            code = code_of(data, start, stop)
            if answers or code in LOOKED_AT or wanted(code):
                if begin < start:
                    pieces.append(data[begin:start])
                frame = self._request(code, data[start:stop])
                if frame is not None:
                    pieces.append(frame)
                begin = stop
            start = stop
        if begin == 0:
            primary.wire.write(data if start == len(data) else data[:start])
        else:
            pieces.append(data[begin:start])
            primary.wire.write(b"".join(pieces))
            self._stamp()
        if primary.wire.full:
            self.wire.pause()

    def _request(self, code: int, frame: bytes) -> bytes | None:
        """One frame somebody has to look at; what the primary gets of it, None for nothing."""
        head = head_of(frame, 0, len(frame)) if code != UNKNOWN else None
        if head is None:
            return frame
        if head.flag & FLAG_RESPONSE:
            self.primary.answered_by_client(head, frame)
            return frame
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

    def _stamp(self) -> None:
        passed, self._passed = self._passed, []
        for leg, pending, head in passed:
            leg.passed(pending, head)

    def give_up_older_than(self, asked_s: float) -> None:
        """Waits no longer for answers to what was asked before."""
        self.primary.give_up_older_than(asked_s)

    # -- the ends -------------------------------------------------------------------------------------------------

    def ended(self, reason: str) -> None:
        """The client has gone."""
        log.debug("client gone", extra={"remote": self.wire.remote, "reason": reason})
        self._ended.set()

    def drained(self) -> None:
        """The client takes answers again."""
        self.primary.wire.resume()

    def leg_ended(self, leg: Leg, reason: str) -> None:
        """An upstream has gone."""
        log.debug("upstream gone", extra={"upstream": self._context.upstream.address, "reason": reason})
        self._ended.set()

    def leg_drained(self, leg: Leg) -> None:
        """An upstream takes requests again."""
        self.wire.resume()
