"""A connection to the handlers of a server in the same process: typed calls without frames between.

To handlers it is a connection like any other: they answer at once or later, start tasks, keep state with it, learn of
its end, and send notices over it. Only handlers that work on raw commands return frames, which are decoded here.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

import trio

from codec.command import Command, decode_frame
from codec.constants import ResponseCode
from remoting.acl import Credentials
from remoting.connection import Connection, Handler
from remoting.declare import Header, Request
from remoting.eager import enter_task
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.limits import ConnectionLimits
from remoting.local_command import LocalCommand
from remoting.transport import Address, Buffer

Reply = TypeVar("Reply", bound=Header | None)

DEFAULT_TIMEOUT_S: Final = 30.0
"""Longest wait for an answer that should come at once."""


def ignore_request(_: Request[Any]) -> None:
    """Ignore a request of the server."""


class LocalConnection(Connection):
    """A connection to ``handlers``. ``on_request`` gets the notices that the server sends its client."""

    __slots__ = ("_calls", "_handlers", "_on_request")

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        remote: Address,
        local: Address,
        nursery: trio.Nursery,
        limits: ConnectionLimits,
        *,
        on_batch: Callable[[], None] | None = None,
        on_request: Callable[[Request[Any]], None] = ignore_request,
    ) -> None:
        super().__init__(remote, local, nursery, limits, on_batch)
        self._handlers = handlers
        self._on_request = on_request
        self._calls: dict[int, LocalCommand] = {}

    # -- calls --------------------------------------------------------------------------------------------------

    async def call(
        self,
        request: Request[Reply],
        caller: Credentials | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        language: str = "OTHER",
        on_unclaimed: Callable[[Reply], None] | None = None,
    ) -> Reply:
        """Pass a request to its handler, and return the reply.

        ``on_unclaimed`` gets the reply if the caller was cancelled before it could take it.
        Raises RequestError for a refusal, RemotingTimeout, RemotingClosed, and whatever a handler raises.
        """
        if self.closed:
            raise RemotingClosed("the connection to the broker is closed")
        self._next_opaque = (self._next_opaque + 1) & 0x7FFFFFFF
        command = LocalCommand(request, self._next_opaque, caller, language)
        self._calls[command.opaque] = command
        try:
            self._pass_on(command)
            # Most handlers have answered by now: a call costs no task switch then.
            if not command.is_answered:
                await enter_task()
                with trio.move_on_after(timeout_s):
                    await command.wait_answered()
        except trio.Cancelled:
            if command.is_answered and on_unclaimed is not None:
                with suppress(RequestError, RemotingClosed):
                    on_unclaimed(_read_outcome(command, request))
            raise
        finally:
            self._calls.pop(command.opaque, None)
        if not command.is_answered:
            raise RemotingTimeout(f"no answer within {timeout_s:.1f} s to code {command.code}")
        return _read_outcome(command, request)

    def post(self, request: Request[Any], caller: Credentials | None = None) -> None:
        """Pass a request to its handler without waiting for an answer. Refusals are ignored."""
        with suppress(RequestError):
            self._handlers[request.code](self, LocalCommand(request, 0, caller, "OTHER", oneway=True))

    def _pass_on(self, command: LocalCommand) -> None:
        handler = self._handlers.get(command.code)
        if handler is None:
            raise RequestError(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported"
            )
        frame = handler(self, command)
        if self._on_batch is not None:
            self._end_batch(self._on_batch)
        if frame is not None:
            command.settle(decode_frame(frame, 4, len(frame)))

    def write(self, data: Buffer) -> None:
        """Take the late answers of handlers that work on raw commands."""
        position = 0
        while position < len(data) and not self.closed:
            end = position + 4 + int.from_bytes(data[position : position + 4], "big")
            answer = decode_frame(data, position + 4, end)
            position = end
            # The call may be over: its caller was cancelled, or waited for too long.
            call = self._calls.get(answer.opaque)
            if call is not None:
                call.settle(answer)

    # -- requests of the server ---------------------------------------------------------------------------------

    def send_oneway(self, request: Request[Any]) -> None:
        """Pass a notice to the client."""
        if not self.closed:
            self._on_request(request)

    def send_command(
        self, command: Command, answered: Callable[[Command | None], None] | None = None
    ) -> None:
        """Take a request that this client does not answer; ``answered`` is called with None at the close."""
        self._number_request(command)
        if answered is not None:
            self._pending_requests[command.opaque] = answered

    # -- closing ------------------------------------------------------------------------------------------------

    def _close_transport(self) -> None:
        """End the calls that wait for an answer."""
        for command in list(self._calls.values()):
            command.settle(
                RemotingClosed(f"the broker closed the connection before its answer to code {command.code}")
            )


def _read_outcome(command: LocalCommand, request: Request[Reply]) -> Reply:
    """Return the typed reply of a call. Raises the refusal, if that is the outcome."""
    outcome = command.outcome
    if isinstance(outcome, Command):
        return request.read_reply(outcome)
    if isinstance(outcome, Exception):
        raise outcome
    if outcome is not None and outcome.code not in request.ACCEPT_CODES:
        raise RequestError(outcome.code, outcome.remark)
    return cast(Reply, outcome if request.REPLY is not None else None)
