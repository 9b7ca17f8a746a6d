"""A namesrv and broker that pass everything on to real ones, and note the codes of the requests."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from socket import SHUT_WR, create_connection, socket
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Final

from codec.errors import FrameError
from codec.frames import FrameSplitter
from compat_tests.endpoints import Endpoint
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.server import split_address

NO_FRAME: Final = -1
"""Stands for bytes that are no frame, and for everything after them."""


class RecordingProxy:
    """The address of the proxy's namesrv, and the codes of all requests to it and to the broker."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._namesrv_port, self._broker_port = find_server_ports()
        self.namesrv = f"127.0.0.1:{self._namesrv_port}"
        self.codes: set[int] = set()
        self._endpoint = endpoint
        # Both ports have five digits, so frames keep their lengths.
        self._rewritten = endpoint.broker.encode(), f"127.0.0.1:{self._broker_port}".encode()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Serve until the block ends."""
        targets = {self._namesrv_port: self._endpoint.namesrv, self._broker_port: self._endpoint.broker}
        with ExitStack() as stack:
            for port, target in targets.items():
                server = stack.enter_context(_Listener(port, self, target))
                threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
                stack.callback(server.shutdown)
            yield

    def rewrite(self, answer: bytes) -> bytes:
        """Return an answer in which the broker has the proxy's address."""
        return answer.replace(*self._rewritten)


class _Listener(ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int, proxy: RecordingProxy, target: str) -> None:
        self.proxy, self.target = proxy, target
        super().__init__(("127.0.0.1", port), _Connection)


class _Connection(BaseRequestHandler):
    server: _Listener

    def handle(self) -> None:
        with suppress(OSError), create_connection(split_address(self.server.target)) as upstream:
            answers = threading.Thread(target=self._pass_answers, args=(upstream,), daemon=True)
            answers.start()
            self._pass_requests(upstream)
            answers.join()

    def _pass_requests(self, upstream: socket) -> None:
        proxy, splitter = self.server.proxy, FrameSplitter()
        with suppress(OSError):
            while data := self.request.recv(65536):
                try:
                    proxy.codes |= {each.code for each in splitter.feed(data) if not each.is_response}
                except (FrameError, ValueError):
                    proxy.codes.add(NO_FRAME)
                upstream.sendall(data)
        with suppress(OSError):
            upstream.shutdown(SHUT_WR)

    def _pass_answers(self, upstream: socket) -> None:
        pending = b""
        with suppress(OSError):
            while data := upstream.recv(65536):
                pending += data
                while len(pending) >= 4 and len(pending) >= (size := 4 + int.from_bytes(pending[:4])):
                    self.request.sendall(self.server.proxy.rewrite(pending[:size]))
                    pending = pending[size:]
        with suppress(OSError):
            self.request.shutdown(SHUT_WR)
