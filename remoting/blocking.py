"""A blocking client over one plain socket, for tests, tools and workers without an event loop.

It does not find brokers, reconnect or retry, and must not be shared between threads.
"""

import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import Any, Self, TypeVar

from codec.command import Command, encode_command, encode_response
from codec.constants import ResponseCode
from codec.frames import MAX_FRAME_BYTES, FrameSplitter
from codec.hosts import format_host
from remoting.declare import Header, Request
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError

Reply = TypeVar("Reply", bound=Header | None)
T = TypeVar("T")
RequestType = TypeVar("RequestType", bound=Request[Any])

_MAX_IN_FLIGHT = 256
"""Maximum number of pipelined requests in flight, so that neither side's buffers fill up."""

_READ_BYTES = 256 * 1024


class BlockingClient:
    """One connection to a namesrv or broker.

    ``timeout_s`` bounds connecting and each wait for an answer, or for one window of answers in `send_commands`. Every
    method that waits raises RemotingTimeout when the time is up and RemotingClosed when the peer closes. While it
    waits, the client also serves requests that the server sends, with the functions registered by `serve_request`. The
    client numbers its requests itself (opaques). ``sign`` adds credentials to each request. ``tls_name`` is the name
    that the server's certificate must have, if it is not ``host``.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout_s: float = 3.0,
        binary: bool = False,
        tls: ssl.SSLContext | None = None,
        tls_name: str | None = None,
        sign: Callable[[Command], None] | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self.timeout_s = timeout_s
        self.binary = binary
        self._sign = sign
        self._socket = _connect(host, port, timeout_s, tls, tls_name or host)
        self._splitter = FrameSplitter(max_frame_bytes)
        self._received: deque[Command] = deque()
        self._stored_answers: dict[int, Command] = {}
        self._opaque = 0
        self._handlers: dict[int, Callable[[Command], Header | None]] = {}
        self.remote: tuple[str, int] = self._socket.getpeername()[:2]
        self.local: tuple[str, int] = self._socket.getsockname()[:2]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; closing twice does nothing."""
        self._socket.close()

    def abort(self) -> None:
        """End the connection from another thread: the thread that waits on it gets RemotingClosed, and closes it."""
        with suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)

    # -- requests to the peer --

    def ask(self, request: Request[Reply], *, timeout_s: float | None = None) -> Reply:
        """Send a request and wait for the reply. Raises RequestError for a refusal."""
        return request.read_reply(self.send_command(self._command(request), timeout_s=timeout_s))

    def send_oneway(self, request: Request[Any]) -> None:
        """Send a request that gets no answer."""
        command = self._command(request, oneway=True)
        self._prepare(command)
        self.send_bytes(encode_command(command))

    def pipeline(self, requests: Iterable[Request[Reply]], *, timeout_s: float | None = None) -> list[Reply]:
        """Send many requests at once; return the replies in the order of the requests.

        Raises the RequestError of the first refused one, after all have been answered.
        """
        request_list = list(requests)
        answers = self.send_commands(
            [self._command(request) for request in request_list], timeout_s=timeout_s
        )
        return [request.read_reply(answer) for request, answer in zip(request_list, answers, strict=True)]

    def start_commands(self, commands: Sequence[Command]) -> list[int]:
        """Send many commands without waiting; return the opaques of their answers, for `receive_next_answer`.

        More than a few hundred at once may fill the buffers of both sides.
        """
        for command in commands:
            self._prepare(command)
        self.send_bytes(b"".join(map(encode_command, commands)))
        return [command.opaque for command in commands]

    def receive_next_answer(self, *, timeout_s: float | None = None) -> Command:
        """Return the next answer to any started command, in whatever order the server answers."""
        deadline = self._deadline(timeout_s)
        while True:
            answer = self._dispatch(self._next(deadline))
            if answer is not None:
                return answer

    def send_command(self, command: Command, *, timeout_s: float | None = None) -> Command:
        """Send one command, under an opaque of this client, and return its answer whatever its code."""
        return self.send_commands([command], timeout_s=timeout_s)[0]

    def send_commands(self, commands: Sequence[Command], *, timeout_s: float | None = None) -> list[Command]:
        """Send many commands and wait for every answer; ``timeout_s`` bounds each window of 256."""
        answers: list[Command] = []
        waiting = iter(commands)
        while window := list(islice(waiting, _MAX_IN_FLIGHT)):
            answers += self._exchange(window, self._deadline(timeout_s))
        return answers

    def start_command(self, command: Command) -> int:
        """Send one command without waiting; return the opaque with which `receive_answer` finds its answer.

        Do not send other requests on this connection while such an answer is outstanding.
        """
        self._prepare(command)
        self.send_bytes(encode_command(command))
        return command.opaque

    def receive_answer(self, opaque: int, *, timeout_s: float | None = None) -> Command:
        """Return the answer to a started command; answers to other commands that arrive earlier are stored."""
        deadline = self._deadline(timeout_s)
        while opaque not in self._stored_answers:
            answer = self._dispatch(self._next(deadline))
            if answer is not None:
                self._stored_answers[answer.opaque] = answer
        return self._stored_answers.pop(opaque)

    # -- requests from the peer --

    def serve_request(
        self, request: type[RequestType], function: Callable[[RequestType], Header | None]
    ) -> None:
        """Answer this request of the server with ``function``; a RequestError it raises becomes the answer."""
        self._handlers[request.code] = lambda command: function(request.from_command(command))

    def serve_until(self, done: Callable[[], bool], *, timeout_s: float | None = None) -> None:
        """Serve the server's requests until ``done()`` returns True; it is evaluated after each."""
        deadline = self._deadline(timeout_s)
        while not done():
            self._dispatch(self._next(deadline))

    def wait_for_request(self, request: type[RequestType], *, timeout_s: float | None = None) -> RequestType:
        """Return the next such request from the server. It is answered with success unless it is oneway."""
        received: list[RequestType] = []
        before = self._handlers.get(request.code)
        self.serve_request(request, received.append)
        try:
            self.serve_until(lambda: bool(received), timeout_s=timeout_s)
        finally:
            if before is None:
                del self._handlers[request.code]
            else:
                self._handlers[request.code] = before
        return received[0]

    # -- raw bytes, for tests of the wire format --

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        try:
            self._socket.settimeout(self.timeout_s)
            self._socket.sendall(data)
        except TimeoutError as error:
            raise RemotingTimeout(f"{format_host(self.remote)} is not reading") from error
        except OSError as error:
            raise RemotingClosed(f"{format_host(self.remote)} closed the connection: {error}") from error

    def receive_bytes(self, *, timeout_s: float | None = None) -> bytes:
        """Return the next bytes, unframed; ``b""`` when the peer has closed."""
        return self._read(self._deadline(timeout_s))

    def receive_command(self, *, timeout_s: float | None = None) -> Command:
        """Return the next command from the server, request or answer, without dispatching it."""
        return self._next(self._deadline(timeout_s))

    def is_closed_by_peer(self, *, timeout_s: float | None = None) -> bool:
        """Return True if the peer closes within the time; commands it sends before are stored."""
        deadline = self._deadline(timeout_s)
        try:
            while self._receive_more(deadline):
                pass
        except RemotingTimeout:
            return False
        return True

    # -- internals --

    def _command(self, request: Request[Any], *, oneway: bool = False) -> Command:
        return request.to_command(oneway=oneway, binary=self.binary)

    def _prepare(self, command: Command) -> None:
        command.opaque = self._opaque = self._opaque % 0x7FFFFFFF + 1
        if self._sign is not None:
            self._sign(command)

    def _deadline(self, timeout_s: float | None) -> float:
        return time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)

    def _exchange(self, commands: list[Command], deadline: float) -> list[Command]:
        for command in commands:
            self._prepare(command)
        self.send_bytes(b"".join(map(encode_command, commands)))
        open_opaques = {command.opaque for command in commands}
        answers: dict[int, Command] = {}
        while open_opaques:
            answer = self._dispatch(self._next(deadline))
            if answer is not None and answer.opaque in open_opaques:
                open_opaques.remove(answer.opaque)
                answers[answer.opaque] = answer
        return [answers[command.opaque] for command in commands]

    def _dispatch(self, command: Command) -> Command | None:
        """Return an answer as it is; serve a request and return None."""
        if command.is_response:
            return command
        answer = self._serve(command)
        if not command.is_oneway:
            self.send_bytes(answer)
        return None

    def _serve(self, command: Command) -> bytes:
        handler = self._handlers.get(command.code)
        if handler is None:
            code, remark = (
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"request type {command.code} not supported",
            )
            return encode_response(command.opaque, code, None, b"", remark, command.binary)
        try:
            reply = handler(command)
        except RequestError as error:
            return encode_response(command.opaque, error.code, None, b"", error.remark, command.binary)
        reply = Header() if reply is None else reply
        return encode_response(
            command.opaque, reply.code, reply.to_ext(), reply.encode_body(), reply.remark, command.binary
        )

    def _next(self, deadline: float) -> Command:
        while not self._received:
            if not self._receive_more(deadline):
                raise RemotingClosed(f"{format_host(self.remote)} closed the connection")
        return self._received.popleft()

    def _receive_more(self, deadline: float) -> bool:
        """Read once; return False when the peer has closed."""
        rest = self._splitter.rest_buffer()
        if rest is None:
            data = self._read(deadline)
            self._received += self._splitter.feed(data)
            return bool(data)
        with rest:
            count = self._wait(deadline, lambda: self._socket.recv_into(rest), 0)
        self._received += self._splitter.rest_written(count)
        return count > 0

    def _read(self, deadline: float) -> bytes:
        return self._wait(deadline, lambda: self._socket.recv(_READ_BYTES), b"")

    def _wait(self, deadline: float, read: Callable[[], T], closed: T) -> T:
        remaining_s = deadline - time.monotonic()
        try:
            if remaining_s <= 0:
                raise TimeoutError
            self._socket.settimeout(remaining_s)
            return read()
        except TimeoutError as error:
            raise RemotingTimeout(f"{format_host(self.remote)} has not answered in time") from error
        except ConnectionError:
            return closed


def _connect(
    host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None, tls_name: str
) -> socket.socket:
    try:
        plain = socket.create_connection((host, port), timeout_s)
    except TimeoutError as error:
        raise RemotingTimeout(f"{host}:{port} did not accept the connection within {timeout_s} s") from error
    except OSError as error:
        raise RemotingClosed(f"{host}:{port} cannot be reached: {error}") from error
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return tls.wrap_socket(plain, server_hostname=tls_name) if tls else plain
