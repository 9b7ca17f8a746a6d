"""An HTTP console on one port: JSON routes that parts register, `/status`, `/metrics`, `/healthz`.

It serves one request per connection; size, number and duration are bounded.
"""

import hmac
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from inspect import isawaitable
from types import ModuleType
from typing import Any, Final, Protocol, cast
from urllib.parse import parse_qsl, urlsplit

import orjson
import trio

from gateway.console.errors import ConsoleError
from gateway.console.exposition import CONTENT_TYPE, render_exposition
from gateway.console.optional_packages import import_optional
from gateway.console.settings import ConsoleSettings
from gateway.runtime.metrics import MetricRegistry
from gateway.runtime.process import ListenError

log = logging.getLogger(__name__)

JSON: Final = "application/json"
# h11 keeps request line and headers in memory until they are complete.
MAX_HEADER_BYTES: Final = 16 * 1024
RECEIVE_BUFFER_BYTES: Final = 64 * 1024
OPEN_PATHS: Final = frozenset({"/healthz"})
"""Served without a token: they reveal nothing, and the probes of orchestrators have no token."""


@dataclass(frozen=True, slots=True)
class Page:
    """An answer that is not JSON."""

    content_type: str
    content: bytes


Answer = dict[str, Any] | Page
Route = Callable[[dict[str, Any]], Answer | Awaitable[Answer]]
Section = Callable[[], Any]


class RouteRegistry(Protocol):
    """The side of a console on which other parts register their routes."""

    def get(self, path: str, function: Route) -> None:
        """Serve GET requests of a path."""

    def post(self, path: str, function: Route) -> None:
        """Serve POST requests of a path."""


@dataclass(slots=True)
class _HttpRequest:
    method: str
    target: str
    headers: dict[bytes, bytes]
    body: bytearray = field(default_factory=bytearray)


class Console:
    """An HTTP server for routes, which are plain or async functions from a dict to a dict.

    A GET route receives the query (texts; of a repeated name the last), a POST route the JSON object of the body, or
    an empty dict. `/metrics` shows the registry's metrics with ``metric_prefix`` before their names.
    """

    def __init__(self, settings: ConsoleSettings, metrics: MetricRegistry, metric_prefix: str) -> None:
        self.settings = settings
        self._routes: dict[tuple[str, str], Route] = {}
        self._sections: dict[str, Section] = {}
        self._busy = trio.Semaphore(settings.max_connections)
        self.get("/healthz", lambda _: {"ok": True})
        self.get("/status", lambda _: self.collect_status())
        self._metric_registry = metrics
        self._metric_prefix = metric_prefix
        self.get("/metrics", self._metrics_page)

    def get(self, path: str, function: Route) -> None:
        """Serve GET requests of a path. Raises ValueError if the path is served already."""
        self._add_route("GET", path, function)

    def post(self, path: str, function: Route) -> None:
        """Serve POST requests of a path. Raises ValueError if the path is served already."""
        self._add_route("POST", path, function)

    def add_section(self, name: str, function: Section) -> None:
        """Show the result of ``function`` at `/status` under a name; it must be quick.

        Raises ValueError for a known name.
        """
        if name in self._sections:
            raise ValueError(f"section {name!r} exists already")
        self._sections[name] = function

    def collect_status(self) -> dict[str, Any]:
        """Return the present value of every section."""
        return {name: function() for name, function in self._sections.items()}

    async def run(self, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled; report host and port when listening.

        Raises OSError if the port is not available, ClickException without the libraries of the extra `shadow`.
        """
        import_optional("h11")
        try:
            listeners = await trio.open_tcp_listeners(self.settings.port, host=self.settings.host)
        except OSError as error:
            raise ListenError(self.settings.host, self.settings.port, "console.port", error) from error
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(self._accept_connections, listener)
            task_status.started(listeners[0].socket.getsockname()[:2])

    async def serve_connection(self, stream: trio.abc.Stream) -> None:
        """Answer one request of a connection, and close it."""
        h11 = import_optional("h11")
        exchange = _HttpConnection(h11, stream, self.settings)
        async with stream:
            try:
                with trio.move_on_after(self.settings.request_timeout_s) as limit:
                    asked = await exchange.read_request()
                if limit.cancelled_caught:
                    await exchange.send_answer(408, _error_page("the request did not arrive in time"))
                elif asked is not None:
                    await exchange.send_answer(*await self._respond(asked))
            except ConsoleError as error:
                await exchange.send_answer(error.status, _error_page(str(error)))
            except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
                log.debug("console client disconnected")

    def _add_route(self, method: str, path: str, function: Route) -> None:
        if (method, path) in self._routes:
            raise ValueError(f"{method} {path} is served already")
        self._routes[method, path] = function

    async def _metrics_page(self, _: dict[str, Any]) -> Page:
        return Page(CONTENT_TYPE, await render_exposition(self._metric_registry, self._metric_prefix))

    async def _accept_connections(self, listener: trio.SocketListener) -> None:
        async with listener, trio.open_nursery() as nursery:
            while True:
                stream = await _accept_stream(listener)
                await self._busy.acquire()
                nursery.start_soon(self._serve_and_free, stream)

    async def _serve_and_free(self, stream: trio.abc.Stream) -> None:
        try:
            await self.serve_connection(stream)
        except Exception:
            log.exception("console connection failed")
        finally:
            self._busy.release()

    async def _respond(self, asked: _HttpRequest) -> tuple[int, Page]:
        try:
            self._check_access(asked)
            route, given = self._find_route(asked)
            with trio.move_on_after(self.settings.answer_timeout_s):
                answer = route(given)
                if isawaitable(answer):
                    answer = await answer
                return 200, answer if isinstance(answer, Page) else _json_page(answer)
            raise ConsoleError("no answer within [console] answer_timeout_s", 504)
        except ConsoleError as error:
            return error.status, _error_page(str(error))
        except Exception as error:
            log.exception("console route failed", extra={"target": asked.target})
            return 500, _error_page(f"{type(error).__name__}: {error}")

    def _check_access(self, asked: _HttpRequest) -> None:
        token = self.settings.token
        given = asked.headers.get(b"authorization", b"")
        if token and urlsplit(asked.target).path not in OPEN_PATHS:
            if not hmac.compare_digest(given, b"Bearer " + token.encode()):
                raise ConsoleError("the console requires its token (Authorization: Bearer …)", 401)
        elif b"origin" in asked.headers:
            # Otherwise any web page that is open in a browser on this machine could control the gateway.
            raise ConsoleError("requests from web pages are refused", 403)

    def _find_route(self, asked: _HttpRequest) -> tuple[Route, dict[str, Any]]:
        parts = urlsplit(asked.target)
        method = "GET" if asked.method == "HEAD" else asked.method
        route = self._routes.get((method, parts.path))
        if route is not None:
            return route, _parse_object(asked.body) if method == "POST" else dict(parse_qsl(parts.query))
        known = sorted({path for _, path in self._routes})
        if parts.path in known:
            raise ConsoleError(f"{asked.method} is not served at {parts.path}", 405)
        raise ConsoleError(f"no route {parts.path}; known routes: {', '.join(known)}", 404)


class _HttpConnection:
    """Reads one request from a stream and sends its answer, using h11."""

    def __init__(self, h11: ModuleType, stream: trio.abc.Stream, settings: ConsoleSettings) -> None:
        self._h11 = h11
        self._stream = stream
        self._settings = settings
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
        self._method = ""

    async def read_request(self) -> _HttpRequest | None:
        """Return the whole request; None if the client ended first. Raises ConsoleError, BrokenResourceError."""
        asked: _HttpRequest | None = None
        while True:
            event = await self._next_event()
            if isinstance(event, self._h11.Request):
                self._method = event.method.decode()
                asked = _HttpRequest(
                    self._method, event.target.decode("ascii", "replace"), dict(event.headers)
                )
            elif isinstance(event, self._h11.Data) and asked is not None:
                asked.body += event.data
                if len(asked.body) > self._settings.max_request_bytes:
                    raise ConsoleError("the body is larger than [console] max_request_bytes", 413)
            elif isinstance(event, self._h11.EndOfMessage):
                return asked
            else:
                return None

    async def send_answer(self, status: int, page: Page) -> None:
        """Send the answer, unless the client went away or does not read it in time."""
        headers = [
            ("Content-Type", page.content_type),
            ("Content-Length", str(len(page.content))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
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
            self._http.receive_data(await self._stream.receive_some(RECEIVE_BUFFER_BYTES))


async def _accept_stream(listener: trio.SocketListener) -> trio.SocketStream:
    while True:
        try:
            return await listener.accept()
        except OSError as error:
            # Out of file descriptors: clients' traffic goes first, and the console waits.
            log.warning("console cannot accept a connection", extra={"error": str(error)})
            await trio.sleep(1)


def _parse_object(body: bytes | bytearray) -> dict[str, Any]:
    if not body:
        return {}
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ConsoleError(f"the body is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise ConsoleError("the body must be a JSON object")
    return cast(dict[str, Any], given)


def _json_page(answer: Any) -> Page:
    return Page(JSON, orjson.dumps(answer, option=orjson.OPT_NON_STR_KEYS))


def _error_page(text: str) -> Page:
    return _json_page({"error": text})
