"""A connection over a byte stream: decodes frames, dispatches requests, matches answers, and bounds every buffer.

Theory of operation
-------------------
A connection works the same on the server's and on the client's side: both may send requests. Input arrives in one of
two ways: the reactor calls `FrameConnection._readable` when the socket has data (the fast path, without a task switch),
or `FrameConnection._read_loop` waits in a task. Both feed `FrameConnection._feed`, which decodes every whole frame and
calls the handler of its request code synchronously. A `FrameTaker` of the server may handle frames before that, many in
one call. All answers of one read are joined into one system call.

Turns. One read may hold thousands of small requests. After ``max_turn_s`` of them the rest stays in ``_input``, the
socket is not read, and a task (`_continue_feeding`, or the read loop itself) goes on after other tasks and peers had
their turn. Connections that have such a rest share one turn: a hundred of them would otherwise take half a second
before anybody else is served. At most MAX_RESTS_PER_PASS of them go on in one pass of the event loop, in the order in
which they came, and the others wait: a pass stays short however many there are, and a turn is long enough to be worth
its task switch. When thousands of sockets are readable at once, the first turn of each is cut so that a round of all
takes about MAX_ROUND_S. A peer with a single request is served within that round, and a peer that comes later between
two passes. A single request is never interrupted: what one costs is bounded by its handler.

Long requests. A request that takes longer than a turn is handled in slices, by a task that lets others run after each
(`FrameConnection.spawn_alone`). No further request of its peer is read until it ends: so each connection has one of
them at most, and they are carried out in the order in which they were sent.

Back-pressure. `write` never waits: what the kernel does not take is buffered and sent by a task. Above
``output_high_watermark_bytes`` no more requests of this peer are decoded until its answers have been sent; above
``max_output_bytes`` the connection is closed. When the connections of the process together have more than
``crowded_output_bytes`` of unread answers, CROWDED_WATERMARK_BYTES of its own are enough to stop a peer: two hundred
that never read would otherwise hold gigabytes. Unfinished frames are bounded by ``max_frame_bytes``, requests that are
answered later by ``max_outstanding_requests``. `remoting.server` bounds all connections together.

Invariant: bytes in ``_input`` start at a frame boundary between calls; ``_output`` is sent in order, and only one
task sends. A peer's bytes never raise out of this class: an impossible frame ends the connection, the exception of a
handler becomes its answer.

Sockets are opened in `remoting.server` and `remoting.client`. A peer that begins to speak HTTP/2 is handed over, with
its transport and the bytes that were read, to whoever set ``hand_over``.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any, ClassVar, Final

import trio

from codec.command import Command, decode_frame, encode_command, encode_response
from codec.constants import ResponseCode
from codec.errors import FrameError
from remoting.connection import ONEWAY_FLAG, Connection, Handler, encode_failure
from remoting.foreign_protocols import HTTP_2_BEGIN, log_foreign, recognise
from remoting.limits import ConnectionLimits
from remoting.reactor import Reactor
from remoting.transport import Buffer, Transport

log = logging.getLogger(__name__)

TakeFrames = Callable[["FrameConnection", bytes | bytearray, int], tuple[int, bytes | None] | None]
"""Handles frames before they are decoded: gets what was read from a connection, and where a frame begins in it.

It returns the end of the last frame that it handled, and their answers, None if they come later; or None if it handles
not even the first one. It handles whole frames only, and so few at once that the caller can look at its clock.
"""

LARGE_INPUT_BYTES = 256 * 1024
RESPONSE_FLAG = 1
HandOver = Callable[[Transport, bytes], Awaitable[None]]
"""Serves a peer of another protocol until it ends, from its transport and the bytes that were read already."""
MAX_RESTS_PER_PASS: Final = 8
"""Number of connections that handle the rest of a read in one pass of the event loop; they share ``max_turn_s``."""
MAX_ROUND_S: Final = 0.1
"""Time for the first turns of all sockets that one poll found readable. 64 do not notice it: 1.5 ms for each."""
CROWDED_WATERMARK_BYTES: Final = 64 * 1024
"""Unread answers with which a peer gets no further ones while those of all connections take much memory."""
MAX_SEND_BYTES: Final = 256 * 1024
"""Buffered answers that are joined and sent in one turn. A hundred peers may begin to read in the same pass."""
_rest_turns: Final[trio.lowlevel.RunVar[trio.Semaphore]] = trio.lowlevel.RunVar("rest turns")


def _turns_of_rests() -> trio.Semaphore:
    """Return the turns of the present event loop: a process may run several loops, in tests."""
    try:
        return _rest_turns.get()
    except LookupError:
        turns = trio.Semaphore(MAX_RESTS_PER_PASS)
        _rest_turns.set(turns)
        return turns


def turn_seconds(max_turn_s: float, sharing_turns: int, *, is_rest: bool) -> float:
    """Return the time for requests of one connection: shorter while ``sharing_turns`` others have a rest to handle."""
    if is_rest:
        # Only so many others go on in the same pass.
        return max_turn_s / (1 + min(sharing_turns, MAX_RESTS_PER_PASS))
    return min(max_turn_s / (1 + sharing_turns), MAX_ROUND_S / max(1, Reactor.readable_sockets))


class FrameTaker:
    """The place where a server offers all its connections a `TakeFrames`; ``take`` is None while it offers none."""

    __slots__ = ("take",)

    def __init__(self) -> None:
        self.take: TakeFrames | None = None


TAKES_NO_FRAMES: Final = FrameTaker()


class FrameConnection(Connection):
    """A connection that exchanges frames with its peer over a transport.

    ``on_large_input`` is called with the bytes added to a large unfinished frame, ``on_large_output`` with those added
    to the unread answers. ``taker`` may handle frames of the peer in place of the handlers.
    """

    _sharing_turns: ClassVar[int] = 0
    """Number of connections of this process that have the rest of a read to handle now."""
    unread_bytes: ClassVar[int] = 0
    """Bytes of answers that the peers of all connections of this process have not read yet."""

    __slots__ = (
        "_drained",
        "_frame_taker",
        "_handlers",
        "_input",
        "_is_handed_over",
        "_long_request",
        "_long_request_bytes",
        "_on_large_input",
        "_on_large_output",
        "_output",
        "_output_bytes",
        "_read_ended",
        "_read_failure",
        "_sending",
        "_transport",
        "hand_over",
        "idle_ticks",
    )

    def __init__(
        self,
        transport: Transport,
        handlers: Mapping[int, Handler],
        nursery: trio.Nursery,
        limits: ConnectionLimits,
        on_batch: Callable[[], None] | None = None,
        on_large_input: Callable[[int], None] = lambda _: None,
        on_large_output: Callable[[int], None] = lambda _: None,
        taker: FrameTaker = TAKES_NO_FRAMES,
    ) -> None:
        super().__init__(transport.remote, transport.local, nursery, limits, on_batch)
        self._frame_taker = taker
        self._transport = transport
        self._handlers = handlers
        self._on_large_input = on_large_input
        self._on_large_output = on_large_output
        self.idle_ticks = 0
        self.hand_over: HandOver | None = None
        self._is_handed_over = False
        self._input = bytearray()
        self._long_request: trio.Event | None = None
        self._long_request_bytes = 0
        self._read_ended = trio.Event()
        self._read_failure: Exception | None = None
        self._output: list[Buffer] = []
        self._output_bytes = 0
        self._sending = False
        self._drained: trio.Event | None = None

    # -- reading ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the peer until either side closes. Never raises for anything a peer did."""
        await self._run()
        if self._is_handed_over and self.hand_over is not None:
            received, self._input = bytes(self._input), bytearray()
            await self.hand_over(self._transport, received)

    def put_back(self, received: bytes) -> None:
        """Take bytes of the peer that another connection has read, before `run`."""
        self._input += received

    async def _run(self) -> None:
        reason = "closed by peer"
        try:
            await self._read_all()
        except FrameError as error:
            reason = str(error)
            if self.hand_over is not None and self._input.startswith(HTTP_2_BEGIN) and not self._sending:
                self._is_handed_over = True
                return
            # The first bytes of HTTP or TLS look like an impossible frame length. Say so instead: it is mostly a wrong
            # port or a missing TLS setting.
            foreign = recognise(self._input)
            if foreign is not None:
                log_foreign(self.remote, self.local, *foreign)
            else:
                extra = {"remote": self.remote, "port": self.local[1], "reason": reason}
                log.warning("connection closed: bad frame", extra=extra)
        except OSError as error:
            # A reset is the usual end of a killed client, and not worth a line in the log.
            reason = str(error)
        except Exception:
            # Ends this connection only: an exception that left `run` would cancel the nursery of all the others.
            reason = "unexpected error"
            log.exception(
                "connection closed: unexpected error outside of any request", extra={"remote": self.remote}
            )
        finally:
            self.close(reason)
            if not self._is_handed_over:
                # The connection object may live until the garbage collector runs, which it rarely does.
                self._input = bytearray()

    async def _read_all(self) -> None:
        """Read and handle input until its end. Raises FrameError, OSError."""
        if self._input and not self._feed(b""):
            await self._feed_rest()
        if self.closed:
            return  # Its descriptor may be somebody else's by now.
        # The reactor calls back where it can: a task that waits for input costs a task switch for each read.
        if self._transport.watch(self._readable):
            await self._until_read_ends()
        else:
            await self._read_loop()

    async def _read_loop(self) -> None:
        receive = self._transport.receive
        while not self.closed:
            data = await receive(self._next_read_bytes())
            if not data:
                return
            self.idle_ticks = 0
            # Nothing is read before the rest is handled: the kernel's buffer fills up, and TCP slows the peer down.
            if not self._feed(data):
                await self._feed_rest()
            if len(self._input) > LARGE_INPUT_BYTES:
                self._on_large_input(len(data))

    def _readable(self) -> None:
        """Read and handle input; called by the reactor. An exception ends `run`."""
        try:
            data = self._transport.receive_now(self._next_read_bytes())
            if not data:
                self._end_reading(None)
                return
            self.idle_ticks = 0
            if not self._feed(data) and not self.closed:
                # As in `_read_loop`: nothing is read before the rest is handled.
                self._transport.unwatch()
                self._nursery.start_soon(self._continue_feeding)
            if len(self._input) > LARGE_INPUT_BYTES:
                self._on_large_input(len(data))
        except BlockingIOError:
            # A part of a TLS record, or a wake-up without data.
            return
        except Exception as error:  # noqa: BLE001 - raised again by `_until_read_ends`
            self._end_reading(error)

    def _next_read_bytes(self) -> int:
        """Return the size of the next read, which is smaller within a large frame: filling new memory delays others."""
        limits = self.limits
        return limits.large_read_bytes if len(self._input) > LARGE_INPUT_BYTES else limits.read_bytes

    def _end_reading(self, error: Exception | None) -> None:
        self._read_failure = error
        self._transport.unwatch()
        self._read_ended.set()

    async def _until_read_ends(self) -> None:
        await self._read_ended.wait()
        failure, self._read_failure = self._read_failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                # Its traceback refers to this frame and so to the connection, whose buffers would wait for the garbage
                # collector.
                del failure

    async def _continue_feeding(self) -> None:
        """Handle the rest of what was read, and read on; an exception ends `run`."""
        try:
            await self._feed_rest()
            if not self.closed:
                self._transport.watch(self._readable)
        except Exception as error:  # noqa: BLE001 - raised again by `_until_read_ends`
            self._end_reading(error)

    async def _feed_rest(self) -> None:
        """Handle the rest of what was read, one turn at a time. Before each, the peer has to read its answers."""
        turns = _turns_of_rests()
        while not self.closed:
            while self._long_request is not None:
                await self._long_request.wait()
            # A peer that does not read its answers gets no further ones.
            await self._wait_drained()
            # Counted while it waits for its turn, so that the others give shorter turns in the meantime.
            FrameConnection._sharing_turns += 1
            try:
                # Waits at least until the next pass. First come, first served: a turn that ends wakes the next one.
                await turns.acquire()
            finally:
                FrameConnection._sharing_turns -= 1
            try:
                self.idle_ticks = 0
                if self.closed or self._feed(b""):
                    return
            finally:
                turns.release()

    def _feed(self, data: bytes) -> bool:
        """Handle every whole frame; return False if some are left, because the turn is over or answers are not read."""
        # Only an unfinished frame of an earlier read is copied together with this one; most reads are decoded in place.
        unfinished = self._input
        if self._long_request is not None:
            unfinished += data
            return False
        if unfinished:
            unfinished += data
            buffer: bytes | bytearray = unfinished
        else:
            buffer = data
        answers: list[bytes] = []
        position, end, finished, turn_end_s = 0, len(buffer), True, 0.0
        frame_bytes, header_bytes = self.limits.max_frame_bytes, self.limits.max_header_bytes
        room = self._output_watermark() - self._output_bytes
        take = self._frame_taker.take
        try:
            while end - position >= 8:
                if take is not None and (taken := take(self, buffer, position)) is not None:
                    position, joined_answers = taken
                    if joined_answers is not None:
                        answers.append(joined_answers)
                        room -= len(joined_answers)
                        if room < 0:
                            finished = False
                            break
                    if position == end:
                        break
                    # The turn begins here, a few frames late: a read that is taken at once pays for no clock.
                    if not turn_end_s:
                        turn_end_s = monotonic() + turn_seconds(
                            self.limits.max_turn_s, FrameConnection._sharing_turns, is_rest=not data
                        )
                    elif monotonic() >= turn_end_s:
                        finished = False
                        break
                    continue
                stop = position + 4 + int.from_bytes(buffer[position : position + 4], "big")
                # Checked before the frame is complete: otherwise a peer could announce 2 GiB and have them buffered.
                if not 8 <= stop - position <= frame_bytes:
                    raise FrameError(
                        f"frame length {stop - position - 4} is not between 4 and {frame_bytes - 4}"
                    )
                if stop > end:
                    break
                # A read of one request, the most frequent, pays for no clock.
                if stop < end and not turn_end_s:
                    turn_end_s = monotonic() + turn_seconds(
                        self.limits.max_turn_s, FrameConnection._sharing_turns, is_rest=not data
                    )
                command = decode_frame(buffer, position + 4, stop, header_bytes)
                position = stop
                answer = self._dispatch(command)
                if self.closed:
                    # The handler, or an answer that could not be sent, closed it. Drop the rest of its requests.
                    position = end
                    break
                # The handler may have changed what decides about the frames that follow.
                take = self._frame_taker.take
                if answer is not None:
                    answers.append(answer)
                    room -= len(answer)
                    # Back-pressure: small requests may have large answers, so these are counted one by one.
                    if room < 0:
                        finished = False
                        break
                elif self._long_request is not None:
                    self._long_request_bytes = len(command.body)
                    finished = False
                    break
                if position < end and monotonic() >= turn_end_s:
                    finished = False
                    break
        finally:
            # After a bad frame, too: the requests before it have been carried out, so their answers leave.
            if unfinished:
                del unfinished[:position]
            elif position < end:
                unfinished += memoryview(buffer)[position:]
            if answers:
                self.write(answers[0] if len(answers) == 1 else b"".join(answers))
            if self._on_batch is not None:
                self._end_batch(self._on_batch)
        return finished and self._output_bytes <= self._output_watermark()

    def _output_watermark(self) -> int:
        """Return the unread bytes with which this peer gets no further answers now."""
        limits = self.limits
        if FrameConnection.unread_bytes > limits.crowded_output_bytes:
            return min(limits.output_high_watermark_bytes, CROWDED_WATERMARK_BYTES)
        return limits.output_high_watermark_bytes

    def _count_output(self, added: int) -> None:
        """Count bytes that were buffered for the peer, or sent to it."""
        self._output_bytes += added
        FrameConnection.unread_bytes += added

    def spawn_alone(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run an async function as `spawn` does, and read no further request of this peer until it ends.

        If another one runs, which was held and not just read, this one begins afterwards.
        """
        previous, ended = self._long_request, trio.Event()
        self.spawn(self._run_alone, previous, ended, function, args)
        self._long_request = ended

    async def _run_alone(
        self,
        previous: trio.Event | None,
        ended: trio.Event,
        function: Callable[..., Awaitable[None]],
        args: tuple[Any, ...],
    ) -> None:
        try:
            if previous is not None:
                await previous.wait()
            await function(*args)
        finally:
            if self._long_request is ended:
                self._long_request, self._long_request_bytes = None, 0
            ended.set()

    def _dispatch(self, command: Command) -> bytes | None:
        if command.flag & RESPONSE_FLAG:
            self._match_answer(command)
            return None
        handler = self._handlers.get(command.code)
        try:
            answer = self._unsupported(command) if handler is None else handler(self, command)
        except Exception as error:  # noqa: BLE001 - the one place where a request's failure becomes its answer
            answer = encode_failure(command, error)
        return None if command.flag & ONEWAY_FLAG else answer

    def _match_answer(self, command: Command) -> None:
        # An answer that comes after the timeout of its request has no entry any more, and is dropped.
        answered = self._pending_requests.pop(command.opaque, None)
        if answered is not None:
            self._call_answered(answered, command)

    @staticmethod
    def _unsupported(command: Command) -> bytes:
        remark = f" request type {command.code} not supported"
        code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        return encode_response(command.opaque, code, None, b"", remark)

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Send bytes in order without waiting: what the kernel does not take is buffered, and a task sends it.

        A peer for which more than ``max_output_bytes`` are buffered is disconnected.
        """
        if self.closed:
            return
        # Directly to the kernel, unless earlier bytes wait, which these must not overtake.
        if not self._output and not self._sending:
            try:
                sent = self._transport.send_now(data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self.close(str(error))
                return
            if sent == len(data):
                return
            data = memoryview(data)[sent:]
        self._output.append(data)
        self._count_output(len(data))
        self._on_large_output(len(data))
        if self.closed:
            return  # It held the most of all.
        if self._output_bytes > self.limits.max_output_bytes:
            log.warning("connection closed: answers are not read", extra={"remote": self.remote})
            self.close("answers are not read")
        elif not self._sending:
            self._sending = True
            self._nursery.start_soon(self._send_buffered)

    async def _send_buffered(self) -> None:
        try:
            while self._output and not self.closed:
                # Everything that was written during the last send goes into one system call, if it is not too much.
                batch, size = self._take_output()
                await self._transport.send_all(batch[0] if len(batch) == 1 else b"".join(batch))
                # Not before: bytes that the kernel has not taken count against the limits.
                if not self.closed:
                    self._count_output(-size)
                self.idle_ticks = 0  # a peer that reads its answers is not idle
                if self._output:
                    await trio.lowlevel.checkpoint()
        except OSError as error:
            self.close(str(error))
        finally:
            self._sending = False
            if self._drained is not None:
                self._drained.set()
                self._drained = None

    def _take_output(self) -> tuple[list[Buffer], int]:
        """Return the first buffered answers, at least one, and their size."""
        count = size = 0
        for data in self._output:
            if count and size + len(data) > MAX_SEND_BYTES:
                break
            count, size = count + 1, size + len(data)
        batch = self._output[:count]
        del self._output[:count]
        return batch, size

    def send_command(
        self, command: Command, answered: Callable[[Command | None], None] | None = None
    ) -> None:
        """Send a request; ``answered`` is called once, with the answer, or with None when the connection closes.

        Without ``answered`` the request is sent oneway. Raises RemotingClosed.
        """
        self._number_request(command)
        if answered is None:
            command.flag |= ONEWAY_FLAG
        # Encoded first: a request that cannot be encoded leaves no callback that nobody would call.
        frame = encode_command(command)
        if answered is not None:
            self._pending_requests[command.opaque] = answered
        self.write(frame)

    async def _wait_drained(self) -> None:
        while self._sending and not self.closed:
            if self._drained is None:
                self._drained = trio.Event()
            await self._drained.wait()

    async def drain(self) -> None:
        """Wait until every answer written so far has been handed to the kernel."""
        await self._wait_drained()

    @property
    def input_bytes(self) -> int:
        """Bytes of an unfinished frame held for this peer, and of a long request at work."""
        return len(self._input) + self._long_request_bytes

    @property
    def output_bytes(self) -> int:
        """Bytes of answers that this peer has not read yet."""
        return self._output_bytes

    @property
    def is_sending(self) -> bool:
        """True while answers wait to be sent because the peer reads slowly."""
        return self._sending

    @property
    def is_busy(self) -> bool:
        """True while tasks run or answers wait to be sent."""
        return self.has_running_tasks or self.is_sending

    def _close_transport(self) -> None:
        self._read_ended.set()
        if not self._is_handed_over:
            self._transport.close()
        self._output.clear()
        self._count_output(-self._output_bytes)
        if self._drained is not None:
            self._drained.set()
            self._drained = None
