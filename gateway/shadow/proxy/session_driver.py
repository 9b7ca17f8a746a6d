"""The I/O of one session: connects its `Session` (the protocol logic) with the transports, tasks and timers.

`describe_session_frame` tells from the driver's functions on a stack which client's request blocks the event loop.
"""

import logging
from functools import partial
from types import CodeType, FrameType
from typing import Any, Final

import trio

from codec.constants import FLAG_RESPONSE
from codec.hosts import format_host
from gateway.shadow.proxy.exchange_tracker import ClientIdentity, PendingRequest
from gateway.shadow.proxy.frame_peek import HEADER_AT, UNKNOWN, FrameHead, peek_code
from gateway.shadow.proxy.listener_context import ListenerContext
from gateway.shadow.proxy.peer_connection import DEFECT, ConnectionEvents, PeerConnection
from gateway.shadow.proxy.session import (
    Action,
    AwaitDecision,
    CloseTarget,
    ContinueLater,
    DialTarget,
    EndSession,
    PauseReading,
    Peer,
    ResumeReading,
    Send,
    Session,
    StartStallTimer,
    StopStallTimer,
)
from gateway.shadow.traffic.exchange import Exchange
from remoting.declare import REQUESTS
from remoting.transport import Buffer, Transport

log = logging.getLogger(__name__)

HELD_ANSWER_POLL_S = 0.01


class SessionDriver:
    """Runs one session until a connection ends.

    When one end closes its connection, the bytes already received from it are still delivered to the other end, within
    ``linger_s``.
    """

    __slots__ = (
        "_context",
        "_ended",
        "_nursery",
        "_session",
        "_stall_ended",
        "client",
        "primary",
        "target",
    )

    def __init__(
        self,
        number: int,
        client: Transport,
        primary: Transport,
        context: ListenerContext,
        nursery: trio.Nursery,
    ) -> None:
        self._context = context
        self._nursery = nursery
        self._ended = trio.Event()
        self._stall_ended = trio.Event()
        self.client = self._make_connection(client, Peer.CLIENT)
        self.primary = self._make_connection(primary, Peer.PRIMARY)
        self.target: PeerConnection | None = None
        identity = ClientIdentity(number, format_host(client.remote))
        self._session = Session(
            identity, context.book.view_for(client.local), context, self._follow_up, self._on_large_input
        )

    def _make_connection(self, transport: Transport, peer: Peer) -> PeerConnection:
        on_data = {
            Peer.CLIENT: self._on_client_data,
            Peer.PRIMARY: self._on_primary_data,
            Peer.TARGET: self._on_target_data,
        }
        settings = self._context.settings
        return PeerConnection(
            transport,
            ConnectionEvents(
                on_data[peer],
                partial(self._on_end, peer),
                partial(self._on_drained, peer),
                partial(self._context.memory.note_growth, self),
            ),
            self._nursery,
            read_bytes=settings.read_bytes,
            high_watermark_bytes=settings.buffered_bytes,
        )

    async def run(self) -> None:
        """Forward frames until a connection ends and the other end has got its bytes."""
        client_addresses = self._context.book.client_addresses
        address_at_primary = format_host(self.primary.local)
        client_addresses[address_at_primary] = format_host(self.client.remote)
        # The address is noted before anything is read: the first answer may already list connected clients.
        self.primary.start_reading()
        self.client.start_reading()
        try:
            await self._ended.wait()
            # A client that takes nothing any more must not keep the session: after `linger_s` the rest is dropped.
            with trio.move_on_after(self._context.settings.linger_s):
                await self._deliver_rest()
        finally:
            client_addresses.pop(address_at_primary, None)
            self.primary.close()
            self.client.close()
            self._close_target()
            # Requests that stay without an answer are published now; after `release` nothing may arrive.
            self._session.finish_all()
            self._follow_up()
            self._session.release()
            self._context.memory.forget_session(self)

    async def _deliver_rest(self) -> None:
        """Send what is buffered, held answers included."""
        self.primary.finish()
        # Polled: a held answer is released by the mirror or its timeout, and either comes soon. The client has to stay
        # open until then.
        while self._session.has_unsent_answers and not self.client.closed.is_set():  # noqa: ASYNC110 - short
            await trio.sleep(HELD_ANSWER_POLL_S)
        self.client.finish()
        if self.target is not None:
            self.target.finish()
        # `finish` closes each connection once its output is sent.
        await self.primary.closed.wait()
        await self.client.closed.wait()

    def end(self) -> None:
        """End the session as if a connection had ended."""
        self._session.end()
        self._follow_up()

    def abort(self) -> None:
        """End the session at once: nothing more is delivered, and what it holds is freed."""
        self.client.close()
        self.primary.close()
        self._close_target()
        self.end()
        self._session.finish_all()
        self._follow_up()
        self._session.release()

    @property
    def buffered_bytes(self) -> int:
        """Bytes held in memory for all ends: unsent ones, unfinished frames, and remembered requests."""
        target = 0 if self.target is None else self.target.buffered_bytes
        connections = self.client.buffered_bytes + self.primary.buffered_bytes + target
        return connections + self._session.buffered_bytes

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of unfinished frames of all ends."""
        return self._session.unfinished_bytes

    def give_up_older_than(self, asked_s: float) -> None:
        """Stop waiting for answers to requests that were received before ``asked_s`` (monotonic seconds)."""
        self._session.give_up_older_than(asked_s)
        self._follow_up()

    def leave_former_target(self, address: str) -> None:
        """Close the connection to a broker of the target that is not the master any more, because ``address`` is."""
        self._session.target_moved(address)
        self._follow_up()

    # -- events ---------------------------------------------------------------------------------------------------

    def _on_client_data(self, data: bytes) -> None:
        session = self._session
        to_primary = session.receive_from_client(data)
        # Written before the actions: they may publish the exchange, and observers come after the upstream has the
        # bytes.
        if to_primary and not self.primary.write(to_primary) and self.primary.is_full:
            session.output_full(Peer.PRIMARY)
        if session.has_followup:
            self._follow_up()

    def _on_primary_data(self, data: bytes) -> None:
        session = self._session
        to_client = session.receive_from_primary(data)
        if to_client and not self.client.write(to_client) and self.client.is_full:
            session.output_full(Peer.CLIENT)
        if session.has_followup:
            self._follow_up()

    def _on_target_data(self, data: bytes) -> None:
        self._write(Peer.CLIENT, self._session.receive_from_target(data))
        self._follow_up()

    def _on_end(self, peer: Peer, reason: str) -> None:
        self._session.connection_ended(peer, reason)
        self._follow_up()

    def _on_drained(self, peer: Peer) -> None:
        self._session.output_drained(peer)
        self._follow_up()

    def _on_large_input(self, peer: Peer, size: int) -> None:
        connection = self._connection(peer)
        if connection is not None:
            connection.limit_reads(limited=size > 0)
        if size:
            self._context.memory.note_growth(self, size)

    def _on_decision(self) -> None:
        self._write(Peer.PRIMARY, self._session.decision_made())
        self._follow_up()

    # -- actions --------------------------------------------------------------------------------------------------

    def _follow_up(self) -> None:
        """Perform the session's actions, and those that follow from them."""
        session = self._session
        # Publishing an exchange can add actions, for example when the holder refuses at once.
        while session.has_followup:
            for action in session.take_actions():
                self._perform(action)
            session.complete_writes()

    def _perform(self, action: Action) -> None:
        match action:
            case Send(peer, data):
                self._write(peer, data)
            case PauseReading(peer):
                if (connection := self._connection(peer)) is not None:
                    connection.pause_reading()
            case ResumeReading(peer):
                if (connection := self._connection(peer)) is not None:
                    connection.resume_reading()
            case AwaitDecision():
                self._context.hub.call_after_decision(self._on_decision)
            case ContinueLater(peer):
                self._nursery.start_soon(self._continue_turn, peer)
            case DialTarget():
                self._nursery.start_soon(self._dial_target)
            case CloseTarget():
                self._close_target()
            case StartStallTimer():
                self._stall_ended = trio.Event()
                self._nursery.start_soon(self._run_stall_timer, self._stall_ended)
            case StopStallTimer():
                self._stall_ended.set()
            case EndSession():
                self._ended.set()

    async def _continue_turn(self, peer: Peer) -> None:
        # All other ready tasks run first: that is the whole purpose of a turn.
        await trio.lowlevel.checkpoint()
        try:
            data = self._session.continue_turn(peer)
            self._write(Peer.PRIMARY if peer is Peer.CLIENT else Peer.CLIENT, data)
            self._follow_up()
        except Exception:
            log.exception(DEFECT, extra={"remote": self.client.remote})
            self.end()

    def _connection(self, peer: Peer) -> PeerConnection | None:
        if peer is Peer.TARGET:
            return self.target
        return self.client if peer is Peer.CLIENT else self.primary

    def _write(self, peer: Peer, data: Buffer) -> None:
        connection = self._connection(peer)
        if data and connection is not None and not connection.write(data) and connection.is_full:
            self._session.output_full(peer)

    def _close_target(self) -> None:
        target, self.target = self.target, None
        if target is not None:
            target.close()

    async def _run_stall_timer(self, stall_ended: trio.Event) -> None:
        # Each timer has an event of its own, so that a late stop of an older timer does not end a newer one.
        with trio.move_on_after(self._context.settings.stall_s) as limit:
            await stall_ended.wait()
        if limit.cancelled_caught:
            self._session.stall_timed_out()
            self._follow_up()

    async def _dial_target(self) -> None:
        context = self._context
        assert context.dial_target is not None
        try:
            with trio.fail_after(context.settings.connect_s):
                connection = await context.dial_target(context.upstream.broker)
        except (OSError, LookupError, trio.TooSlowError) as error:
            self._report_target_reachable(False, str(error) or "no answer in time")
            self._session.target_unreachable()
            self._follow_up()
            return
        self._report_target_reachable(True)
        target = self.target = self._make_connection(connection.transport, Peer.TARGET)
        self._session.target_connected(connection.broker_name, connection.address)
        self._follow_up()
        # The session was told first: bytes of the target need a conversation that they belong to.
        target.start_reading()

    def _report_target_reachable(self, reachable: bool, reason: str = "") -> None:
        """Log a change of reachability once for all clients of a broker."""
        context = self._context
        if reachable == context.target_reachable:
            return
        context.target_reachable = reachable
        broker = context.upstream.broker
        if reachable:
            log.info("target is reachable again", extra={"broker": broker})
        else:
            log.warning(
                "target cannot be reached: sessions with requests for it are closed",
                extra={"broker": broker, "reason": reason},
            )


_FROM_CLIENT: Final[CodeType] = SessionDriver._on_client_data.__code__
_FROM_UPSTREAM: Final[frozenset[CodeType]] = frozenset(
    (SessionDriver._on_primary_data.__code__, SessionDriver._on_target_data.__code__)
)
_SESSION: Final[frozenset[CodeType]] = frozenset(
    function.__code__
    for function in (
        SessionDriver._follow_up,
        SessionDriver._continue_turn,
        SessionDriver._on_decision,
        SessionDriver._on_end,
        SessionDriver.abort,
    )
)


def describe_session_frame(frame: FrameType) -> dict[str, Any] | None:
    """Return what a function on the stack knows about a request: code, name, bytes, client; None for nothing.

    `LoopWatchdog` reads the stack only when the loop is blocked, so nothing is added to the path of a request. Each
    function contributes what its variables say: an exchange that is observed or mirrored, a frame that is forwarded, an
    answer that is matched, and the session itself, which knows the client. So the variables `exchange`, `head`, `frame`
    and `request` must have these names in every function of the proxy and of its observers.
    """
    code, names = frame.f_code, frame.f_code.co_varnames
    if code is _FROM_CLIENT:
        values = frame.f_locals
        return {**_describe_received(values["data"]), "remote": values["self"].client.remote}
    if code in _FROM_UPSTREAM:
        values = frame.f_locals
        return {"answer_bytes": len(values["data"]), "remote": values["self"].client.remote}
    if code in _SESSION:
        return {"remote": frame.f_locals["self"].client.remote}
    if "exchange" in names:
        exchange = frame.f_locals.get("exchange")
        if isinstance(exchange, Exchange):
            return {**_describe(exchange.code, len(exchange.request)), "remote": exchange.client}
    elif "head" in names and "frame" in names:
        return _describe_forwarded(frame.f_locals)
    return None


def _describe_forwarded(values: dict[str, Any]) -> dict[str, Any] | None:
    """Describe a frame that is being forwarded, or the request that it answers."""
    head, frame, request = values.get("head"), values.get("frame"), values.get("request")
    if isinstance(request, PendingRequest):
        return _describe(request.code, len(request.frame))
    if isinstance(head, FrameHead) and isinstance(frame, bytes) and not head.flag & FLAG_RESPONSE:
        return _describe(head.code, len(frame))
    return None


def _describe_received(data: bytes) -> dict[str, Any]:
    """Describe the first request of what a client sent, and the size of it all."""
    code = peek_code(data, 0, len(data)) if len(data) > HEADER_AT else UNKNOWN
    facts = {} if code == UNKNOWN else _describe(code, None)
    return {**facts, "received_bytes": len(data)}


def _describe(code: int, size_bytes: int | None) -> dict[str, Any]:
    request = REQUESTS.get(code)
    facts: dict[str, Any] = {"code": code, "request": request.NAME if request is not None else ""}
    return facts if size_bytes is None else {**facts, "request_bytes": size_bytes}
