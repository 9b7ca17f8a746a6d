"""HTTP/2 on one connection, on the server's side: streams, flow control, and the bounds of both.

The library h2 keeps the state of the protocol; `remoting.frame_connection.FrameConnection`, whose place this class
takes in a `RemotingServer`, reads, buffers, limits and closes. What a stream means is decided by its `StreamHandler`.

Theory of operation
-------------------
Input is fed to h2 in slices, and after ``max_turn_s`` the rest waits for the next turn, so that a peer that sends
thousands of tiny frames delays no other for long. Received data is acknowledged at once as long as its stream's handler
takes it; what handlers hold of unfinished messages is limited for the connection as a whole. Answers for which the
peer has opened no window wait in the outbox of their stream; they count as unread answers of the connection.

Any violation of the protocol ends this connection with GOAWAY, and no other. A peer that opens streams only to reset
them is one, because each of them costs more here than there.
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Final, Protocol

from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame, GoAwayFrame, SettingsFrame

from codec.errors import FrameError
from remoting.frame_connection import FrameConnection, turn_seconds

log = logging.getLogger(__name__)

Headers = list[tuple[str, str]]

FEED_BYTES: Final = 4096
"""Input that h2 takes at a time. The smallest frames are of 9 bytes, and take 20 µs each."""
STREAM_WINDOW_BYTES: Final = 1024 * 1024
CONNECTION_WINDOW_BYTES: Final = 4 * 1024 * 1024
_FRAME_HEAD_BYTES: Final = 9
_DEFAULT_WINDOW_BYTES: Final = 65_535
MAX_HEADER_LIST_BYTES: Final = 64 * 1024
"""Longest list of headers of a request, unpacked."""
MAX_HEADER_TABLE_BYTES: Final = 4096
"""Headers of answers that are remembered, so that they can be sent as a number; the default of HTTP/2."""
FREE_RESETS: Final = 200
"""Streams that a peer may reset at any time; beyond them, at most as many as it lets end."""
MAX_SETTINGS_FRAMES: Final = 64
"""SETTINGS of one connection. Each may change the windows of all streams: 0.5 ms with 990 of them. Clients send ten."""


class StreamHandler(Protocol):
    """One stream from its headers to its end."""

    @property
    def held_bytes(self) -> int:
        """Bytes of an unfinished message."""

    def receive(self, data: bytes) -> None:
        """Take a part of the request's body."""

    def end_request(self) -> None:
        """Take note that the request is complete."""

    def cancel(self) -> None:
        """Give up: the peer has reset the stream, or the connection is closed."""


OpenStream = Callable[["Http2Connection", int, dict[str, str]], StreamHandler | None]
"""Returns the handler of a new stream from its headers; None if it was answered already."""


class _Outbox:
    """The rest of an answer on one stream. ``trailers`` end the stream after the last chunk."""

    __slots__ = ("chunks", "trailers")

    def __init__(self) -> None:
        self.chunks: deque[memoryview] = deque()
        self.trailers: Headers | None = None


class _ServerState(H2Connection):
    """The state of h2. Of the streams that are over it remembers fewer than 65536, which take 10 MB."""

    MAX_CLOSED_STREAMS = 1024
    DEFAULT_MAX_HEADER_LIST_SIZE = MAX_HEADER_LIST_BYTES
    settings_frames = 0

    def _receive_settings_frame(self, frame: SettingsFrame) -> tuple[list[Frame], list[Event]]:
        """Refuse a flood of settings."""
        self.settings_frames += 1
        if self.settings_frames > MAX_SETTINGS_FRAMES:
            raise ProtocolError(f"more than {MAX_SETTINGS_FRAMES} SETTINGS frames")
        received: tuple[list[Frame], list[Event]] = super()._receive_settings_frame(frame)
        return received

    def _acknowledge_settings(self) -> list[Frame]:
        """Take new settings, but remember no more headers than by default.

        hpack searches them one by one for each header that it packs, and the peer may allow 4 GiB of them.
        """
        frames = super()._acknowledge_settings()
        if self.encoder.header_table_size > MAX_HEADER_TABLE_BYTES:
            self.encoder.header_table_size = MAX_HEADER_TABLE_BYTES
        return frames

    def _receive_goaway_frame(self, _: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        """Go on with the streams that are open, as RFC 9113 wants it.

        h2 would send nothing more: a client that says goodbye while it stops would wait in vain for its last answers.
        """
        return [], []


class Http2Connection(FrameConnection):
    """The server's side of one HTTP/2 connection. ``open_stream`` decides about each new stream."""

    __slots__ = (
        "_answered",
        "_feeding",
        "_h2",
        "_open_stream",
        "_outboxes",
        "_queued_bytes",
        "_resets",
        "_streams",
        "_windows_grew",
    )

    def __init__(self, open_stream: OpenStream, max_streams: int, *parts: Any) -> None:
        super().__init__(*parts)
        self._open_stream = open_stream
        self._h2 = _ServerState(H2Configuration(client_side=False, header_encoding=None))
        self._h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: max_streams,
                SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
                SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST_BYTES,
            },
        )
        self._streams: dict[int, StreamHandler] = {}
        self._outboxes: dict[int, _Outbox] = {}
        self._queued_bytes = 0
        self._resets = 0
        self._answered = 0
        self._feeding = False
        self._windows_grew = False

    async def run(self) -> None:
        """Serve the peer until either side closes."""
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW_BYTES - _DEFAULT_WINDOW_BYTES)
        self._flush()
        await super().run()

    # -- reading ------------------------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> bool:
        """Handle input; return False when it stopped early: the turn is over, or the peer does not read."""
        held = self._input
        held += data
        turn_end_s = monotonic() + turn_seconds(
            self.limits.max_turn_s, FrameConnection._sharing_turns, is_rest=not data
        )
        self._feeding = True
        try:
            while held and not self.closed:
                piece = bytes(held[:FEED_BYTES])
                events = self._h2.receive_data(piece)
                del held[:FEED_BYTES]
                self._check_frame_size()
                for event in events:
                    self._handle_event(event)
                if self._windows_grew:
                    # Once for all the frames of a piece: a pass over 990 streams takes 0.5 ms.
                    self._windows_grew = False
                    self._send_queued()
                if monotonic() >= turn_end_s or self._output_bytes > self._output_watermark():
                    break
        except ProtocolError as error:
            if held.startswith(b"PRI"):
                held.clear()  # `FrameConnection.run` would report that the peer speaks HTTP/2.
            raise FrameError(f"HTTP/2: {type(error).__name__}: {error}") from error
        finally:
            self._feeding = False
            self._flush()
            if self._on_batch is not None:
                self._end_batch(self._on_batch)
        return not held and self._output_bytes <= self._output_watermark()

    def _check_frame_size(self) -> None:
        """Refuse a frame or headers that are too long.

        h2 does so later: with a frame when it has all its bytes, up to 16 MiB, and with headers when it has unpacked
        all frames of them, up to 64.
        """
        unfinished = sum(len(frame.data) for frame in self._h2.incoming_buffer._headers_buffer)
        if unfinished > MAX_HEADER_LIST_BYTES:
            raise FrameError(f"HTTP/2: headers of more than {MAX_HEADER_LIST_BYTES} bytes")
        if len(self._h2.incoming_buffer._data) > self._h2.max_inbound_frame_size + _FRAME_HEAD_BYTES:
            raise FrameError(f"HTTP/2: a frame of more than {self._h2.max_inbound_frame_size} bytes")

    def _handle_event(self, event: Event) -> None:
        match event:
            case RequestReceived():
                self._begin_stream(event)
            case DataReceived():
                self._take_data(event)
            case StreamEnded():
                handler = self._streams.get(event.stream_id)
                if handler is not None:
                    handler.end_request()
            case StreamReset():
                self._count_reset()
                self._drop_stream(event.stream_id)
            case WindowUpdated(stream_id=stream_id) if stream_id:
                self._send_stream(stream_id)
            case (
                WindowUpdated() | RemoteSettingsChanged()
            ):  # Among the settings are the windows of all streams.
                self._windows_grew = True

    def _begin_stream(self, event: RequestReceived) -> None:
        headers: dict[str, str] = {}
        for name, value in event.headers:
            # Of a repeated header the first counts: no header of this protocol is a list.
            headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
        handler = self._open_stream(self, event.stream_id, headers)
        if handler is not None:
            self._streams[event.stream_id] = handler

    def _take_data(self, event: DataReceived) -> None:
        handler = self._streams.get(event.stream_id)
        # Padding counts for the windows as well.
        self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        if handler is not None and event.data:
            handler.receive(event.data)
            if handler.held_bytes > self.limits.large_read_bytes:
                self._limit_unfinished(len(event.data))

    def _limit_unfinished(self, added: int) -> None:
        """Refuse more unfinished requests than two of the largest. Raises FrameError."""
        self._on_large_input(added)
        held, most = self.input_bytes, 2 * self.limits.max_frame_bytes
        if held > most:
            raise FrameError(f"HTTP/2: {held} bytes of unfinished requests, at most {most}")

    def _count_reset(self) -> None:
        self._resets += 1
        if self._resets > FREE_RESETS + self._answered:
            raise FrameError(f"HTTP/2: {self._resets} streams were reset, and only {self._answered} answered")

    @property
    def input_bytes(self) -> int:
        """Bytes of unfinished messages held for this peer."""
        return len(self._input) + sum(handler.held_bytes for handler in self._streams.values())

    # -- writing ------------------------------------------------------------------------------------------------

    @property
    def output_bytes(self) -> int:
        """Bytes of answers that this peer has not read yet."""
        return self._output_bytes + self._queued_bytes

    def _count_queued(self, added: int) -> None:
        """Count bytes for which the peer has opened no window, among the unread bytes of the process."""
        self._queued_bytes += added
        FrameConnection.unread_bytes += added
        if added > 0:
            self._on_large_output(added)

    @property
    def open_streams(self) -> int:
        """Number of streams whose answers are not complete."""
        return len(self._streams)

    def send_headers(self, stream_id: int, headers: Headers, *, ends_stream: bool = False) -> None:
        """Send the first headers of an answer. Does nothing for a stream that the peer has reset."""
        if self.closed:
            return
        with suppress(ProtocolError):
            self._h2.send_headers(stream_id, headers, end_stream=ends_stream)
        if ends_stream:
            self._finish_stream(stream_id)
        self._flush()

    def send_data(self, stream_id: int, data: bytes) -> None:
        """Send a part of an answer: at once what the peer's windows allow, the rest when they open."""
        if self.closed or stream_id not in self._streams:
            return
        outbox = self._outboxes.setdefault(stream_id, _Outbox())
        outbox.chunks.append(memoryview(data))
        self._count_queued(len(data))
        self._send_stream(stream_id)
        if self.output_bytes > self.limits.max_output_bytes:
            log.warning("connection closed: answers are not read", extra={"remote": self.remote})
            self.close("answers are not read")
        self._flush()

    def send_trailers(self, stream_id: int, trailers: Headers) -> None:
        """End an answer with these headers, when all its data has been sent."""
        if self.closed or stream_id not in self._streams:
            return
        self._outboxes.setdefault(stream_id, _Outbox()).trailers = trailers
        self._send_stream(stream_id)
        self._flush()

    def reset_stream(self, stream_id: int, error: ErrorCodes) -> None:
        """End a stream at once, without an answer."""
        with suppress(ProtocolError):
            self._h2.reset_stream(stream_id, error)
        self._drop_stream(stream_id)
        self._flush()

    def announce_end(self) -> None:
        """Tell the peer with GOAWAY to open no more streams here; those that are open go on."""
        if self.closed or self._h2.state_machine.state is ConnectionState.CLOSED:
            return
        # h2 counts a connection as closed once it has sent GOAWAY, so the frame is written beside it.
        last = self._h2.highest_inbound_stream_id
        self._flush()
        self.write(_GO_AWAY_HEAD + last.to_bytes(4, "big") + ErrorCodes.NO_ERROR.to_bytes(4, "big"))

    def _send_queued(self) -> None:
        """Send on after the window of the connection, or those of all streams, have grown."""
        for stream_id in list(self._outboxes):
            self._send_stream(stream_id)

    def _send_stream(self, stream_id: int) -> None:
        outbox = self._outboxes.get(stream_id)
        if outbox is None:
            return
        try:
            while outbox.chunks:
                room = min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size)
                if room <= 0:
                    return
                chunk = outbox.chunks.popleft()
                if len(chunk) > room:
                    outbox.chunks.appendleft(chunk[room:])
                    chunk = chunk[:room]
                self._h2.send_data(stream_id, bytes(chunk))
                self._count_queued(-len(chunk))
            if outbox.trailers is not None:
                self._h2.send_headers(stream_id, outbox.trailers, end_stream=True)
                self._finish_stream(stream_id)
        except ProtocolError:  # The peer has reset the stream, or said goodbye.
            self._drop_stream(stream_id)

    def _finish_stream(self, stream_id: int) -> None:
        self._outboxes.pop(stream_id, None)
        if self._streams.pop(stream_id, None) is not None:
            self._answered += 1

    def _drop_stream(self, stream_id: int) -> None:
        outbox = self._outboxes.pop(stream_id, None)
        if outbox is not None:
            self._count_queued(-sum(map(len, outbox.chunks)))
        handler = self._streams.pop(stream_id, None)
        if handler is not None:
            handler.cancel()

    def _flush(self) -> None:
        if not self._feeding and not self.closed:
            data = self._h2.data_to_send()
            if data:
                self.write(data)

    # -- closing ------------------------------------------------------------------------------------------------

    def close(self, reason: str = "") -> None:
        """Close at once, with GOAWAY if the peer still reads, and give up all streams."""
        if self.closed:
            return
        with suppress(ProtocolError, OSError):
            is_violation = reason.startswith("HTTP/2")
            self._h2.close_connection(ErrorCodes.PROTOCOL_ERROR if is_violation else ErrorCodes.NO_ERROR)
            if not self._sending:
                self._transport.send_now(self._h2.data_to_send() or b"")
        super().close(reason)
        streams, self._streams = self._streams, {}
        self._outboxes.clear()
        self._count_queued(-self._queued_bytes)
        for handler in streams.values():
            handler.cancel()


_GO_AWAY_HEAD: Final = b"\0\0\x08\x07\0\0\0\0\0"
"""The head of a GOAWAY frame: 8 bytes, type 7, no flags, stream 0."""
