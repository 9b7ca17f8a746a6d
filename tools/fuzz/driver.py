"""Sends walks over many connections at once and matches the answers; one thread, one selector.

Theory of operation
-------------------
Walks on shared connections are pipelined: a connection takes the next walk while fewer than MAX_OUTSTANDING of its
requests are unanswered. Walks with connections of their own get them at once. Every frame that is due an answer is
remembered with the time it was handed to the kernel; `check_patience` reports those that are overdue while their
connection is still open. It first takes what has arrived, and judges nothing when the fuzzer was itself held up: an
answer, or the end of a connection, may have waited unread, and on a machine that stood still so did the server. A
connection that the server closes is replaced, and takes its unanswered requests with it: closing is a valid answer to
nonsense. `drain` waits for what is outstanding and closes everything.
"""

import re
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import orjson

from compat_tests.server import split_address
from tools.fuzz.findings import FindingList, FuzzFinding, show_frame
from tools.fuzz.frame_encoding import encode_request
from tools.fuzz.grpc_walks import DATA, END_STREAM, HEADERS, RESET
from tools.fuzz.mutations import mutated_answer
from tools.fuzz.valid_requests import FuzzRequest
from tools.fuzz.values import Chance
from tools.fuzz.walks import Ending, Expect, Port, Walk, WalkFrame
from tools.fuzz.world import FuzzWorld

SHARED_CONNECTIONS: Final = 4
MAX_OUTSTANDING: Final = 16
MAX_UNSENT_BYTES: Final = 256 * 1024
MAX_HELD: Final = 64
"""Peers that hold half a frame; the oldest goes when there are more."""
MAX_OWN: Final = 40
FRAMES_PER_CONNECTION: Final = 3000
"""Requests on a shared connection before it closes, waiting pulls and all."""
MAX_WAITING: Final = 300
READ_BYTES: Final = 256 * 1024
KEPT_FRAMES: Final = 40
HTTP2_HEAD_BYTES: Final = 9
_PYTHON_ERROR: Final = re.compile(r"[A-Z]\w*(Error|Exception|Exit|Interrupt|Group|Full)\b")
_BINARY_HEAD: Final = struct.Struct(">hBhiii")
_SENDS: Final = frozenset((10, 310, 320))


@dataclass(slots=True)
class PendingAnswer:
    """A request whose answer is due."""

    frame: WalkFrame
    walk: int
    sent_s: float


class FuzzConnection:
    """One connection of the fuzzer."""

    def __init__(self, address: tuple[str, int], name: str, walk: Walk | None) -> None:
        self.name = name
        self.walk = walk
        self.output = bytearray()
        self.input = bytearray()
        self.pending: dict[int, list[PendingAnswer]] = {}
        self.pending_count = 0
        self.waiting = 0
        self.sent = 0
        self.recent: deque[bytes] = deque(maxlen=KEPT_FRAMES)
        self.half_closed_s: float | None = None
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.connect_ex(address)

    @property
    def is_used_up(self) -> bool:
        return self.sent >= FRAMES_PER_CONNECTION or self.waiting >= MAX_WAITING

    def add_frame(self, frame: WalkFrame, walk: int, now_s: float) -> None:
        """Queue a frame, and remember its answer if one is due."""
        self.output += frame.data
        self.recent.append(frame.data)
        self.sent += 1
        if frame.expects is Expect.NOTHING:
            return
        self.pending.setdefault(frame.opaque, []).append(PendingAnswer(frame, walk, now_s))
        if frame.expects is Expect.LATER:
            self.waiting += 1
        else:
            self.pending_count += 1

    def take_pending(self, opaque: int) -> PendingAnswer | None:
        """Return the oldest request of this opaque, which is answered now."""
        waiting = self.pending.get(opaque)
        if not waiting:
            return None
        pending = waiting.pop(0)
        if not waiting:
            del self.pending[opaque]
        if pending.frame.expects is Expect.LATER:
            self.waiting -= 1
        else:
            self.pending_count -= 1
        return pending


class Driver:
    """Sends walks to one server and collects findings."""

    def __init__(
        self,
        addresses: dict[Port, str],
        world: FuzzWorld,
        findings: FindingList,
        seed: int,
        patience_s: float,
        window: int = MAX_OUTSTANDING,
    ) -> None:
        self._addresses = {port: split_address(address) for port, address in addresses.items()}
        self._world = world
        self._findings = findings
        self._chance = Chance(f"{seed}/answers")
        self._patience_s = patience_s
        self._window = window
        self._shared_count = SHARED_CONNECTIONS if window > 1 else 1
        self._selector = selectors.DefaultSelector()
        self._shared: dict[Port, list[FuzzConnection]] = {port: [] for port in self._addresses}
        self._own: set[FuzzConnection] = set()
        self._held: deque[FuzzConnection] = deque()
        self._numbers = 0
        self._last_turn_s = time.monotonic()
        self.context = ""
        """Precedes the signatures of findings: the corpus case that is being sent."""
        self.frames_sent = 0
        self.answers: dict[int, int] = {}
        """Number of answers by response code."""
        self.closed_by_server = 0
        self.slowest: dict[int, tuple[float, WalkFrame]] = {}
        """By request code, the longest time to an answer in ms and its request; telling with a window of 1 only."""

    # -- taking walks --------------------------------------------------------------------------------------------

    def send_walk(self, walk: Walk) -> None:
        """Send a walk, first waiting until there is room for it. Raises ServerGone."""
        if walk.connections:
            self._send_on_own(walk)
            return
        connection = self._shared_connection(walk.port)
        while connection is None:
            self.turn(0.05)
            connection = self._shared_connection(walk.port)
        now_s = time.monotonic()
        for frame in walk.frames:
            connection.add_frame(frame, walk.number, now_s)
        self.frames_sent += len(walk.frames)
        if len(connection.output) > 16_384 or connection.sent % 16 == 0 or self._window == 1:
            self.turn(0)

    def _shared_connection(self, port: Port) -> FuzzConnection | None:
        """Return the shared connection with the most room; None if all are full."""
        connections = self._shared[port]
        for connection in [
            candidate for candidate in connections if candidate.is_used_up and not candidate.pending_count
        ]:
            self._close(connection, reset=self._chance.happens(0.5))
        while len(connections) < self._shared_count:
            connections.append(self._open(port, f"{port.value}-{self._numbers}", None))
        free = [
            candidate
            for candidate in connections
            if candidate.pending_count < self._window
            and len(candidate.output) < MAX_UNSENT_BYTES
            and not candidate.is_used_up
        ]
        return min(free, key=lambda candidate: candidate.pending_count) if free else None

    def _send_on_own(self, walk: Walk) -> None:
        while len(self._own) > MAX_OWN:
            self.turn(0.05)
        for number in range(walk.connections):
            connection = self._open(walk.port, f"walk-{walk.number}-{number}", walk)
            self._own.add(connection)
            now_s = time.monotonic()
            for frame in walk.frames:
                connection.add_frame(frame, walk.number, now_s)
            self.frames_sent += len(walk.frames)
        self.turn(0)

    def _open(self, port: Port, name: str, walk: Walk | None) -> FuzzConnection:
        self._numbers += 1
        connection = FuzzConnection(self._addresses[port], name, walk)
        self._selector.register(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)
        return connection

    # -- input and output ----------------------------------------------------------------------------------------

    def turn(self, wait_s: float) -> None:
        """Send and receive what is possible, waiting for at most this time."""
        self._last_turn_s = time.monotonic()
        for connections in self._shared.values():
            for shared in [connection for connection in connections if connection.output]:
                self._flush(shared)
        for key, events in self._selector.select(wait_s):
            connection: FuzzConnection = key.data
            if events & selectors.EVENT_WRITE:
                self._flush(connection)
            if events & selectors.EVENT_READ and connection.socket.fileno() >= 0:
                self._receive(connection)

    def _flush(self, connection: FuzzConnection) -> None:
        try:
            if connection.output:
                sent = connection.socket.send(connection.output)
                del connection.output[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._closed_by_server(connection)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.output else 0)
        if self._selector.get_key(connection.socket).events != events:
            self._selector.modify(connection.socket, events, connection)
        if not connection.output and connection.walk is not None:
            self._end_own(connection, connection.walk)

    def _end_own(self, connection: FuzzConnection, walk: Walk) -> None:
        """End a connection of a walk's own whose frames have been sent, as the walk says."""
        if walk.ending in (Ending.CLOSE, Ending.RESET):
            self._close(connection, reset=walk.ending is Ending.RESET)
        elif walk.ending is Ending.FINISH and not connection.pending_count:
            self._close(connection)
        elif walk.ending is Ending.HALF_CLOSE and connection.half_closed_s is None:
            connection.half_closed_s = time.monotonic()
            with suppress(OSError):
                connection.socket.shutdown(socket.SHUT_WR)
        elif walk.ending is Ending.HOLD and connection not in self._held:
            self._own.discard(connection)
            self._held.append(connection)
            if len(self._held) > MAX_HELD:
                self._close(self._held[0])

    def _receive(self, connection: FuzzConnection) -> None:
        try:
            data = connection.socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._closed_by_server(connection)
            return
        connection.input += data
        self._split_answers(connection)
        walk = connection.walk
        if walk is not None and walk.ending is Ending.FINISH and not connection.output:
            self._end_own(connection, walk)

    def _split_answers(self, connection: FuzzConnection) -> None:
        if connection.walk is not None and connection.walk.port is Port.GRPC:
            self._split_http2(connection)
            return
        buffer, at = connection.input, 0
        while len(buffer) - at >= 8:
            end = at + 4 + int.from_bytes(buffer[at : at + 4])
            if end > len(buffer):
                break
            self._handle_command(connection, bytes(buffer[at + 4 : end]))
            at = end
        del buffer[:at]

    def _split_http2(self, connection: FuzzConnection) -> None:
        """Take note of the streams that have ended. The stream's number is the opaque of its request."""
        buffer, at = connection.input, 0
        while len(buffer) - at >= HTTP2_HEAD_BYTES:
            end = at + HTTP2_HEAD_BYTES + int.from_bytes(buffer[at : at + 3])
            if end > len(buffer):
                break
            kind, flags = buffer[at + 3], buffer[at + 4]
            if kind == RESET or (kind in (DATA, HEADERS) and flags & END_STREAM):
                connection.take_pending(int.from_bytes(buffer[at + 5 : at + HTTP2_HEAD_BYTES]))
                self.answers[kind] = self.answers.get(kind, 0) + 1
            at = end
        del buffer[:at]

    def _handle_command(self, connection: FuzzConnection, frame: bytes) -> None:
        word = int.from_bytes(frame[:4])
        header, body = frame[4 : 4 + (word & 0xFFFFFF)], frame[4 + (word & 0xFFFFFF) :]
        if word >> 24:
            code, _, _, opaque, flag, _ = _BINARY_HEAD.unpack_from(header)
            fields: dict[str, Any] = {}
        else:
            fields = orjson.loads(header)
            code, opaque, flag = fields["code"], fields["opaque"], fields["flag"]
        if not flag & 1:
            self._answer_server(connection, opaque, flag)
            return
        self.answers[code] = self.answers.get(code, 0) + 1
        pending = connection.take_pending(opaque)
        if pending is None:
            return
        took_ms = (time.monotonic() - pending.sent_s) * 1e3
        slowest = self.slowest.get(pending.frame.code)
        if pending.frame.expects is Expect.ANSWER and (slowest is None or took_ms > slowest[0]):
            self.slowest[pending.frame.code] = took_ms, pending.frame
        remark = fields.get("remark")
        if code == 1 and remark and _PYTHON_ERROR.match(remark):
            text = f"code {pending.frame.code}: {re.sub(r'[0-9]+', 'N', remark)[:100]}"
            detail = f"{remark[:300]}\n{show_frame(pending.frame.data)}"
            self._add("unexpected exception", text, detail, pending.walk)
        if code == 0:
            self._learn(pending.frame, fields.get("extFields") or {}, body)

    def _learn(self, frame: WalkFrame, ext: dict[str, str], body: bytes) -> None:
        if frame.code in _SENDS:
            self._world.learn_send(frame.topic, ext, half=frame.half)
        elif frame.code == 200050 and body:
            self._world.learn_pop(frame.topic, frame.group, ext, body)

    def _answer_server(self, connection: FuzzConnection, opaque: int, flag: int) -> None:
        """Answer a request of the server with a mutated answer, or not at all."""
        if flag & 2 or self._chance.happens(0.2):
            return
        code, ext, body = mutated_answer(self._chance)
        answer = FuzzRequest(code, dict(ext), body, flag=1, opaque=opaque)
        connection.output += encode_request(answer)
        self._selector.modify(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)

    # -- closing -------------------------------------------------------------------------------------------------

    def _closed_by_server(self, connection: FuzzConnection) -> None:
        self.closed_by_server += 1
        self._close(connection)

    def wait_for_own(self) -> None:
        """Wait until every connection of a walk's own has ended."""
        while self._own:
            self.turn(0.02)
            self.check_patience()

    def _close(self, connection: FuzzConnection, *, reset: bool = False) -> None:
        if connection.socket.fileno() < 0:
            return
        self._selector.unregister(connection.socket)
        if reset:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.socket.close()
        self._own.discard(connection)
        with suppress(ValueError):
            self._held.remove(connection)
        for connections in self._shared.values():
            if connection in connections:
                connections.remove(connection)

    def connections(self) -> list[FuzzConnection]:
        """Return every open connection."""
        shared = [connection for connections in self._shared.values() for connection in connections]
        return [*shared, *self._own, *self._held]

    def last_frames(self) -> dict[str, list[str]]:
        """Return the last frames of every open connection, as text."""
        return {
            connection.name: [show_frame(frame) for frame in connection.recent]
            for connection in self.connections()
            if connection.recent
        }

    # -- the oracle of answers -----------------------------------------------------------------------------------

    def check_patience(self) -> None:
        """Report requests that are overdue and half-closed connections that the server keeps open."""
        was_held_up = time.monotonic() - self._last_turn_s > self._patience_s / 2
        self.turn(0)
        if was_held_up:
            return  # The next call judges.
        oldest_s = time.monotonic() - self._patience_s
        for connection in self.connections():
            if connection.half_closed_s is not None and connection.half_closed_s < oldest_s:
                walk = connection.walk
                assert walk is not None
                text = f"{walk.kind}, code {walk.frames[-1].code}"
                self._add("connection not closed", text, _shown_frames(connection), walk.number)
                self._close(connection)
            elif connection.pending_count:
                self._report_overdue(connection, oldest_s)

    def _report_overdue(self, connection: FuzzConnection, oldest_s: float) -> None:
        for opaque, requests in list(connection.pending.items()):
            for pending in requests:
                if pending.frame.expects is Expect.ANSWER and pending.sent_s < oldest_s:
                    text = f"code {pending.frame.code}"
                    detail = show_frame(pending.frame.data)
                    self._add("no answer", text, detail, pending.walk)
                    connection.take_pending(opaque)
                    return

    def _add(self, kind: str, signature: str, detail: str, walk: int) -> None:
        self._findings.add(FuzzFinding(kind, self.context + signature, detail, [walk]))

    def drain(self, check: Callable[[], None]) -> None:
        """Wait until nothing is outstanding or overdue, then close every connection. ``check`` runs in between."""
        while any(
            connection.output or connection.pending_count or connection.half_closed_s
            for connection in self.connections()
            if connection not in self._held
        ):
            self.turn(0.05)
            self.check_patience()
            check()
        self.close()

    def close(self) -> None:
        """Close every connection."""
        for connection in self.connections():
            self._close(connection)


def _shown_frames(connection: FuzzConnection) -> str:
    return "\n".join(show_frame(data) for data in list(connection.recent)[-4:])
