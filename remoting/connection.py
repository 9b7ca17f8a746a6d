"""A connection to a peer, as the handlers of its requests see it, and as the code that sends the peer requests.

A handler is called with the connection that its request came from and the request. It returns the answer's bytes, or
None and answers later with `Connection.write` or `Connection.answer_late`. A server also asks its clients, with
`Connection.send_oneway` and `Connection.ask`.

Two classes carry requests. `remoting.frame_connection.FrameConnection` reads and writes frames on a socket;
`remoting.local_connection.LocalConnection` calls the handlers of a server in the same process. Handlers are chosen in
`remoting.handler_table`.

Invariant: `Connection.close` may be called at any time and from any callback. It cancels the tasks of requests, and
every callback of a sent request is called exactly once, with None. A failure outside of any request (in a callback, or
at the end of a batch) is logged and never ends a connection, because its peer need not have caused it.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import trio

from codec.command import Command, encode_response
from codec.constants import ResponseCode
from codec.hosts import format_host
from remoting.connection_state import new_state
from remoting.declare import Header, Request
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.limits import ConnectionLimits
from remoting.transport import Address, Buffer

log = logging.getLogger(__name__)

Handler = Callable[["Connection", Command], bytes | None]
Reply = TypeVar("Reply", bound=Header | None)

ONEWAY_FLAG = 2
MAX_REMARK_CHARS: Final = 4096
"""Longer remarks of failures are shortened, because they may quote anything that was sent."""


def refusal_of(command: Command, error: Exception) -> RequestError:
    """Return the refusal that answers a failed request: its own, or SYSTEM_ERROR for any other exception."""
    if isinstance(error, RequestError):
        return error
    log.error("request failed", exc_info=error, extra={"code": command.code})
    # The text of an OSError names a file or an address of this machine, which is for the log only.
    detail = error.strerror if isinstance(error, OSError) and error.filename is not None else error
    return RequestError(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {detail}")


def encode_failure(command: Command, error: Exception) -> bytes:
    """Encode the answer to a failed request: the refusal's own code, or SYSTEM_ERROR for any other exception."""
    refusal = refusal_of(command, error)
    remark = refusal.remark
    if remark is not None and len(remark) > MAX_REMARK_CHARS:
        remark = f"{remark[:MAX_REMARK_CHARS]}… ({len(remark)} characters)"
    return encode_response(command.opaque, refusal.code, refusal.fields, b"", remark)


class Connection(ABC):
    """A connection to one peer, on either side.

    Answers leave in the order in which handlers finish. Handlers store data about the peer in ``state``, each in a
    `StateSlot` of its own.
    ``on_batch`` is called after each batch of requests.
    """

    __slots__ = (
        "_close_callbacks",
        "_next_opaque",
        "_nursery",
        "_on_batch",
        "_pending_requests",
        "_scopes",
        "closed",
        "limits",
        "local",
        "outstanding_requests",
        "remote",
        "state",
    )

    def __init__(
        self,
        remote: Address,
        local: Address,
        nursery: trio.Nursery,
        limits: ConnectionLimits,
        on_batch: Callable[[], None] | None,
    ) -> None:
        self.remote = remote
        self.local = local
        self.limits = limits
        self.state = new_state()
        self.closed = False
        self.outstanding_requests = 0
        self._nursery = nursery
        self._on_batch = on_batch
        self._pending_requests: dict[int, Callable[[Command | None], None]] = {}
        self._next_opaque = 0
        self._scopes: set[trio.CancelScope] = set()
        self._close_callbacks: list[Callable[[Connection], None]] = []

    # -- answers ------------------------------------------------------------------------------------------------

    @abstractmethod
    def write(self, data: Buffer) -> None:
        """Send answers, as whole frames, without waiting."""

    def answer_late(self, command: Command, work: Callable[[], bytes | None]) -> bool:
        """Write what ``work`` returns as the answer to an earlier request, or its exception; return False for None."""
        try:
            answer = work()
        except Exception as error:  # noqa: BLE001 - the same place as in `_dispatch`, for answers that come later
            answer = encode_failure(command, error)
        if answer is not None and not command.flag & ONEWAY_FLAG:
            self.write(answer)
        return answer is not None

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

    def _end_batch(self, on_batch: Callable[[], None]) -> None:
        try:
            on_batch()
        except Exception:  # It does work for all peers: this one need not have caused the failure.
            log.exception("the end of a batch of requests failed", extra={"remote": self.remote})

    # -- tasks -----------------------------------------------------------------------------------------------------

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

    def spawn_alone(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run an async function as `spawn` does. A peer at a socket has no further request read until it ends."""
        self.spawn(function, *args)

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

    @property
    def has_running_tasks(self) -> bool:
        """True while tasks of requests run; a pull that waits for a message has none."""
        return bool(self._scopes)

    @property
    def running_task_count(self) -> int:
        """Number of tasks of requests that run."""
        return len(self._scopes)

    # -- requests to the peer --------------------------------------------------------------------------------------

    @abstractmethod
    def send_command(
        self, command: Command, answered: Callable[[Command | None], None] | None = None
    ) -> None:
        """Send a request; ``answered`` is called once, with the answer, or with None when the connection closes.

        Without ``answered`` the request is sent oneway. Raises RemotingClosed.
        """

    def _number_request(self, command: Command) -> None:
        if self.closed:
            raise RemotingClosed(f"connection to {format_host(self.remote)} is closed")
        self._next_opaque = (self._next_opaque + 1) & 0x7FFFFFFF
        command.opaque = self._next_opaque

    def forget_request(self, command: Command) -> None:
        """Drop the callback of a request whose answer nobody waits for any more."""
        self._pending_requests.pop(command.opaque, None)

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
            self.forget_request(command)
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

    def _call_answered(self, answered: Callable[[Command | None], None], answer: Command | None) -> None:
        try:
            answered(answer)
        except Exception:
            log.exception("an answer could not be handled", extra={"remote": self.remote})

    # -- closing ---------------------------------------------------------------------------------------------------

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
        log.debug("connection closed", extra={"remote": self.remote, "reason": reason})
        self._close_transport()
        for scope in self._scopes:
            scope.cancel()
        # Taken out before the calls: a callback may change the table.
        pending, self._pending_requests = self._pending_requests, {}
        for answered in pending.values():
            self._call_answered(answered, None)
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                log.exception("close callback failed", extra={"remote": self.remote})

    @abstractmethod
    def _close_transport(self) -> None:
        """Give up the transport, and wake up whoever waits for it."""
