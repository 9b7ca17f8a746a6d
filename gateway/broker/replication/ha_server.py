"""The master's side of replication: sends the commit log to slaves, and notes what they acknowledge.

Theory of operation
-------------------
A slave connects to the HA port and reports the physical offset where its log ends (`ha_wire.py`). The master checks
that its own log can be continued there (`LogStarts.refusal`) and from then on sends all bytes of the log, in pieces.
The slave reports after each piece how far it has come; `Replica` decides what counts, and the `InSyncRule` takes it to
the answers that wait for it. Under a controller slaves speak AutoSwitchHA instead, which begins with a handshake
(`auto_switch_master.py`). A `SlaveStream` reads and writes the protocol of one connection.

1. `wake` runs after requests have been handled. Where the socket takes a slave's next piece at once, that is all: one
   system call for all messages of a poll, without a task switch. Within a poll of the reactor it waits for the other
   sockets of the poll, so that the requests of many senders share a piece.
2. A slave that is further behind, or slow, is `busy`: its task sends piece after piece and lets the others have their
   turn after each. `wake` passes over it.
3. While a slave has two pieces to acknowledge, a few new messages wait for the first acknowledgement. Where no answer
   waits for slaves, they also wait until `PIECE_INTERVAL_S` after the last piece (`_send_held`): a piece costs both
   sides nearly the same, however many messages it has.
4. Without traffic the task sends a heartbeat, and closes a connection that has been silent for too long.

Invariant: whatever is sent is copied from the log first. A file that retention deletes while a slave reads it stays
mapped until that slave is through (`LogCursor`), and no connection outlives `run`, which ends before the store closes.

A peer is never answered in words: the protocol has none. What was wrong is logged, and the connection closed.
"""

import logging
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable
from math import inf
from typing import Final, Protocol

import trio

from codec.hosts import format_host
from gateway.broker.replication.ha_access import HaAccess, only_reads
from gateway.broker.replication.ha_wire import (
    MAX_FRAME_BYTES,
    HaWireError,
    ReportReader,
    encode_frame_head,
)
from gateway.broker.replication.in_sync import InSyncRule, SlaveProgress
from gateway.broker.replication.log_cursor import LogCursor, LogDamaged, LogExpired, LogStarts
from gateway.broker.replication.replica import AcknowledgementRefused, Replica
from gateway.broker.replication.sync_state import SyncStateRule
from gateway.config.replication import ReplicationSettings
from remoting.foreign_protocols import log_foreign, recognise
from remoting.reactor import Reactor
from remoting.server import accept_connections
from remoting.transport import SocketTransport, Transport
from storage.commit_log import CommitLog
from storage.store import MessageStore

log = logging.getLogger(__name__)

OPEN_ACCESS: Final = HaAccess()
MAX_CONNECTIONS: Final = 64
"""Maximum number of connections. A new one replaces the oldest that has not reported yet."""
MAX_HANDSHAKES: Final = 64
"""Maximum number of connections before they are connections of slaves: TLS may wait for a peer that sends nothing."""
MAX_HANDSHAKES_PER_HOST: Final = 8
MAX_READ_BYTES: Final = 4096
MAX_CHECK_INTERVAL_S: Final = 0.1
"""Longest time until bytes are sent that were appended without a `wake`."""
MAX_REMEMBERED_HOSTS: Final = 64
SECOND_S: Final = 1.0
MIN_PIECE_BYTES: Final = 32 * 1024
"""Bytes that are sent without waiting for acknowledgements."""
PIECE_INTERVAL_S: Final = 0.002
"""Shortest time between two pieces of a few messages while no answer waits for slaves."""
MAX_SETTLE_S: Final = 1.0
SETTLE_POLL_S: Final = 0.01


class SlaveStream(Protocol):
    """The protocol of one connection with a slave: DefaultHA or AutoSwitchHA.

    ``member`` is the name by which the rule of the master knows the slave, None if it does not say who it is.
    ``is_counted`` is False for a slave whose acknowledgements never count, ``is_verified`` True if the first report is
    an acknowledgement: a handshake has shown that its log is this one up to there.
    """

    member: str | None
    broker_id: int | None
    is_counted: bool
    is_verified: bool

    def feed(self, data: bytes) -> int | None:
        """Take bytes of the slave; return its newest report, None without one. Raises HaWireError."""

    def take_answer(self) -> bytes:
        """Return what is to be sent before anything else, once."""

    def choose_start(self, report: int) -> int:
        """Return the offset from which the slave is to be sent the log, after its first report."""

    def limit_piece(self, offset: int) -> int:
        """Return the largest number of bytes that a frame may have which begins at an offset."""

    def encode_head(self, offset: int, size: int) -> bytes:
        """Return the head of a frame, and what is to be sent before it. Without bytes it is a heartbeat."""

    @property
    def has_news(self) -> bool:
        """True if a heartbeat would say something that the slave does not know yet."""


class DefaultSlaveStream:
    """DefaultHA (`ha_wire.py`) on one connection: reports and frames, from the first byte on."""

    member: str | None = None
    is_counted: bool = True
    is_verified: bool = False
    has_news: bool = False

    def __init__(self, log: CommitLog, broker_id: int | None) -> None:
        self.broker_id = broker_id
        self._log = log
        self._reports = ReportReader()

    def feed(self, data: bytes) -> int | None:
        """Return the newest report."""
        return self._reports.feed(data)

    def take_answer(self) -> bytes:
        """Return nothing: a master is silent until the first report."""
        return b""

    def choose_start(self, report: int) -> int:
        """Return the offset that the slave asks for; the oldest one if it has none."""
        return report or self._log.first_base

    def limit_piece(self, offset: int) -> int:
        """Return the largest frame that an official slave takes."""
        return MAX_FRAME_BYTES

    def encode_head(self, offset: int, size: int) -> bytes:
        """Return the head of a frame."""
        return encode_frame_head(offset, size)


class HaServer:
    """Serves the slaves of one master.

    ``rule`` counts them and their acknowledgements; None for a master that waits for no slave. ``has_waiting_answers``
    tells whether answers wait for slaves. ``refusal`` is why this broker has no slaves, such as being one itself; None
    for a master. ``open_stream`` returns the stream of a new slave, given the broker id of its ticket, None without
    one.
    """

    def __init__(
        self,
        broker_name: str,
        store: MessageStore,
        settings: ReplicationSettings,
        rule: InSyncRule | SyncStateRule | None = None,
        *,
        has_waiting_answers: Callable[[], bool] = lambda: False,
        reactor: Reactor | None = None,
        access: HaAccess = OPEN_ACCESS,
        refusal: str | None = None,
        open_stream: Callable[[int | None], SlaveStream] | None = None,
    ) -> None:
        self.open_stream = open_stream or self.open_default_stream
        self.broker_name = broker_name
        self.settings = settings
        self.refusal = refusal
        self.log = store.commit_log
        self.starts = LogStarts(store.commit_log)
        self.rule = rule
        self._has_waiting_answers = has_waiting_answers
        self._sent_to_host: OrderedDict[str, int] = OrderedDict()
        self._reactor = reactor
        self.access = access
        self._sessions: dict[_Session, None] = {}
        self._handshakes: Counter[str] = Counter()  # by host
        self._shared_ids: dict[int, str] = {}  # the words for the operator, by broker id
        self._serving: list[_Session] = []
        self._is_wake_deferred = False
        self._has_held = trio.Event()
        self._has_replicas = trio.Event()

    def open_default_stream(self, broker_id: int | None) -> SlaveStream:
        """Return the DefaultHA stream of a new slave."""
        return DefaultSlaveStream(self.log, broker_id)

    @property
    def trouble(self) -> str:
        """The reason for which an operator must look after the slaves; "" while there is none."""
        return next(iter(self._shared_ids.values()), "")

    @property
    def replicas(self) -> list[Replica]:
        """The slaves that are being served, in the order in which they came."""
        return [session.replica for session in self._serving]

    # -- sending --

    def wake(self) -> None:
        """Send what was appended. Call it after each batch of requests: it costs nothing while there is no slave."""
        if not self._serving or self._is_wake_deferred:
            return
        if self._reactor is not None and self._reactor.defer(self._wake_now):
            self._is_wake_deferred = True
        else:
            self._wake_now()

    def _wake_now(self) -> None:
        self._is_wake_deferred = False
        for session in self._serving[:]:
            self._send_next(session)

    @staticmethod
    def _send_next(session: "_Session", *, at_once: bool = False) -> None:
        """Send to one slave; a defect, or a file that cannot be opened, ends its connection and nothing else."""
        try:
            session.send_next(at_once=at_once)
        except Exception:
            log.exception("log cannot be sent to a slave", extra={"remote": session.replica.remote})
            session.close("the log cannot be sent")

    async def settle(self) -> None:
        """Send everything, and wait until the slaves have acknowledged it, for at most `MAX_SETTLE_S`.

        Nothing depends on it: a slave gets the rest when the master is back. But if it never is, less is lost.
        """
        self._wake_now()
        with trio.move_on_after(MAX_SETTLE_S):
            while any(replica.bytes_behind(self.log.max_offset) for replica in self.replicas):  # noqa: ASYNC110
                await trio.sleep(SETTLE_POLL_S)

    def hold(self) -> None:
        """Send a few messages `PIECE_INTERVAL_S` from now, with those that come until then."""
        self._has_held.set()

    async def _send_held(self) -> None:
        while True:
            await self._has_held.wait()
            await trio.sleep(PIECE_INTERVAL_S)
            self._has_held = trio.Event()
            self._wake_now()

    async def _send_unannounced(self) -> None:
        """Send, soon, what was appended outside of requests."""
        while True:
            await self._has_replicas.wait()
            await trio.sleep(MAX_CHECK_INTERVAL_S)
            for session in self._serving[:]:
                self._send_next(session, at_once=True)
                session.send_news()
                session.note_progress()

    # -- connections --

    async def run(self, listeners: list[socket.socket]) -> None:
        """Accept slaves on these sockets until cancelled; then close the connections, not the sockets."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_unannounced)
            nursery.start_soon(self._send_held)
            for listener in listeners:
                # A copy, because `accept_connections` closes what it was given, and `run` may be called again.
                nursery.start_soon(accept_connections, listener.dup(), self._accept, nursery)

    def _accept(self, sock: socket.socket, nursery: trio.Nursery) -> None:
        try:
            transport = SocketTransport(sock, self._reactor)
        except OSError:  # the peer has already disconnected
            sock.close()
        else:
            nursery.start_soon(self._serve_socket, transport)

    async def _serve_socket(self, transport: SocketTransport) -> None:
        host, handshakes = transport.remote[0], self._handshakes
        if handshakes[host] >= MAX_HANDSHAKES_PER_HOST or handshakes.total() >= MAX_HANDSHAKES:
            transport.close()
            self.log_end("connection not accepted", transport, "too many have not finished TLS yet")
            return
        handshakes[host] += 1
        try:
            accepted = await self.access.accept(transport)
        except OSError as problem:
            transport.close()
            self.log_end("connection not accepted", transport, str(problem))
            return
        finally:
            handshakes[host] -= 1
            if not handshakes[host]:
                del handshakes[host]
        await self.serve(accepted)

    async def serve(self, transport: Transport) -> None:
        """Serve one connection until it ends. Never raises for anything a peer did."""
        session = _Session(self, transport)
        if not self._make_room():
            session.refuse(f"{MAX_CONNECTIONS} connections are open already")
            return
        self._sessions[session] = None
        try:
            await session.run()
        except Exception:
            log.exception("replication connection ended by a defect", extra={"remote": transport.remote})
        finally:
            session.close("the master stops")

    def _make_room(self) -> bool:
        """Return True if there is room for one more connection, after closing the oldest silent one if necessary."""
        if len(self._sessions) < MAX_CONNECTIONS:
            return True
        silent = next((session for session in self._sessions if session.replica.start is None), None)
        if silent is None:
            return False
        silent.refuse("it has not reported, and another connection needs its place")
        return True

    def begin(self, session: "_Session", start: int) -> None:
        """Serve a slave that has reported where its log ends."""
        now_s, host = trio.current_time(), session.replica.remote[0]
        for other in self._serving:
            other.replica.make_room_for(session.replica, now_s)
            other.count()
        was_sent_before = session.is_verified or start <= self._sent_to_host.get(host, 0)
        wait_s = (
            0.0
            if was_sent_before or not self._has_waiting_answers()
            else self.settings.slave_timeout_ms / 1000
        )
        session.replica.begin(start, now_s, wait_s)
        self._serving.append(session)
        self._has_replicas.set()
        session.count()

    def note_shared_id(self, replica: Replica) -> None:
        """Tell the operator that another slave has the broker id of this one, which lives on.

        Both copy the log, and that harms neither. But only the newer one counts, and a namesrv lists only one.
        """
        broker_id = replica.broker_id
        if broker_id is None or broker_id in self._shared_ids:
            return
        newest = next(other for other in reversed(self.replicas) if other.broker_id == broker_id)
        text = (
            f"two slaves have the brokerId {broker_id}, from {format_host(replica.remote)} and "
            f"{format_host(newest.remote)}: only the second counts. Give one of them another brokerId"
        )
        self._shared_ids[broker_id] = text
        log.error("two slaves have one broker id", extra={"broker": self.broker_name, "reason": text})

    def forget(self, session: "_Session") -> None:
        """Serve a session no more, whose connection is closed."""
        self._sessions.pop(session, None)
        session.discount()
        if session in self._serving:
            self._serving.remove(session)
            self._remember_sent(session.replica)
            self._let_others_count(session.replica.broker_id)
            if not self._serving:
                self._has_replicas = trio.Event()

    def _let_others_count(self, broker_id: int | None) -> None:
        """Let the newest of the other connections of a broker id count, after one of them has ended."""
        others = [replica for replica in self.replicas if replica.broker_id == broker_id]
        if broker_id is None:
            return
        if len(others) < 2:
            self._shared_ids.pop(broker_id, None)
        if others and others[-1].is_superseded:
            others[-1].outlive(trio.current_time())

    def _remember_sent(self, replica: Replica) -> None:
        host = replica.remote[0]
        self._sent_to_host[host] = max(replica.sent, self._sent_to_host.pop(host, 0))
        if len(self._sent_to_host) > MAX_REMEMBERED_HOSTS:
            self._sent_to_host.popitem(last=False)

    def log_end(self, event: str, transport: Transport, reason: str, *, level: int = logging.WARNING) -> None:
        """Log the end of a connection."""
        extra = {"broker": self.broker_name, "remote": transport.remote, "reason": reason}
        log.log(level, event, extra=extra)


class _Session:
    """One connection of a slave."""

    def __init__(self, server: HaServer, transport: Transport) -> None:
        now_s = trio.current_time()
        self.replica = Replica(transport.remote, now_s)
        self._server = server
        self._transport = transport
        self._opening: bytes | None = b""
        self._stream = server.open_default_stream(None)
        self._cursor: LogCursor | None = None
        self._unsent = memoryview(b"")
        self._first_unacknowledged = 0  # the end of the piece before the last one
        self._progress: SlaveProgress | None = None
        self._only_reads = (
            False  # such as for a repair: it never counts as a slave, and a slave serves it too
        )
        self._is_busy = False
        self._closed = False
        self._attention = trio.Event()

    @property
    def is_verified(self) -> bool:
        """True if the slave has shown that its log is this one up to its first report."""
        return self._stream.is_verified

    async def run(self) -> None:
        """Serve the slave until the connection ends."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_silence)
            if not self._transport.watch(self._handle_readable):
                nursery.start_soon(self._receive)
            await self._send()
            nursery.cancel_scope.cancel()

    def refuse(self, reason: str) -> None:
        """Close the connection of a peer that must not be served, and say why."""
        if not self._closed:
            self._server.log_end("slave refused", self._transport, reason)
            self.close(reason)

    def close(self, reason: str) -> None:
        """Close the connection. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._transport.unwatch()
        self._transport.close()
        self._attention.set()
        if self.replica.start is not None:
            self._server.log_end("slave disconnected", self._transport, reason, level=logging.INFO)
        self._server.forget(self)

    def note_progress(self) -> None:
        """Log when the slave falls out of sync, and when it is back."""
        server, replica = self._server, self.replica
        behind_bytes = replica.bytes_behind(server.log.max_offset)
        in_sync = behind_bytes < server.settings.max_gap_not_in_sync_bytes
        if in_sync is not replica.in_sync:
            replica.in_sync = in_sync
            extra = {
                "broker": server.broker_name,
                "remote": replica.remote,
                "bytes_behind": behind_bytes,
            }
            if in_sync:
                log.info("slave is in sync", extra=extra)
            else:
                log.warning("slave is not in sync", extra=extra)

    # -- receiving --

    def _handle_readable(self) -> None:
        try:
            data = self._transport.receive_now(MAX_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as problem:
            self.close(str(problem))
            return
        self._handle_bytes(data)

    async def _receive(self) -> None:
        try:
            while not self._closed:
                self._handle_bytes(await self._transport.receive(MAX_READ_BYTES))
        except OSError as problem:
            self.close(str(problem))

    def _handle_bytes(self, data: bytes) -> None:
        if not data:
            self.close("closed by the slave")
            return
        foreign = recognise(data) if self._cursor is None else None
        if foreign is not None:
            log_foreign(self._transport.remote, self._transport.local, *foreign)
            self.close("another protocol")
            return
        try:
            rest = data if self._opening is None else self._read_opening(self._opening + data)
            if rest is None or self._closed:
                return
            offset = self._stream.feed(rest)
            answer = self._stream.take_answer()
            if answer:
                self._send_answer(answer)
            if offset is None:
                return
            if self._cursor is None:
                self._begin(offset)
            else:
                self._note_report(offset)
        except (HaWireError, AcknowledgementRefused) as problem:
            self.refuse(str(problem))
        except Exception:  # called by the reactor, which must not be ended by a defect of one connection
            log.exception("report of a slave could not be handled", extra={"remote": self._transport.remote})
            self.close("defect")

    def _read_opening(self, opening: bytes) -> bytes | None:
        """Read who the peer is; return the bytes after that, None while more are needed. Raises HaWireError."""
        server, self._opening = self._server, opening
        broker_id = server.access.find_broker_id(opening)
        rest = server.access.read_opening(opening, self._transport.remote[0])
        if rest is None:
            return None
        self._opening = None
        if only_reads(opening):
            self._only_reads = True
        elif server.refusal is not None:
            self.refuse(server.refusal)
        else:
            self._stream = server.open_stream(broker_id)
        return rest

    def _begin(self, offset: int) -> None:
        """Serve the slave from the offset that it asks for."""
        server = self._server
        start = self._stream.choose_start(offset)
        refusal = server.starts.refusal(start)
        if refusal is not None:
            self.refuse(refusal)
            return
        self.replica.broker_id = self._stream.broker_id
        self._cursor = LogCursor(server.log, server.starts, start)
        extra = {
            "broker": server.broker_name,
            "remote": self._transport.remote,
            "start": start,
            "bytes_behind": server.log.max_offset - start,
        }
        if self._only_reads:
            log.info("log is read for a repair", extra=extra)
            self.replica.begin(start, trio.current_time(), inf)
        else:
            log.info("slave connected", extra=extra)
            server.begin(self, start)
        self._attention.set()  # its deadlines are others from now on
        self.send_next()

    def _note_report(self, offset: int) -> None:
        replica, now_s = self.replica, trio.current_time()
        before = replica.acknowledged
        replica.acknowledge(offset, now_s)
        if replica.lives_on(now_s):
            self._server.note_shared_id(replica)
        is_changed = replica.acknowledged > before or replica.counted is not (self._progress is not None)
        if is_changed or self._stream.is_verified:
            self.count()
        if self._cursor is not None and not self._cursor.is_at_end:
            self._server.wake()

    def count(self) -> None:
        """Tell the rule of the master how far this slave is, if it counts."""
        rule, replica, stream = self._server.rule, self.replica, self._stream
        if rule is None or not stream.is_counted:
            return
        if not replica.counted:
            self.discount()
            return
        if self._progress is None:
            host, port = replica.remote[:2]
            is_known = replica.broker_id is not None
            slave = stream.member or (f"id {replica.broker_id}" if is_known else f"{host}:{port}")
            self._progress = rule.join(slave, replica.acknowledged, is_known=is_known)
        if stream.is_verified or (replica.start is not None and replica.acknowledged > replica.start):
            rule.acknowledge(self._progress, replica.acknowledged)

    def discount(self) -> None:
        """Let the rule of the master count this slave no more."""
        progress, self._progress = self._progress, None
        if progress is not None and self._server.rule is not None:
            self._server.rule.leave(progress)

    # -- sending --

    def send_next(self, *, at_once: bool = False) -> None:
        """Send the next piece if the socket takes it at once; otherwise let the task do it.

        A few new messages may wait for more, unless they shall be sent ``at_once``.
        """
        cursor = self._cursor
        if cursor is None or self._is_busy or self._closed or cursor.is_at_end:
            return
        few = self._server.log.max_offset - cursor.offset < MIN_PIECE_BYTES
        if few and not at_once and self._awaits_more():
            return
        self._first_unacknowledged = cursor.offset
        if self._pause_s() == 0:
            frame = self._next_frame(cursor)
            if frame is None:
                return
            self._send_now(frame)
            if not self._unsent and cursor.is_at_end:
                return
        self._is_busy = True
        self._attention.set()

    def _awaits_more(self) -> bool:
        """Tell whether a few new messages wait; an acknowledgement or `HaServer.hold` sends them then."""
        if self.replica.acknowledged < self._first_unacknowledged:
            return True
        if (
            self._server.rule is not None
            or trio.current_time() - self.replica.last_sent_s >= PIECE_INTERVAL_S
        ):
            return False
        self._server.hold()
        return True

    def _send_now(self, frame: bytes) -> None:
        try:
            sent = self._transport.send_now(frame)
        except BlockingIOError:
            sent = 0
        except OSError as problem:
            self.close(str(problem))
            return
        self._note_sent(memoryview(frame)[sent:])

    def _note_sent(self, unsent: memoryview) -> None:
        self._unsent = unsent
        if self._cursor is not None:
            # A little less than it was sent, if the head of the frame is unsent as well.
            self.replica.sent = max(self.replica.sent, self._cursor.offset - len(unsent))

    def _send_answer(self, answer: bytes) -> None:
        """Send what answers a handshake, before the slave has reported where its log ends."""
        self._send_now(answer)
        if self._unsent:
            self._is_busy = True
            self._attention.set()

    def send_news(self) -> None:
        """Send a heartbeat if it says something new, to a slave that has everything else."""
        cursor = self._cursor
        if cursor is None or self._is_busy or self._closed or not cursor.is_at_end:
            return
        if self._stream.has_news:
            self._send_heartbeat()
            if self._is_busy:
                self._attention.set()

    def _next_frame(self, cursor: LogCursor) -> bytes | None:
        """Return the next bytes of the log as a frame; None, after closing the connection, if they are gone."""
        server, replica, offset = self._server, self.replica, cursor.offset
        try:
            piece = cursor.read(
                min(server.settings.ha_transfer_batch_bytes, self._stream.limit_piece(offset))
            )
        except LogExpired as problem:
            self.refuse(str(problem))
            return None
        except LogDamaged as problem:
            log.error(
                "log cannot be sent to a slave", extra={"broker": server.broker_name, "reason": str(problem)}
            )
            self.close(str(problem))
            return None
        now_s = replica.last_sent_s = trio.current_time()
        replica.transfer_rate.add(len(piece), now_s)
        return b"".join((self._stream.encode_head(offset, len(piece)), piece))

    def _pause_s(self) -> float:
        """Return the seconds until the slave may be sent more; 0 without flow control."""
        settings = self._server.settings
        if not settings.ha_flow_control_enable:
            return 0.0
        now_s = trio.current_time()
        if self.replica.transfer_rate.sent_in_second(now_s) < settings.max_ha_transfer_bytes_per_s:
            return 0.0
        return SECOND_S - now_s % SECOND_S

    async def _send(self) -> None:
        """Send what `send_next` leaves, and heartbeats, until the connection is closed."""
        while not self._closed:
            if self._is_busy:
                await self._catch_up()
                continue
            self._attention = trio.Event()
            with trio.move_on_at(self._heartbeat_due_s()):
                await self._attention.wait()
            if not self._is_busy and self._heartbeat_due_s() <= trio.current_time():
                self._send_heartbeat()

    async def _catch_up(self) -> None:
        """Send piece after piece until the slave has been sent everything. The others have their turn after each."""
        try:
            while not self._closed:
                if self._unsent:
                    await self._transport.send_all(self._unsent)
                    self._note_sent(memoryview(b""))
                    continue
                cursor = self._cursor
                if cursor is None or cursor.is_at_end:
                    break
                await trio.sleep(self._pause_s())
                frame = None if self._closed else self._next_frame(cursor)
                if frame is not None:
                    self._send_now(frame)
        except OSError as problem:
            self.close(str(problem))
        finally:
            self._is_busy = False

    def _heartbeat_due_s(self) -> float:
        """Return when the slave needs a sign of life; never before it has reported."""
        if self._cursor is None:
            return inf
        return self.replica.last_sent_s + self._server.settings.ha_send_heartbeat_interval_ms / 1000

    def _send_heartbeat(self) -> None:
        assert self._cursor is not None
        self.replica.last_sent_s = trio.current_time()
        self._send_now(self._stream.encode_head(self._cursor.offset, 0))
        self._is_busy = bool(self._unsent)

    async def _watch_silence(self) -> None:
        """Close the connection when its slave has been silent for too long, even while it is being sent something."""
        while not self._closed:
            silence_s = self._server.settings.ha_housekeeping_interval_ms / 1000
            if trio.current_time() >= self.replica.last_report_s + silence_s:
                self.refuse(f"it has not reported for {silence_s:g} s")
                return
            await trio.sleep_until(self.replica.last_report_s + silence_s)
