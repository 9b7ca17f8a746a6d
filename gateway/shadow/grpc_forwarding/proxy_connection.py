"""The connection of a session to the Proxy: HTTP/2 on the client's side.

It opens no stream by itself: `forwarded_call.py` opens those that a client has opened, under their numbers. A Proxy
that stops answering is found out with PING: after SILENCE_S in which it was sent something and sent nothing back.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, cast

import trio

from gateway.grpc_front.http2_connection import Fields, Stream, StreamHandler, violation
from gateway.grpc_front.http2_frames import PREFACE, Flag, Kind, SettingCode, encode_frame
from gateway.shadow.grpc_forwarding.relay_connection import RelayConnection, RelayHandler

SILENCE_S: Final = 30.0
"""Time after which a Proxy that answers nothing is sent a PING. Clients call at least every 10 s (Heartbeat)."""
MAX_PING_S: Final = 10.0
_PING: Final = encode_frame(Kind.PING, 0, 0, bytes(8))
_MAX_STREAMS: Final = (1 << 31) - 1


class AnswerHandler(RelayHandler, Protocol):
    """The Proxy's side of a call."""

    def receive_headers(self, fields: Fields, *, is_last: bool) -> None:
        """Take the headers or the trailers of the answer."""


class ProxyConnection(RelayConnection):
    """A connection to the Proxy. ``on_goodbye`` is called with the last stream that it will carry out."""

    __slots__ = (
        "_is_pinged",
        "_on_end",
        "_on_goodbye",
        "_quiet_since_s",
        "greeted",
        "max_streams",
    )

    def __init__(self, on_goodbye: Callable[[int], None], on_end: Callable[[str], None], *parts: Any) -> None:
        super().__init__(_refuse_stream, 0, *parts)
        self._has_preface = True  # Only clients send one.
        self._on_goodbye = on_goodbye
        self._on_end = on_end
        self._quiet_since_s: float | None = None
        """The time of the first bytes to which the Proxy has sent nothing back."""
        self._is_pinged = False
        self.greeted = trio.Event()
        """Set when the Proxy has told its settings, and when the connection has ended."""
        self.max_streams = _MAX_STREAMS
        """Streams that the Proxy allows at a time."""

    def _greeting(self) -> bytes:
        return PREFACE + super()._greeting()

    # -- streams ------------------------------------------------------------------------------------------------

    def open_call(self, stream_id: int, headers: bytes, handler: AnswerHandler) -> None:
        """Open a stream with the next number of a client."""
        self._last_stream_id = stream_id
        stream = self._streams[stream_id] = Stream(self._peer_window_bytes)
        stream.handler = handler
        self._write_frame(self._encode_headers(stream_id, headers))

    def finish_request(self, stream_id: int) -> None:
        """End the request of a call after its data."""
        self.send_trailers(stream_id, b"")

    def _encode_end(self, stream_id: int, trailers: bytes) -> bytes:
        """Return the end of a request, which has no trailers."""
        return encode_frame(Kind.DATA, Flag.END_STREAM, stream_id)

    def _finish_stream(self, stream_id: int, stream: Stream) -> None:
        """Take note that a request is complete; its answer is still to come."""
        handler = stream.handler
        super()._finish_stream(stream_id, stream)
        stream.handler = handler

    def _end_request(self, stream_id: int, stream: Stream) -> None:
        """Take note that an answer is complete."""
        stream.is_peer_done = True
        if stream.handler is not None:
            stream.handler.end_request()
        stream.handler = None
        if stream.is_answered:
            self._streams.pop(stream_id, None)

    def _take_fields(self, stream_id: int, fields: Fields, *, is_last: bool) -> None:
        if stream_id > self._last_stream_id:
            raise violation(f"an answer on stream {stream_id}, which was not opened")
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        self._check_receives(stream_id, stream)
        if stream.handler is not None:
            cast(AnswerHandler, stream.handler).receive_headers(fields, is_last=is_last)
        if is_last:
            self._end_request(stream_id, stream)

    def _count_reset(self) -> None:
        """Any number is allowed: a client that resets calls is limited on its own connection."""

    # -- the connection -----------------------------------------------------------------------------------------

    def _note_settings(self, values: Mapping[int, int]) -> None:
        self.max_streams = values.get(SettingCode.MAX_CONCURRENT_STREAMS, self.max_streams)
        self.greeted.set()

    def _note_goodbye(self, last_stream_id: int) -> None:
        self._on_goodbye(last_stream_id)

    def _feed(self, data: bytes) -> bool:
        if data:
            self._quiet_since_s, self._is_pinged = None, False
        return super()._feed(data)

    def write(self, data: Any) -> None:
        """Send bytes, and wait for some of the Proxy from now on."""
        if self._quiet_since_s is None:
            self._quiet_since_s = trio.current_time()
        super().write(data)

    def check_alive(self, now_s: float) -> None:
        """Ask a Proxy that is quiet for a sign of life, and close the connection to one that gives none."""
        quiet_since_s = self._quiet_since_s
        if self.closed or quiet_since_s is None:
            return
        if self._is_pinged:
            if now_s - quiet_since_s > MAX_PING_S:
                self.close(f"the Proxy has not answered for {SILENCE_S + MAX_PING_S:.0f} s")
        elif now_s - quiet_since_s > SILENCE_S:
            self._is_pinged, self._quiet_since_s = True, now_s
            self._write_frame(_PING)

    def close(self, reason: str = "") -> None:
        """Close at once; calls in progress end with UNAVAILABLE."""
        if self.closed:
            return
        super().close(reason)
        self.greeted.set()
        self._on_end(reason)


def _refuse_stream(*_: Any) -> StreamHandler | None:
    raise violation("a server cannot open streams")
