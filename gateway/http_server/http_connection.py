"""One HTTP connection of a console: reads a request and sends its answer, using h11."""

import logging
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import trio

from gateway.http_server.errors import ConsoleError
from gateway.http_server.settings import ConsoleSettings

log = logging.getLogger(__name__)

# h11 keeps request line and headers in memory until they are complete.
MAX_HEADER_BYTES: Final = 16 * 1024
RECEIVE_BUFFER_BYTES: Final = 4 * 1024
"""Bytes handled between two checkpoints. A chunk of one byte takes six and costs 15 us: 10 ms at most."""


@dataclass(frozen=True, slots=True)
class Page:
    """An answer that is not JSON."""

    content_type: str
    content: bytes
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """The head of a request; header names are in lower case."""

    method: str
    path: str
    query: str
    headers: dict[bytes, bytes]


class HttpConnection:
    """Reads one request from a stream and sends its answer, using h11."""

    def __init__(self, stream: trio.abc.Stream, settings: ConsoleSettings) -> None:
        import h11  # only servers with a console need it

        self._h11 = h11
        self._stream = stream
        self._settings = settings
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
        self._method = ""

    async def read_head(self) -> HttpRequest | None:
        """Return the head of the request; None if the client ended first. Raises ConsoleError, BrokenResourceError."""
        event = await self._next_event()
        if not isinstance(event, self._h11.Request):
            return None
        self._method = event.method.decode()
        target = event.target.decode("ascii", "replace")
        try:
            parts = urlsplit(target)
        except ValueError as error:
            raise ConsoleError("the request target is not a valid URL") from error
        return HttpRequest(self._method, parts.path, parts.query, dict(event.headers))

    async def read_body(self) -> bytearray | None:
        """Return the request's body; None if the client ended first. Raises ConsoleError, BrokenResourceError."""
        body = bytearray()
        while not isinstance(event := await self._next_event(), self._h11.EndOfMessage):
            if not isinstance(event, self._h11.Data):
                return None
            body += event.data
            if len(body) > self._settings.max_request_bytes:
                raise ConsoleError("the body is larger than [console] max_request_bytes", 413)
        return body

    async def send_answer(self, status: int, page: Page) -> None:
        """Send the answer, unless the client went away or does not read it in time."""
        headers = [
            ("Content-Type", page.content_type),
            ("Content-Length", str(len(page.content))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
            *page.headers,
            ("Connection", "close"),
        ]
        if self._http.our_state not in (self._h11.IDLE, self._h11.SEND_RESPONSE):
            return
        events = (
            self._h11.Response(status_code=status, headers=headers),
            self._h11.Data(data=b"" if self._method == "HEAD" else page.content),
            self._h11.EndOfMessage(),
        )
        data = b"".join(self._http.send(event) for event in events)
        with trio.move_on_after(self._settings.request_timeout_s):
            try:
                await self._stream.send_all(data)
                await self._end_stream()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                log.debug("console client disconnected before its answer")

    async def _end_stream(self) -> None:
        # Closing with unread data makes the kernel reset the connection, and the client may lose the answer.
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()
        for _ in range(self._settings.max_request_bytes // RECEIVE_BUFFER_BYTES + 1):
            if not await self._stream.receive_some(RECEIVE_BUFFER_BYTES):
                return

    async def _next_event(self) -> Any:
        while True:
            try:
                event = self._http.next_event()
            except self._h11.RemoteProtocolError as error:
                raise ConsoleError(str(error), error.error_status_hint) from error
            if event is not self._h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                go_on = self._h11.InformationalResponse(status_code=100, headers=[])
                await self._stream.send_all(self._http.send(go_on))
            self._http.receive_data(bytes(await self._stream.receive_some(RECEIVE_BUFFER_BYTES)))
