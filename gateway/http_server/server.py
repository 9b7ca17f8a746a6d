"""An HTTP console on one port: JSON routes that parts register, `/status`, `/metrics`, `/healthz`.

It serves one request per connection; size, number and duration are bounded. `access.py` decides who may send it.
Clients that are slow to send or to read delay no others: a connection takes a worker only while its request is worked
on, and of the connections that wait for their clients the oldest is closed when there are too many.
"""

import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from inspect import isawaitable
from typing import Any, Final, Protocol, cast
from urllib.parse import parse_qsl

import orjson
import trio

from gateway.http_server.access import READING_METHODS, Caller, ConsoleAccess
from gateway.http_server.errors import ConsoleError
from gateway.http_server.exposition import CONTENT_TYPE, render_exposition
from gateway.http_server.http_connection import HttpConnection, HttpRequest, Page
from gateway.http_server.settings import ConsoleSettings
from gateway.runtime.listener_tls import listener_acceptor
from gateway.runtime.metrics import Metric, MetricRegistry
from gateway.runtime.process import ListenError
from remoting.tls_acceptor import RELOAD_INTERVAL_S, TlsAcceptor
from remoting.transport import Buffer, SocketTransport, Transport

log = logging.getLogger(__name__)

JSON: Final = "application/json"
MAX_IDLE_CONNECTIONS: Final = 64
"""Connections that may wait for their clients, to send a request or to read the answer. One more closes the oldest."""
MAX_QUOTED_CHARS: Final = 100

Answer = dict[str, Any] | Page
Route = Callable[[dict[str, Any]], Answer | Awaitable[Answer]]
Section = Callable[[], Any]
OpenPage = Callable[[str, str, str], Page]
"""From the path, the client's host, and the host at which its request arrived; raises ConsoleError."""


class RouteRegistry(Protocol):
    """The side of a console on which other parts register their routes."""

    def get(self, path: str, function: Route) -> None:
        """Serve GET requests of a path."""

    def post(self, path: str, function: Route) -> None:
        """Serve POST requests of a path."""


class Console:
    """An HTTP server for routes, which are plain or async functions from a dict to a dict.

    A GET route receives the query (texts; of a repeated name the last), a POST route the JSON object of the body, or
    an empty dict. `/metrics` shows the registry's metrics with ``metric_prefix`` before their names.
    ``port_setting`` names the port in errors. ``needs_action_header``: see `access.py`. ``acceptor`` adds TLS to
    connections; without one the settings say how.
    """

    def __init__(
        self,
        settings: ConsoleSettings,
        metrics: MetricRegistry,
        metric_prefix: str,
        port_setting: str = "console.port",
        *,
        needs_action_header: bool = True,
        acceptor: TlsAcceptor | None = None,
    ) -> None:
        self.settings = settings
        self._port_setting = port_setting
        self._routes: dict[tuple[str, str], Route] = {}
        self._probes: set[str] = set()
        self._open_pages: dict[str, OpenPage] = {}
        self._sections: dict[str, Section] = {}
        self._access = ConsoleAccess(settings, needs_action_header=needs_action_header)
        self._acceptor = acceptor or listener_acceptor(settings.tls, "console.tls")
        self._workers = Workers(settings.max_connections)
        self._idle = IdleConnections(MAX_IDLE_CONNECTIONS)
        self._metric_registry = metrics
        self._metric_prefix = metric_prefix
        metrics.register(self._collect_metrics)
        self.add_probe("/healthz", lambda _: {"ok": True})
        self.get("/status", lambda _: self.collect_status())
        self.get("/metrics", self._metrics_page)

    def get(self, path: str, function: Route) -> None:
        """Serve GET requests of a path. Raises ValueError if the path is served already."""
        self._add_route("GET", path, function)

    def post(self, path: str, function: Route) -> None:
        """Serve POST requests of a path. Raises ValueError if the path is served already."""
        self._add_route("POST", path, function)

    def add_probe(self, path: str, function: Route) -> None:
        """Serve GET requests of a path to anybody, without token or free worker, as orchestrators' probes need.

        The function must be quick and reveal nothing. Raises ValueError if the path is served already.
        """
        self._add_route("GET", path, function)
        self._probes.add(path)

    def add_open_pages(self, prefix: str, function: OpenPage) -> None:
        """Serve GET requests of all paths that begin with a prefix to anybody, as `add_probe` does."""
        self._open_pages[prefix] = function

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

        Raises OSError if the port is not available.
        """
        # Loaded before the first request: it takes 0.1 s, for which everybody would wait.
        import h11  # noqa: F401
        import prometheus_client  # noqa: F401

        try:
            listeners = await trio.open_tcp_listeners(self.settings.port, host=self.settings.host)
        except OSError as error:
            raise ListenError(self.settings.host, self.settings.port, self._port_setting, error) from error
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(self._accept_connections, listener)
            nursery.start_soon(self._reload_certificate)
            task_status.started(listeners[0].socket.getsockname()[:2])

    async def _reload_certificate(self) -> None:
        while True:
            await trio.sleep(RELOAD_INTERVAL_S)
            await self._acceptor.reload_if_changed()

    async def serve_connection(self, stream: trio.abc.Stream, address: str = "", local: str = "") -> None:
        """Answer one request of a connection from an address to a host of this machine, and close it."""
        import h11  # only servers with a console need it

        connection = HttpConnection(stream, self.settings)
        async with stream:
            try:
                page = await self._receive_and_work(connection, address, local)
            except ConsoleError as error:
                page = error.status, _error_page(error)
            except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
                log.debug("console client disconnected")
                return
            if page is not None:
                with self._idle.wait_for_client():
                    await connection.send_answer(*page)

    async def _receive_and_work(
        self, connection: HttpConnection, address: str, local: str
    ) -> tuple[int, Page] | None:
        """Return status and answer; None if the client ended first, or was too slow while others were waiting."""
        received: tuple[HttpRequest, Route, dict[str, Any]] | None = None
        caller: Caller | None = None
        with self._idle.wait_for_client(), trio.move_on_after(self.settings.request_timeout_s) as limit:
            request = await connection.read_head()
            if request is None:
                return None
            if not self._is_open(request.path):
                caller = await self._access.authorize(request, address)
            route = self._find_route(request, address, local)
            body = await connection.read_body()
            if body is None:
                return None
            parameters = _parse_object(body) if request.method == "POST" else dict(parse_qsl(request.query))
            received = (request, route, parameters)
        if limit.cancelled_caught:
            raise ConsoleError("the request did not arrive in time", 408)
        if received is None:
            return None
        status, page = await self._work(*received)
        request = received[0]
        if caller is not None and request.method not in READING_METHODS:
            facts = {"user": caller.name, "remote": address, "path": request.path, "status": status}
            log.info("console action", extra=facts)
        return status, page

    async def _work(self, request: HttpRequest, route: Route, parameters: dict[str, Any]) -> tuple[int, Page]:
        try:
            with trio.move_on_after(self.settings.answer_timeout_s):
                if self._is_open(request.path):
                    return 200, await _call_route(route, parameters)
                async with self._workers.occupy_worker():
                    return 200, await _call_route(route, parameters)
            raise ConsoleError("no answer within [console] answer_timeout_s", 504)
        except ConsoleError as error:
            return error.status, _error_page(error)
        except Exception as error:
            log.exception("console route failed", extra={"path": request.path})
            return 500, _error_page(ConsoleError(f"{type(error).__name__}: {error}"))

    def _add_route(self, method: str, path: str, function: Route) -> None:
        if (method, path) in self._routes:
            raise ValueError(f"{method} {path} is served already")
        self._routes[method, path] = function

    async def _metrics_page(self, _: dict[str, Any]) -> Page:
        return Page(CONTENT_TYPE, await render_exposition(self._metric_registry, self._metric_prefix))

    def _collect_metrics(self) -> Iterator[Metric]:
        yield Metric(
            "console_evicted_connections_total",
            self._idle.evicted,
            "Connections of the console closed because newer ones needed their place.",
        )

    async def _accept_connections(self, listener: trio.SocketListener) -> None:
        async with listener, trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._serve_safely, await _accept_socket(listener))

    async def _serve_safely(self, sock: socket.socket) -> None:
        try:
            transport = SocketTransport(sock)
        except OSError:  # The client has already disconnected.
            sock.close()
            return
        try:
            stream = await self._open_stream(sock, transport)
            if stream is not None:
                await self.serve_connection(stream, transport.remote[0], transport.local[0])
        except Exception:
            log.exception("console connection failed")

    async def _open_stream(self, sock: socket.socket, transport: SocketTransport) -> trio.abc.Stream | None:
        """Return the stream for a new client, with TLS if it begins so; None for one that is not served."""
        accepted = None
        with self._idle.wait_for_client(), trio.move_on_after(self.settings.request_timeout_s):
            try:
                accepted = await self._acceptor.accept(transport)
            except OSError as error:
                log.debug("console connection refused", extra={"reason": str(error)})
        if accepted is None:
            transport.close()
            return None
        if accepted is transport:
            return trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        return TransportStream(accepted)

    def _is_open(self, path: str) -> bool:
        """Tell whether a path is served without token and worker."""
        return path in self._probes or self._open_page(path) is not None

    def _open_page(self, path: str) -> OpenPage | None:
        return next((page for prefix, page in self._open_pages.items() if path.startswith(prefix)), None)

    def _find_route(self, request: HttpRequest, address: str, local: str) -> Route:
        method = "GET" if request.method == "HEAD" else request.method
        route = self._routes.get((method, request.path))
        if route is not None:
            return route
        open_page = self._open_page(request.path)
        if open_page is not None and method == "GET":
            return lambda _: open_page(request.path, address, local)
        paths = sorted({path for _, path in self._routes} | self._open_pages.keys())
        shown = request.path[:MAX_QUOTED_CHARS]
        if request.path in paths or open_page is not None:
            raise ConsoleError(f"{method[:MAX_QUOTED_CHARS]} is not served at {shown}", 405)
        raise ConsoleError(f"no route {shown}; known routes: {', '.join(paths)}", 404)


class Workers:
    """Bounds the requests that are worked on at a time. As many more wait; beyond that they are refused."""

    def __init__(self, workers: int) -> None:
        self._free = trio.CapacityLimiter(workers)

    @asynccontextmanager
    async def occupy_worker(self) -> AsyncIterator[None]:
        """Wait for a free worker and hold it. Raises ConsoleError."""
        if self._free.statistics().tasks_waiting >= self._free.total_tokens:
            raise ConsoleError("[console] max_connections requests are worked on, and as many wait", 503)
        async with self._free:
            yield


class IdleConnections:
    """Bounds the connections that wait for their clients: one more than ``most`` cancels the oldest."""

    def __init__(self, most: int) -> None:
        self.evicted = 0
        self._most = most
        self._scopes: dict[trio.CancelScope, None] = {}  # oldest first

    @contextmanager
    def wait_for_client(self) -> Iterator[None]:
        """Count as waiting for the client; the block ends early when newer connections need the place."""
        with trio.CancelScope() as scope:
            self._scopes[scope] = None
            if len(self._scopes) > self._most:
                oldest = next(iter(self._scopes))
                del self._scopes[oldest]
                oldest.cancel()
                self.evicted += 1
            try:
                yield
            finally:
                self._scopes.pop(scope, None)


async def _call_route(route: Route, parameters: dict[str, Any]) -> Page:
    answer = route(parameters)
    if isawaitable(answer):
        answer = await answer
    return answer if isinstance(answer, Page) else _json_page(answer)


async def _accept_socket(listener: trio.SocketListener) -> socket.socket:
    while True:
        try:
            stream = await listener.accept()
            return socket.socket(fileno=stream.socket.detach())
        except OSError as error:
            # Out of file descriptors: clients' traffic goes first, and the console waits.
            log.warning("console cannot accept a connection", extra={"error": str(error)})
            await trio.sleep(1)


def _parse_object(body: bytes | bytearray) -> dict[str, Any]:
    if not body:
        return {}
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ConsoleError(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConsoleError("the body must be a JSON object")
    return cast(dict[str, Any], value)


def _json_page(answer: Any) -> Page:
    return Page(JSON, orjson.dumps(answer, option=orjson.OPT_NON_STR_KEYS))


def _error_page(error: ConsoleError) -> Page:
    page = _json_page({"error": str(error)})
    return Page(page.content_type, page.content, error.headers)


DEFAULT_READ_BYTES = 4096


class TransportStream(trio.abc.Stream):
    """A stream over a transport, such as TLS. An OSError of the transport becomes a BrokenResourceError."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.remote_address = transport.remote[0]

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        try:
            return await self._transport.receive(max_bytes or DEFAULT_READ_BYTES)
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def send_all(self, data: Buffer) -> None:
        try:
            await self._transport.send_all(data)
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._transport.close()
        await trio.lowlevel.checkpoint()
