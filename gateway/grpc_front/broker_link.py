"""The connection through which RPCs reach the handlers of a broker or namesrv of this process.

To a handler it is the connection of a remoting client with the address of the gRPC client: a handler returns its
answer, or writes it later, and a broker sends its own requests (check-backs, notices) over it. There are no bytes in
between but the frames themselves.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import trio

from codec.command import Command, decode_frame
from gateway.auth.access_control import Accounts
from gateway.grpc_front.access import RpcSender
from remoting.connection import Connection, Handler
from remoting.declare import Header, Request
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.transport import Address, Buffer

Reply = TypeVar("Reply", bound=Header | None)

MAX_ANSWER_S = 30.0
"""Longest wait for an answer that is to come at once."""


@dataclass(frozen=True, slots=True)
class ServedHandlers:
    """The handlers of one broker or namesrv. ``end_batch`` is called after each request, ``opened`` with each link.

    ``accounts`` are those of its access control, None if it is off.
    """

    handlers: Mapping[int, Handler]
    accounts: Accounts | None = None
    end_batch: Callable[[], None] = lambda: None
    opened: Callable[[Connection], None] = lambda connection: None


class _NoTransport:
    """The transport of a link, which sends and receives nothing."""

    def __init__(self, remote: Address, local: Address) -> None:
        self.remote = remote
        self.local = local

    async def receive(self, max_bytes: int) -> bytes:
        return b""

    def watch(self, readable: Callable[[], None]) -> bool:
        return False

    def unwatch(self) -> None:
        """Nothing is watched here."""

    def receive_now(self, max_bytes: int) -> bytes:
        return b""

    def send_now(self, data: Buffer) -> int:
        return len(data)

    async def send_all(self, data: Buffer) -> None:
        """Nothing is sent here."""

    def close(self) -> None:
        """Nothing is open here."""


class BrokerLink(Connection):
    """A connection to handlers of this process. ``on_request`` gets what the broker asks of the client."""

    __slots__ = ("_on_request", "_served", "_waiting", "unclaimed")

    def __init__(
        self,
        served: ServedHandlers,
        peer: Connection,
        nursery: trio.Nursery,
        on_request: Callable[[Command], None] = lambda command: None,
    ) -> None:
        super().__init__(
            _NoTransport(peer.remote, peer.local), served.handlers, nursery, peer.limits, served.end_batch
        )
        self._served = served
        self._on_request = on_request
        self.unclaimed: Command | None = None
        """An answer that came while its request was being cancelled."""
        self._waiting: dict[int, Callable[[Command | None], None]] = {}
        served.opened(self)

    async def call(
        self,
        request: Request[Reply],
        sender: RpcSender,
        *,
        timeout_s: float = MAX_ANSWER_S,
        language: str = "OTHER",
    ) -> Reply:
        """Send a request as the sender of an RPC, and return its reply.

        Raises RequestError (AccessDenied among them), RemotingTimeout, RemotingClosed.
        """
        answer = await self.exchange(request, sender, timeout_s, language)
        return request.read_reply(answer)

    async def exchange(
        self, request: Request[Any], sender: RpcSender, timeout_s: float, language: str = "OTHER"
    ) -> Command:
        """Send a request, and return its answer whatever its code is. A refusal may be raised as RequestError."""
        if self.closed:
            raise RemotingClosed("the connection to the broker is closed")
        self._next_opaque = (self._next_opaque + 1) & 0x7FFFFFFF
        command = request.to_command(self._next_opaque)
        command.language = language
        if self._served.accounts is not None:
            sender.sign(command, self._served.accounts)
        handler = self._handlers.get(command.code)
        answered: list[Command | None] = []
        arrived = trio.Event()

        def take_answer(answer: Command | None) -> None:
            answered.append(answer)
            arrived.set()

        self._waiting[command.opaque] = take_answer
        try:
            frame = self._unsupported(command) if handler is None else handler(self, command)
            if self._on_batch is not None:
                self._end_batch(self._on_batch)
            if frame is not None:
                return decode_frame(frame, 4, len(frame))
            with trio.move_on_after(timeout_s if math.isfinite(timeout_s) else math.inf):
                await arrived.wait()
        except trio.Cancelled:
            self.unclaimed = answered[0] if answered else None
            raise
        finally:
            self._waiting.pop(command.opaque, None)
        if not answered:
            raise RemotingTimeout(f"no answer within {timeout_s:.1f} s to code {command.code}")
        if answered[0] is None:
            raise RemotingClosed(f"the broker closed the connection before its answer to code {command.code}")
        return answered[0]

    def post(self, request: Request[Any], sender: RpcSender) -> None:
        """Send a request without waiting for its answer. Failures are ignored."""
        command = request.to_command()
        with suppress(RequestError):
            if self._served.accounts is not None:
                sender.sign(command, self._served.accounts)
            self._handlers[command.code](self, command)

    def write(self, data: Buffer) -> None:
        """Take frames from the broker: late answers, and requests of its own."""
        position = 0
        while position < len(data) and not self.closed:
            end = position + 4 + int.from_bytes(data[position : position + 4], "big")
            command = decode_frame(data, position + 4, end)
            position = end
            if not command.is_response:
                self._on_request(command)
                continue
            take_answer = self._waiting.pop(command.opaque, None)
            if take_answer is not None:
                take_answer(command)

    def close(self, reason: str = "") -> None:
        """Close: requests that wait for an answer end without one."""
        if self.closed:
            return
        super().close(reason)
        waiting, self._waiting = self._waiting, {}
        for take_answer in waiting.values():
            take_answer(None)
