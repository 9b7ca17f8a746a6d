"""The connection of a client: it opens one of its own to the Proxy, and ends with it.

The client is read only once the Proxy has answered. If it cannot be reached, the connection is closed at once, which a
client takes like a refused connection: it tries again after a while of its own.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, cast

import trio

from gateway.grpc_front.http2_connection import Fields, StreamHandler
from gateway.grpc_front.http2_frames import ErrorCode
from gateway.shadow.grpc_forwarding.forwarded_call import ForwardedCall, RequestHalf
from gateway.shadow.grpc_forwarding.proxy_connection import ProxyConnection
from gateway.shadow.grpc_forwarding.relay_connection import RelayConnection
from gateway.shadow.proxy.client_listener import connection_numbers

OpenCall = Callable[["ClientConnection", ProxyConnection, int, Fields], RequestHalf | None]
"""Begins a call on both sides; returns None if it was answered already."""
Dial = Callable[["ClientConnection", trio.Nursery], Awaitable[ProxyConnection | None]]
"""Opens the connection to the Proxy, which runs in the nursery; returns None if that failed."""
_POLL_S: Final = 0.01
PROXY_LOST: Final = "the primary's Proxy has closed its connection"


class ClientConnection(RelayConnection):
    """A client's side of a session."""

    __slots__ = ("_dial", "_open_call", "long_work", "number")

    def __init__(self, dial: Dial, open_call: OpenCall, max_streams: int, *parts: Any) -> None:
        super().__init__(lambda *_: None, max_streams, *parts)
        self._dial = dial
        self._open_call = open_call
        self.number = next(connection_numbers)
        self.long_work = trio.Lock()
        """Held by the call of this client whose turn it is for work that takes long."""

    @property
    def proxy(self) -> ProxyConnection | None:
        """The connection to the Proxy; None before it is open."""
        return cast(ProxyConnection | None, self.partner)

    async def run(self) -> None:
        """Serve the client until either side closes."""
        async with trio.open_nursery() as nursery:
            proxy = await self._dial(self, nursery)
            if proxy is None:
                self.close("the Proxy cannot be reached")
                return
            self.partner, proxy.partner = proxy, self
            self._max_streams = min(self._max_streams, proxy.max_streams)
            if proxy.closed:
                self.close(PROXY_LOST)
            await super().run()
            proxy.close("the client has gone")
            self.partner = proxy.partner = None
            nursery.cancel_scope.cancel()

    def _accept_stream(self, stream_id: int, fields: Fields) -> StreamHandler | None:
        assert self.proxy is not None, "the client is read after the Proxy was reached"
        return self._open_call(self, self.proxy, stream_id, fields)

    # -- the end of the Proxy's side ----------------------------------------------------------------------------

    def take_goodbye(self, last_stream_id: int) -> None:
        """Tell the client that the Proxy carries out no later streams; those that it has not seen can be sent again."""
        self.announce_end()
        for stream_id in [number for number in self._streams if number > last_stream_id]:
            self.reset_stream(stream_id, ErrorCode.REFUSED_STREAM)

    def leave(self, reason: str, linger_s: float) -> None:
        """End after the Proxy's connection: what the client has not read yet is delivered within ``linger_s``."""
        self.announce_end()
        self._nursery.start_soon(self._close_later, reason, linger_s)

    async def _close_later(self, reason: str, linger_s: float) -> None:
        with trio.move_on_after(linger_s):
            # Poll: an event would have to be set with everything that leaves, only for this end.
            while not self.closed and (  # noqa: ASYNC110
                self._output_bytes or self._queued_bytes or self.has_running_tasks
            ):
                await trio.sleep(_POLL_S)
        self.close(reason)

    # -- memory and time ----------------------------------------------------------------------------------------

    def calls(self) -> Iterator[ForwardedCall]:
        """Yield the calls whose answers are not complete."""
        for stream in self._streams.values():
            if stream.handler is not None:
                yield cast(RequestHalf, stream.handler).call

    def check_times(self, now_s: float) -> None:
        """End calls whose deadline is long over, and a session whose Proxy is silent."""
        if self.proxy is None:
            return
        for call in [call for call in self.calls() if call.is_overdue(now_s)]:
            call.expire()
        self.proxy.check_alive(now_s)

    def note_large_input(self, size: int) -> None:
        """Count the growth of unfinished messages of the Proxy."""
        self._on_large_input(size)

    def limit_waiting(self, handler: StreamHandler, added: int) -> None:
        """Refuse an answer with which those that wait to be translated take too much memory."""
        self._limit_unfinished(handler, added)

    def note_large_output(self, size: int) -> None:
        """Count the growth of what the Proxy has not read."""
        self._on_large_output(size)

    @property
    def input_bytes(self) -> int:
        """Bytes of unfinished messages of both sides."""
        proxy = self.proxy
        return super().input_bytes + (0 if proxy is None else proxy.input_bytes)

    @property
    def output_bytes(self) -> int:
        """Bytes that either side has not read yet."""
        proxy = self.proxy
        return super().output_bytes + (0 if proxy is None else proxy.output_bytes)
