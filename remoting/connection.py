"""One connection to a peer: decodes frames, dispatches requests, matches answers, and bounds every buffer.

Theory of operation
-------------------
A connection works the same on the server's and on the client's side: both may send requests. Input arrives in one of
two ways: the reactor calls `Connection._readable` when the socket has data (the fast path, without a task switch), or
`Connection._read_loop` waits in a task. Both feed `Connection._feed`, which decodes every whole frame and calls the
handler of its request code synchronously. A handler returns the answer's bytes, or None and answers later with `write`.
All answers of one read are joined into one system call.

Turns. One read may hold thousands of small requests. After ``max_turn_s`` of them the rest stays in ``_input``, the
socket is not read, and a task (`_continue_feeding`, or the read loop itself) goes on after every other task and peer
had its turn. Connections that have such a rest share one turn: a hundred of them would otherwise take half a second
before anybody else is served. A single request is never interrupted: what one costs is bounded by its handler.

Back-pressure. `write` never waits: what the kernel does not take is buffered and sent by a task. Above
``output_high_watermark_bytes`` no more requests of this peer are decoded until its answers have been sent; above
``max_output_bytes`` the connection is closed. Unfinished frames are bounded by ``max_frame_bytes``, requests that are
answered later by ``max_outstanding_requests``. `remoting.server` bounds all connections together.

Invariant: bytes in ``_input`` start at a frame boundary between calls; ``_output`` is sent in order, and only one
task sends. `close` may be called at any time and from any callback: it cancels the tasks of requests, and every
callback of a sent request is called exactly once, with None. A failure outside of any request (in a callback, or at the
end of a batch) is logged and never ends a connection, because its peer need not have caused it.

Handlers are chosen in `remoting.handler_table`; sockets are opened in `remoting.server` and `remoting.client`.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any, ClassVar, Final, TypeVar

import trio

from codec.command import Command, decode_frame, encode_command, encode_response
from codec.constants import ResponseCode
from codec.errors import FrameError
from codec.hosts import format_host
from remoting.connection_state import new_state
from remoting.declare import Header, Request
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.foreign_protocols import log_foreign, recognise
from remoting.limits import ConnectionLimits
from remoting.transport import Buffer, Transport

log = logging.getLogger(__name__)

Handler = Callable[["Connection", Command], bytes | None]
Reply = TypeVar("Reply", bound=Header | None)

LARGE_INPUT_BYTES = 256 * 1024
RESPONSE_FLAG = 1
ONEWAY_FLAG = 2
MAX_REMARK_CHARS: Final = 4096
"""Longer remarks of failures are shortened, because they may quote anything that was sent."""


def encode_failure(command: Command, error: Exception) -> bytes:
    """Encode the answer to a failed request: the refusal's own code, or SYSTEM_ERROR for any other exception."""
    fields = None
    if isinstance(error, RequestError):
        code, remark, fields = error.code, error.remark, error.fields
    else:
        log.error("request failed", exc_info=error, extra={"code": command.code})
        # The text of an OSError names a file or an address of this machine, which is for the log only.
        detail = error.strerror if isinstance(error, OSError) and error.filename is not None else error
        code, remark = ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {detail}"
    if remark is not None and len(remark) > MAX_REMARK_CHARS:
        remark = f"{remark[:MAX_REMARK_CHARS]}… ({len(remark)} characters)"
    return encode_response(command.opaque, code, fields, b"", remark)


class Connection:
    """A connection to one peer, on either side.

    Answers leave in the order in which handlers finish. Handlers store data about the peer in ``state``, each in a
    `StateSlot` of its own.
    ``on_batch`` is called after each batch of requests, ``on_large_input`` with the bytes added to a large unfinished
    frame.
    """

    _sharing_turns: ClassVar[int] = 0
    """Number of connections of this process that have the rest of a read to handle now."""

    __slots__ = (
        "_close_callbacks",
        "_drained",
        "_handlers",
        "_input",
        "_next_opaque",
        "_nursery",
        "_on_batch",
        "_on_large_input",
        "_output",
        "_output_bytes",
        "_pending_requests",
        "_read_ended",
        "_read_failure",
        "_scopes",
        "_sending",
        "_transport",
        "closed",
        "idle_ticks",
        "limits",
        "local",
        "outstanding_requests",
        "remote",
        "state",
    )

    def __init__(
        self,
        transport: Transport,
        handlers: Mapping[int, Handler],
        nursery: trio.Nursery,
        limits: ConnectionLimits,
        on_batch: Callable[[], None] | None = None,
        on_large_input: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._transport = transport
        self._handlers = handlers
        self._nursery = nursery
        self._on_batch = on_batch
        self._on_large_input = on_large_input
        self.limits = limits
        self.remote = transport.remote
        self.local = transport.local
        self.state = new_state()
        self.closed = False
        self.idle_ticks = 0
        self.outstanding_requests = 0
        self._input = bytearray()
        self._read_ended = trio.Event()
        self._read_failure: Exception | None = None
        self._output: list[Buffer] = []
        self._output_bytes = 0
        self._sending = False
        self._drained: trio.Event | None = None
        self._pending_requests: dict[int, Callable[[Command | None], None]] = {}
        self._next_opaque = 0
        self._scopes: set[trio.CancelScope] = set()
        self._close_callbacks: list[Callable[[Connection], None]] = []

    # -- reading ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the peer until either side closes. Never raises for anything a peer did."""
        reason = "closed by peer"
        try:
            # The reactor calls back where it can: a task that waits for input costs a task switch for each read.
            if self._transport.watch(self._readable):
                await self._until_read_ends()
            else:
                await self._read_loop()
        except FrameError as error:
            reason = str(error)
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
            # The connection object may live until the garbage collector runs, which it rarely does.
            self._input = bytearray()

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
        while not self.closed:
            # A peer that does not read its answers gets no further ones.
            await self._wait_drained()
            # Counted while it waits for its turn, so that the others give shorter turns in the meantime.
            Connection._sharing_turns += 1
            try:
                await trio.lowlevel.checkpoint()
            finally:
                Connection._sharing_turns -= 1
            self.idle_ticks = 0
            if self.closed or self._feed(b""):
                return

    def _feed(self, data: bytes) -> bool:
        """Handle every whole frame; return False if some are left, because the turn is over or answers are not read."""
        # Only an unfinished frame of an earlier read is copied together with this one; most reads are decoded in place.
        unfinished = self._input
        if unfinished:
            unfinished += data
            buffer: bytes | bytearray = unfinished
        else:
            buffer = data
        answers: list[bytes] = []
        position, end, finished, turn_end_s = 0, len(buffer), True, 0.0
        frame_bytes, header_bytes = self.limits.max_frame_bytes, self.limits.max_header_bytes
        room = self.limits.output_high_watermark_bytes - self._output_bytes
        try:
            while end - position >= 8:
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
                    turn_end_s = monotonic() + self.limits.max_turn_s / (1 + Connection._sharing_turns)
                command = decode_frame(buffer, position + 4, stop, header_bytes)
                position = stop
                answer = self._dispatch(command)
                if self.closed:
                    # The handler, or an answer that could not be sent, closed it. Drop the rest of its requests.
                    position = end
                    break
                if answer is not None:
                    answers.append(answer)
                    room -= len(answer)
                    # Back-pressure: small requests may have large answers, so these are counted one by one.
                    if room < 0:
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
        return finished and self._output_bytes <= self.limits.output_high_watermark_bytes

    def _end_batch(self, on_batch: Callable[[], None]) -> None:
        try:
            on_batch()
        except Exception:  # It does work for all peers: this one need not have caused the failure.
            log.exception("the end of a batch of requests failed", extra={"remote": self.remote})

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

    def _call_answered(self, answered: Callable[[Command | None], None], answer: Command | None) -> None:
        try:
            answered(answer)
        except Exception:
            log.exception("an answer could not be handled", extra={"remote": self.remote})

    def answer_late(self, command: Command, work: Callable[[], bytes | None]) -> bool:
        """Write what ``work`` returns as the answer to an earlier request, or its exception; return False for None."""
        try:
            answer = work()
        except Exception as error:  # noqa: BLE001 - the same place as in `_dispatch`, for answers that come later
            answer = encode_failure(command, error)
        if answer is not None and not command.flag & ONEWAY_FLAG:
            self.write(answer)
        return answer is not None

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
        self._output_bytes += len(data)
        if self._output_bytes > self.limits.max_output_bytes:
            log.warning("connection closed: answers are not read", extra={"remote": self.remote})
            self.close("answers are not read")
        elif not self._sending:
            self._sending = True
            self._nursery.start_soon(self._send_buffered)

    async def _send_buffered(self) -> None:
        try:
            while self._output and not self.closed:
                # Everything that was written during the last send goes into one system call.
                batch = self._output
                self._output = []
                size = sum(map(len, batch))
                await self._transport.send_all(batch[0] if len(batch) == 1 else b"".join(batch))
                # Not before: bytes that the kernel has not taken count against the limits.
                self._output_bytes -= size
                self.idle_ticks = 0  # a peer that reads its answers is not idle
        except OSError as error:
            self.close(str(error))
        finally:
            self._sending = False
            if self._drained is not None:
                self._drained.set()
                self._drained = None

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
        """Bytes of an unfinished frame held for this peer."""
        return len(self._input)

    @property
    def output_bytes(self) -> int:
        """Bytes of answers that this peer has not read yet."""
        return self._output_bytes

    @property
    def has_running_tasks(self) -> bool:
        """True while tasks of requests run; a pull that waits for a message has none."""
        return bool(self._scopes)

    @property
    def is_sending(self) -> bool:
        """True while answers wait to be sent because the peer reads slowly."""
        return self._sending

    @property
    def is_busy(self) -> bool:
        """True while tasks run or answers wait to be sent."""
        return self.has_running_tasks or self.is_sending

    def begin_request(self) -> None:
        """Count a request that is answered later; `end_request` must follow. Raises RequestError at the limit."""
        self.check_outstanding_limit()
        self.outstanding_requests += 1

    def check_outstanding_limit(self) -> None:
        """Raise RequestError when the maximum number of requests is outstanding."""
        if self.outstanding_requests >= self.limits.max_outstanding_requests:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while"
            )

    def end_request(self) -> None:
        """Finish a request counted by `begin_request`."""
        self.outstanding_requests -= 1

    # -- tasks --------------------------------------------------------------------------------------------------

    def spawn(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run an async function until it ends or the connection closes. Raises RequestError at the limit.

        Does nothing if the connection is already closed.
        """
        if self.closed:
            return
        self.begin_request()
        scope = trio.CancelScope()
        self._scopes.add(scope)
        self._nursery.start_soon(self._run_in_scope, scope, function, args)

    async def _run_in_scope(
        self, scope: trio.CancelScope, function: Callable[..., Awaitable[None]], args: tuple[Any, ...]
    ) -> None:
        try:
            with scope:
                await function(*args)
            if self._on_batch is not None:
                self._end_batch(self._on_batch)
        except Exception:
            log.exception("task of a connection failed", extra={"remote": self.remote})
        finally:
            self._scopes.discard(scope)
            self.end_request()

    # -- requests to the peer---------------------------------------------------------------------------------------

    def send_command(
        self, command: Command, answered: Callable[[Command | None], None] | None = None
    ) -> None:
        """Send a request; ``answered`` is called once, with the answer, or with None when the connection closes.

        Without ``answered`` the request is sent oneway.
        """
        if self.closed:
            raise RemotingClosed(f"connection to {format_host(self.remote)} is closed")
        self._next_opaque = (self._next_opaque + 1) & 0x7FFFFFFF
        command.opaque = self._next_opaque
        if answered is None:
            command.flag |= ONEWAY_FLAG
        # Encoded first: a request that cannot be encoded leaves no callback that nobody would call.
        frame = encode_command(command)
        if answered is not None:
            self._pending_requests[command.opaque] = answered
        self.write(frame)

    def send_oneway(self, request: Request[Any]) -> None:
        """Send a oneway request; does nothing when the peer is gone."""
        if not self.closed:
            self.send_command(request.to_command())

    async def ask_command(self, command: Command, timeout_s: float) -> Command:
        """Send a request and wait for its answer. Raises RemotingTimeout, RemotingClosed."""
        arrived = trio.Event()
        answers: list[Command | None] = []

        def answered(answer: Command | None) -> None:
            answers.append(answer)
            arrived.set()

        self.send_command(command, answered)
        try:
            with trio.move_on_after(timeout_s):
                await arrived.wait()
        finally:
            self._pending_requests.pop(command.opaque, None)
        if not answers:
            raise RemotingTimeout(
                f"no answer from {format_host(self.remote)} within {timeout_s} s to code {command.code}"
            )
        if answers[0] is None:
            raise RemotingClosed(
                f"connection to {format_host(self.remote)} closed before its answer to code {command.code}"
            )
        return answers[0]

    async def ask(
        self, request: Request[Reply], timeout_s: float = 3.0, sign: Callable[[Command], None] | None = None
    ) -> Reply:
        """Send a typed request, signed by ``sign``, and wait for its reply.

        Raises RequestError for a refusal, RemotingTimeout, RemotingClosed.
        """
        command = request.to_command()
        if sign is not None:
            sign(command)
        answer = await self.ask_command(command, timeout_s)
        # Limited, since the peer may be a client: a server also asks its clients.
        return request.read_reply(answer, self.limits.max_json_values)

    # -- closing ------------------------------------------------------------------------------------------------

    def on_close(self, callback: Callable[["Connection"], None]) -> None:
        """Register a function that is called once when the connection closes; at once if it is closed already."""
        if self.closed:
            callback(self)
        else:
            self._close_callbacks.append(callback)

    def close(self, reason: str = "") -> None:
        """Close at once: callbacks of sent requests get None, spawned tasks are cancelled. Idempotent."""
        if self.closed:
            return
        # First, because the callbacks below may call `write` or `close` again.
        self.closed = True
        self._read_ended.set()
        log.debug("connection closed", extra={"remote": self.remote, "reason": reason})
        self._transport.close()
        self._output.clear()
        self._output_bytes = 0
        for scope in self._scopes:
            scope.cancel()
        # Taken out before the calls: a callback may change the table.
        pending, self._pending_requests = self._pending_requests, {}
        for answered in pending.values():
            self._call_answered(answered, None)
        if self._drained is not None:
            self._drained.set()
            self._drained = None
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                log.exception("close callback failed", extra={"remote": self.remote})
