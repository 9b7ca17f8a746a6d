"""A client over one plain socket that blocks: for tests, tools and workers that have no event loop.

Not responsible for finding brokers, for reconnecting or for asking twice; not to be shared between threads.
"""

import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, Self, TypeVar

from codec.command import Command, encode_command, encode_response
from codec.constants import ResponseCode
from codec.frames import MAX_FRAME_BYTES, FrameSplitter
from remoting.declare import Header, Request
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError

Reply = TypeVar("Reply", bound=Header | None)
T = TypeVar("T")
Asked = TypeVar("Asked", bound=Request[Any])

_WINDOW = 256
"""How many requests of a pipeline are under way at once, so that neither side's buffers fill up."""

_READ_BYTES = 256 * 1024


class BlockingClient:
    """One connection to a namesrv or broker.

    ``timeout_s`` bounds connecting and each answer; every method that waits raises RemotingTimeout when it is
    over and RemotingClosed when the peer closes. Requests the server sends are served by the functions given
    to ``on`` whenever this client waits. Opaques are chosen here. ``sign`` adds credentials to what is asked.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout_s: float = 3.0,
        binary: bool = False,
        tls: ssl.SSLContext | None = None,
        sign: Callable[[Command], None] | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self.timeout_s = timeout_s
        self.binary = binary
        self._sign = sign
        self._socket = _connect(host, port, timeout_s, tls)
        self._splitter = FrameSplitter(max_frame_bytes)
        self._arrived: deque[Command] = deque()
        self._kept: dict[int, Command] = {}
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

    # asking

    def ask(self, request: Request[Reply], *, timeout_s: float | None = None) -> Reply:
        """Ask and wait for the reply. Raises RequestError for a refusal."""
        return request.read_reply(self.send_command(self._command(request), timeout_s=timeout_s))

    def send_oneway(self, request: Request[Any]) -> None:
        """Send a request that is not answered."""
        command = self._command(request, oneway=True)
        self._prepare(command)
        self.send_bytes(encode_command(command))

    def pipeline(self, requests: Iterable[Request[Reply]], *, timeout_s: float | None = None) -> list[Reply]:
        """Ask many at once; the replies come in the order of the requests.

        Raises the RequestError of the first that was refused, after all were answered.
        """
        asked = list(requests)
        answers = self.send_commands([self._command(request) for request in asked], timeout_s=timeout_s)
        return [request.read_reply(answer) for request, answer in zip(asked, answers, strict=True)]

    def start_commands(self, commands: Sequence[Command]) -> list[int]:
        """Send many commands and do not wait: the opaques that their answers, from `next_answer`, will have.

        More than a few hundred at once may fill the buffers of both sides.
        """
        for command in commands:
            self._prepare(command)
        self.send_bytes(b"".join(map(encode_command, commands)))
        return [command.opaque for command in commands]

    def receive_next_answer(self, *, timeout_s: float | None = None) -> Command:
        """The next answer to anything that was begun, in whatever order the server answers."""
        deadline = self._deadline(timeout_s)
        while True:
            answer = self._dispatch(self._next(deadline))
            if answer is not None:
                return answer

    def send_command(self, command: Command, *, timeout_s: float | None = None) -> Command:
        """Send one command as it is, with an opaque of ours, and wait for its answer whatever its code."""
        return self.send_commands([command], timeout_s=timeout_s)[0]

    def send_commands(self, commands: Sequence[Command], *, timeout_s: float | None = None) -> list[Command]:
        """Send many commands and wait for every answer; ``timeout_s`` bounds each window of 256."""
        answers: list[Command] = []
        waiting = iter(commands)
        while window := list(islice(waiting, _WINDOW)):
            answers += self._exchange(window, self._deadline(timeout_s))
        return answers

    def start_command(self, command: Command) -> int:
        """Send one command and wait for nothing; the opaque by which `answer` knows what comes back.

        Do not ask anything else on this connection while such an answer is missing.
        """
        self._prepare(command)
        self.send_bytes(encode_command(command))
        return command.opaque

    def receive_answer(self, opaque: int, *, timeout_s: float | None = None) -> Command:
        """The answer to what was posted; answers to others that come before it are kept for their turn."""
        deadline = self._deadline(timeout_s)
        while opaque not in self._kept:
            answer = self._dispatch(self._next(deadline))
            if answer is not None:
                self._kept[answer.opaque] = answer
        return self._kept.pop(opaque)

    # being asked

    def serve_request(self, request: type[Asked], function: Callable[[Asked], Header | None]) -> None:
        """Serve this request of the server with ``function``; a RequestError it raises becomes the answer."""
        self._handlers[request.code] = lambda command: function(request.from_command(command))

    def serve_until(self, done: Callable[[], bool], *, timeout_s: float | None = None) -> None:
        """Serve the server's requests until ``done()``, which is asked again after each."""
        deadline = self._deadline(timeout_s)
        while not done():
            self._dispatch(self._next(deadline))

    def wait_for_request(self, request: type[Asked], *, timeout_s: float | None = None) -> Asked:
        """The next such request from the server. It is answered with success unless it is oneway."""
        seen: list[Asked] = []
        before = self._handlers.get(request.code)
        self.serve_request(request, seen.append)
        try:
            self.serve_until(lambda: bool(seen), timeout_s=timeout_s)
        finally:
            if before is None:
                del self._handlers[request.code]
            else:
                self._handlers[request.code] = before
        return seen[0]

    # bytes, for tests of the wire

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        try:
            self._socket.settimeout(self.timeout_s)
            self._socket.sendall(data)
        except TimeoutError as error:
            raise RemotingTimeout(f"{self.remote} takes no more bytes") from error
        except OSError as error:
            raise RemotingClosed(f"{self.remote} closed the connection: {error}") from error

    def receive_bytes(self, *, timeout_s: float | None = None) -> bytes:
        """Whatever bytes come next, unframed; ``b""`` when the peer has closed."""
        return self._read(self._deadline(timeout_s))

    def receive_command(self, *, timeout_s: float | None = None) -> Command:
        """The next command from the server, request or answer, not dispatched."""
        return self._next(self._deadline(timeout_s))

    def is_closed_by_peer(self, *, timeout_s: float | None = None) -> bool:
        """Whether the peer closes within the time; what it sends before is kept."""
        deadline = self._deadline(timeout_s)
        try:
            while self._more(deadline):
                pass
        except RemotingTimeout:
            return False
        return True

    # inside

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
        """An answer as it is; a request is served and gives None."""
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
        while not self._arrived:
            if not self._more(deadline):
                raise RemotingClosed(f"{self.remote} closed the connection")
        return self._arrived.popleft()

    def _more(self, deadline: float) -> bool:
        """Reads once; false when the peer has closed."""
        rest = self._splitter.rest_buffer()
        if rest is None:
            data = self._read(deadline)
            self._arrived += self._splitter.feed(data)
            return bool(data)
        with rest:
            count = self._wait(deadline, lambda: self._socket.recv_into(rest), 0)
        self._arrived += self._splitter.rest_written(count)
        return count > 0

    def _read(self, deadline: float) -> bytes:
        return self._wait(deadline, lambda: self._socket.recv(_READ_BYTES), b"")

    def _wait(self, deadline: float, read: Callable[[], T], closed: T) -> T:
        left = deadline - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            return read()
        except TimeoutError as error:
            raise RemotingTimeout(f"{self.remote} has not answered in time") from error
        except ConnectionError:
            return closed


def _connect(host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None) -> socket.socket:
    try:
        plain = socket.create_connection((host, port), timeout_s)
    except TimeoutError as error:
        raise RemotingTimeout(f"{host}:{port} does not accept in {timeout_s} s") from error
    except OSError as error:
        raise RemotingClosed(f"{host}:{port} cannot be reached: {error}") from error
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return tls.wrap_socket(plain, server_hostname=host) if tls else plain
