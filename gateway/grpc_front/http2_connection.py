"""HTTP/2 on one connection, on the server's side: streams, flow control, and the bounds of both.

`remoting.frame_connection.FrameConnection`, whose place this class takes in a `RemotingServer`, reads, buffers, limits
and closes. What a stream means is decided by its `StreamHandler`. Frames are cut and answered here; the library hpack
unpacks headers. Source: RFC 9113.

Theory of operation
-------------------
All frames of one read are handled together, and what is written meanwhile leaves in one system call. After
``max_turn_s`` the rest waits for the next turn, so that a peer that sends thousands of tiny frames delays no other for
long. Received data is acknowledged as soon as half of a window is used; what handlers hold of unfinished messages is
limited for the connection as a whole. Answers for which the peer has opened no window wait in the outbox of their
stream; they count as unread answers of the connection.

Any violation of the protocol ends this connection with GOAWAY, and no other. A peer that opens streams only to reset
them is one, because each of them costs more here than there. Frames for a stream that is over are ignored, because the
peer may have sent them before it learned of its end.

Invariants: a stream is in ``_streams`` until both sides have ended it, and there are at most ``max_streams`` of them.
Every block of headers is unpacked, even for a stream that is over: hpack's table is one for the connection.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, Final, Protocol

from hpack import Decoder
from hpack.exceptions import HPACKError

from codec.errors import FrameError
from gateway.grpc_front.http2_frames import (
    DEFAULT_HEADER_TABLE_BYTES,
    DEFAULT_WINDOW_BYTES,
    EMPTY_TABLE,
    FRAME_HEAD_BYTES,
    MAX_MAX_FRAME_BYTES,
    MAX_WINDOW_BYTES,
    MIN_MAX_FRAME_BYTES,
    PREFACE,
    ErrorCode,
    Flag,
    Kind,
    SettingCode,
    encode_frame,
    encode_goodbye,
    encode_header_frames,
    encode_reset,
    encode_settings,
    encode_window_update,
)
from remoting.frame_connection import FrameConnection, turn_seconds

log = logging.getLogger(__name__)

STREAM_WINDOW_BYTES: Final = 1024 * 1024
CONNECTION_WINDOW_BYTES: Final = 4 * 1024 * 1024
MAX_HEADER_LIST_BYTES: Final = 16 * 1024
"""Longest list of headers of a request, packed or unpacked. hpack takes up to 1 us for a byte, in one turn."""
MAX_CONTINUATIONS: Final = 64
"""Frames over which one list of headers may be spread."""
FREE_RESETS: Final = 200
"""Streams that a peer may reset at any time; beyond them, at most as many as it lets end."""
MAX_SETTINGS_FRAMES: Final = 64
"""SETTINGS of one connection. Each may change the windows of all streams: 0.5 ms with 990 of them. Clients send ten."""
MAX_JOINED_BYTES: Final = 2048
"""Size up to which parts of an answer that wait are joined: each takes about 200 bytes besides, which count nowhere."""
_REQUIRED_HEADERS: Final = frozenset((":method", ":scheme", ":path"))
_PSEUDO_HEADERS: Final = _REQUIRED_HEADERS | {":authority"}
_CONNECTION_HEADERS: Final = frozenset(
    ("connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade")
)
_PRIORITY_BYTES: Final = 5
_SETTINGS_ACK: Final = encode_frame(Kind.SETTINGS, Flag.ACK, 0)


class StreamHandler(Protocol):
    """One stream from its headers to its end."""

    @property
    def held_bytes(self) -> int:
        """Bytes of an unfinished message."""

    @property
    def header_bytes(self) -> int:
        """Bytes of the request's headers."""

    def refuse(self, text: str) -> None:
        """Answer that the request takes too much memory, and forget it."""

    def receive(self, data: bytes) -> None:
        """Take a part of the request's body."""

    def end_request(self) -> None:
        """Take note that the request is complete."""

    def cancel(self, error: int) -> None:
        """Give up: the peer has reset the stream with this error, or the connection is closed."""


Fields = Iterable[tuple[bytes, bytes]]
"""Headers as they were received, in their order."""
OpenStream = Callable[["Http2Connection", int, dict[str, str]], StreamHandler | None]
"""Returns the handler of a new stream from its headers; None if it was answered already."""


class Stream:
    """A stream that at least one side has not ended. ``handler`` is None once the answer is complete."""

    __slots__ = (
        "chunks",
        "credit_bytes",
        "handler",
        "is_answered",
        "is_peer_done",
        "receive_window",
        "send_window",
        "trailers",
    )

    def __init__(self, send_window: int) -> None:
        self.handler: StreamHandler | None = None
        self.is_peer_done = False
        self.is_answered = False
        self.send_window = send_window
        self.receive_window = STREAM_WINDOW_BYTES
        self.credit_bytes = 0
        """Bytes that the peer may send again and does not know of yet; for connections that delay their credit."""
        self.chunks: deque[memoryview] | None = None
        """The rest of the answer, for which there is no window yet; None until one had to wait."""
        self.trailers: bytes | None = None
        """The block of headers that ends the stream after the last chunk."""


class Http2Connection(FrameConnection):
    """The server's side of one HTTP/2 connection. ``open_stream`` decides about each new stream.

    Blocks of headers for answers come from `http2_frames.encode_headers`.
    """

    __slots__ = (
        "_answered",
        "_frames",
        "_frames_bytes",
        "_goodbye_id",
        "_has_preface",
        "_header_block",
        "_header_decoder",
        "_header_flags",
        "_header_frames",
        "_header_stream",
        "_is_gathering",
        "_last_stream_id",
        "_max_streams",
        "_must_shrink_table",
        "_open_stream",
        "_peer_max_frame_bytes",
        "_peer_window_bytes",
        "_queued_bytes",
        "_receive_window",
        "_resets",
        "_send_window",
        "_settings_frames",
        "_streams",
        "_windows_grew",
    )

    def __init__(self, open_stream: OpenStream, max_streams: int, *parts: Any) -> None:
        super().__init__(*parts)
        self._open_stream = open_stream
        self._max_streams = max_streams
        self._streams: dict[int, Stream] = {}
        self._last_stream_id = 0
        self._goodbye_id: int | None = None
        """The last stream that is carried out, once the peer was told; None before."""
        self._must_shrink_table = False
        self._has_preface = False
        self._settings_frames = 0
        self._resets = 0
        self._answered = 0
        # Headers that go on in CONTINUATION frames; stream 0 while there are none.
        self._header_decoder = Decoder(max_header_list_size=MAX_HEADER_LIST_BYTES)
        self._header_stream = 0
        self._header_flags = 0
        self._header_block = bytearray()
        self._header_frames = 0
        # Windows, in bytes: how much either side may still send.
        self._receive_window = CONNECTION_WINDOW_BYTES
        self._send_window = DEFAULT_WINDOW_BYTES
        self._peer_window_bytes = DEFAULT_WINDOW_BYTES
        self._peer_max_frame_bytes = MIN_MAX_FRAME_BYTES
        self._queued_bytes = 0
        self._windows_grew = False
        # Frames that leave together, at the end of a read.
        self._frames: list[bytes] = []
        self._frames_bytes = 0
        self._is_gathering = False

    async def run(self) -> None:
        """Serve the peer until either side closes."""
        self.write(self._greeting())
        await super().run()

    def _greeting(self) -> bytes:
        """Return the first frames of this side."""
        settings = encode_settings({
            SettingCode.ENABLE_PUSH: 0,
            SettingCode.MAX_CONCURRENT_STREAMS: self._max_streams,
            SettingCode.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
            SettingCode.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST_BYTES,
        })  # fmt: skip
        return settings + encode_window_update(0, CONNECTION_WINDOW_BYTES - DEFAULT_WINDOW_BYTES)

    # -- reading ------------------------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> bool:
        """Handle input; return False when it stopped early: the turn is over, or the peer does not read."""
        self._input += data
        turn_end_s = monotonic() + turn_seconds(
            self.limits.max_turn_s, FrameConnection._sharing_turns, is_rest=not data
        )
        self._is_gathering = True
        try:
            is_over = self._handle_frames(turn_end_s)
            if self._windows_grew:
                # Once for all the frames of a turn: a pass over 990 streams takes 0.5 ms.
                self._windows_grew = False
                self._send_queued()
        finally:
            self._is_gathering = False
            self._flush()
            if self._on_batch is not None:
                self._end_batch(self._on_batch)
        return is_over and self._output_bytes <= self._output_watermark()

    def _handle_frames(self, turn_end_s: float) -> bool:
        """Handle the whole frames of the input; return False if the turn ended before. Raises FrameError."""
        if not self._has_preface and not self._take_preface():
            return True
        held = self._input
        position = 0
        try:
            while len(held) - position >= FRAME_HEAD_BYTES and not self.closed:
                begin = position + FRAME_HEAD_BYTES
                head = int.from_bytes(held[position:begin], "big")
                size = head >> 48
                if size > MIN_MAX_FRAME_BYTES:
                    raise violation(f"a frame of {size} bytes, at most {MIN_MAX_FRAME_BYTES}")
                end = begin + size
                if len(held) < end:
                    break
                position = end
                self._handle_frame(
                    head >> 40 & 0xFF, head >> 32 & 0xFF, head & MAX_WINDOW_BYTES, bytes(held[begin:end])
                )
                if (
                    monotonic() >= turn_end_s
                    or self._frames_bytes + self._output_bytes > self._output_watermark()
                ):
                    return False
        finally:
            del held[:position]
        return True

    def _take_preface(self) -> bool:
        """Take the bytes with which HTTP/2 begins; return False while some are missing. Raises FrameError."""
        held = self._input
        beginning = bytes(held[: len(PREFACE)])
        if not PREFACE.startswith(beginning):
            if beginning.startswith(b"PRI"):
                held.clear()  # `FrameConnection.run` would report that the peer speaks HTTP/2.
            raise violation("the connection does not begin as HTTP/2 does")
        if len(beginning) < len(PREFACE):
            return False
        del held[: len(PREFACE)]
        self._has_preface = True
        return True

    def _handle_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._header_stream and kind != Kind.CONTINUATION:
            raise violation("headers are not continued")
        if not self._settings_frames and kind != Kind.SETTINGS:
            raise violation("the first frame is not SETTINGS")
        take = _TAKE_BY_KIND.get(kind)
        if take is not None:
            take(self, flags, stream_id, payload)

    # -- headers ------------------------------------------------------------------------------------------------

    def _take_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise violation(f"headers on stream {stream_id}: those of clients have odd numbers")
        if flags & Flag.PADDED:
            payload = _without_padding(payload)
        if flags & Flag.PRIORITY:
            if len(payload) < _PRIORITY_BYTES:
                raise violation("a priority is cut off")
            payload = payload[_PRIORITY_BYTES:]
        if flags & Flag.END_HEADERS:
            self._end_headers(flags, stream_id, payload)
            return
        self._header_stream, self._header_flags = stream_id, flags
        self._header_block[:] = payload
        self._header_frames = 0

    def _take_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not self._header_stream or stream_id != self._header_stream:
            raise violation(f"a continuation without headers on stream {stream_id}")
        self._header_frames += 1
        self._header_block += payload
        if self._header_frames > MAX_CONTINUATIONS or len(self._header_block) > MAX_HEADER_LIST_BYTES:
            raise violation(
                f"headers of more than {MAX_CONTINUATIONS} frames or {MAX_HEADER_LIST_BYTES} bytes"
            )
        if flags & Flag.END_HEADERS:
            block = bytes(self._header_block)
            self._header_block.clear()
            self._header_stream = 0
            self._end_headers(self._header_flags, stream_id, block)

    def _end_headers(self, flags: int, stream_id: int, block: bytes) -> None:
        try:
            fields = self._header_decoder.decode(block, raw=True)
        except (HPACKError, IndexError, TypeError, ValueError) as error:
            raise violation(f"headers cannot be unpacked: {type(error).__name__}: {error}") from error
        self._take_fields(stream_id, fields, is_last=bool(flags & Flag.END_STREAM))

    def _take_fields(self, stream_id: int, fields: Fields, *, is_last: bool) -> None:
        """Begin a stream with its headers, or end one with its trailers."""
        if stream_id > self._last_stream_id:
            self._begin_stream(stream_id, fields, is_last=is_last)
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            # Late trailers cost as much as a request that is reset.
            self._count_reset()
        else:
            if not is_last:
                raise violation(f"trailers that do not end stream {stream_id}")
            self._check_receives(stream_id, stream)
            self._end_request(stream_id, stream)

    def _begin_stream(self, stream_id: int, fields: Fields, *, is_last: bool) -> None:
        self._last_stream_id = stream_id
        if self._goodbye_id is not None:
            return  # The peer may send it again elsewhere: it was told that later streams are not carried out.
        if len(self._streams) >= self._max_streams:
            raise violation(f"more than {self._max_streams} streams at a time")
        stream = self._streams[stream_id] = Stream(self._peer_window_bytes)
        stream.is_peer_done = is_last
        handler = self._accept_stream(stream_id, fields)
        if handler is None:
            return
        stream.handler = handler
        if is_last:
            handler.end_request()

    def _accept_stream(self, stream_id: int, fields: Fields) -> StreamHandler | None:
        """Return the handler of a new stream; None if it was answered already."""
        return self._open_stream(self, stream_id, checked_headers(fields))

    # -- data ---------------------------------------------------------------------------------------------------

    def _take_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id or stream_id > self._last_stream_id:
            raise violation(f"data on stream {stream_id}, which was not opened")
        size = len(payload)
        if flags & Flag.PADDED:
            payload = _without_padding(payload)
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._check_receives(stream_id, stream)
            # Before the handler, which may answer at once and end the stream.
            stream.is_peer_done = bool(flags & Flag.END_STREAM)
        # Padding counts for the windows as well.
        self._use_windows(stream_id, stream, size, len(payload))
        if stream is None:
            return
        is_last, handler = stream.is_peer_done, stream.handler
        if handler is not None and payload:
            handler.receive(payload)
            if handler.held_bytes > self.limits.large_read_bytes:
                self._limit_unfinished(handler, len(payload))
        if is_last:
            self._end_request(stream_id, stream)

    def _use_windows(self, stream_id: int, stream: Stream | None, size: int, passed_bytes: int) -> None:
        """Take a frame of data off the windows, of which the stream's handler gets ``passed_bytes``.

        Windows are opened again when half is used, and are much longer than a frame: no peer can exceed them. What
        bounds a peer is `_limit_unfinished`.
        """
        self._receive_window -= size
        if self._receive_window < CONNECTION_WINDOW_BYTES // 2:
            self._write_frame(encode_window_update(0, CONNECTION_WINDOW_BYTES - self._receive_window))
            self._receive_window = CONNECTION_WINDOW_BYTES
        if stream is None:
            return
        stream.receive_window -= size
        if stream.receive_window < STREAM_WINDOW_BYTES // 2 and not stream.is_peer_done:
            self._write_frame(encode_window_update(stream_id, STREAM_WINDOW_BYTES - stream.receive_window))
            stream.receive_window = STREAM_WINDOW_BYTES

    @staticmethod
    def _check_receives(stream_id: int, stream: Stream) -> None:
        if stream.is_peer_done:
            raise violation(f"stream {stream_id} goes on after its end")

    def _end_request(self, stream_id: int, stream: Stream) -> None:
        """Take note that the peer has ended a stream."""
        stream.is_peer_done = True
        if stream.handler is not None:
            stream.handler.end_request()
        else:
            self._streams.pop(stream_id, None)

    def _limit_unfinished(self, handler: StreamHandler, added: int) -> None:
        """Refuse a request with which the unfinished ones of this peer exceed two of the largest."""
        self._on_large_input(added)
        held, most = self.input_bytes, 2 * self.limits.max_frame_bytes
        if held > most and not self.closed:
            handler.refuse(f"{held} bytes of unfinished requests on this connection, at most {most}")

    @property
    def input_bytes(self) -> int:
        """Bytes of unfinished messages, and of the headers of all requests, held for this peer."""
        handlers = [stream.handler for stream in self._streams.values() if stream.handler is not None]
        held = sum(handler.held_bytes + handler.header_bytes for handler in handlers)
        return len(self._input) + len(self._header_block) + held

    # -- control ------------------------------------------------------------------------------------------------

    def _take_reset(self, _: int, stream_id: int, payload: bytes) -> None:
        if not 0 < stream_id <= self._last_stream_id:
            raise violation(f"a reset of stream {stream_id}, which was not opened")
        _check_size("RST_STREAM", payload, 4)
        self._count_reset()
        self._drop_stream(stream_id, int.from_bytes(payload, "big"))

    def _count_reset(self) -> None:
        self._resets += 1
        if self._resets > FREE_RESETS + self._answered:
            raise violation(f"{self._resets} streams were reset, and only {self._answered} answered")

    def _take_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise violation("SETTINGS on a stream")
        self._settings_frames += 1
        if self._settings_frames > MAX_SETTINGS_FRAMES:
            raise violation(f"more than {MAX_SETTINGS_FRAMES} SETTINGS frames")
        if flags & Flag.ACK:
            _check_size("an acknowledgement of SETTINGS", payload, 0)
            return
        if len(payload) % 6:
            raise violation("SETTINGS are cut off")
        # Of a repeated setting the last counts, so that a long frame costs one pass over the streams.
        values = {
            int.from_bytes(payload[at : at + 2], "big"): int.from_bytes(payload[at + 2 : at + 6], "big")
            for at in range(0, len(payload), 6)
        }
        if values.get(SettingCode.ENABLE_PUSH, 0) > 1:
            raise violation("the setting ENABLE_PUSH is neither 0 nor 1")
        frame_bytes = values.get(SettingCode.MAX_FRAME_SIZE)
        if frame_bytes is not None:
            if not MIN_MAX_FRAME_BYTES <= frame_bytes <= MAX_MAX_FRAME_BYTES:
                raise violation(f"the setting MAX_FRAME_SIZE is {frame_bytes}")
            self._peer_max_frame_bytes = frame_bytes
        if values.get(SettingCode.HEADER_TABLE_SIZE, DEFAULT_HEADER_TABLE_BYTES) < DEFAULT_HEADER_TABLE_BYTES:
            self._must_shrink_table = True
        window_bytes = values.get(SettingCode.INITIAL_WINDOW_SIZE)
        if window_bytes is not None:
            self._change_windows(window_bytes)
        self._write_frame(_SETTINGS_ACK)
        self._note_settings(values)

    def _note_settings(self, values: Mapping[int, int]) -> None:
        """Take note of the peer's settings, by their codes."""

    def _change_windows(self, window_bytes: int) -> None:
        """Take a new first window of streams, which changes that of all open ones as well."""
        if window_bytes > MAX_WINDOW_BYTES:
            raise violation(f"the setting INITIAL_WINDOW_SIZE is {window_bytes}")
        change = window_bytes - self._peer_window_bytes
        self._peer_window_bytes = window_bytes
        for stream in self._streams.values():
            stream.send_window += change
            if stream.send_window > MAX_WINDOW_BYTES:
                raise violation("the window of a stream overflows")
        self._windows_grew = True

    def _take_window_update(self, _: int, stream_id: int, payload: bytes) -> None:
        _check_size("WINDOW_UPDATE", payload, 4)
        added = int.from_bytes(payload, "big") & MAX_WINDOW_BYTES
        if not added:
            raise violation("a window grows by 0")
        if not stream_id:
            self._send_window += added
            if self._send_window > MAX_WINDOW_BYTES:
                raise violation("the window of the connection overflows")
            self._windows_grew = True
            return
        if stream_id > self._last_stream_id:
            raise violation(f"a window for stream {stream_id}, which was not opened")
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.send_window += added
            if stream.send_window > MAX_WINDOW_BYTES:
                raise violation(f"the window of stream {stream_id} overflows")
            self._send_stream(stream_id, stream)

    def _take_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_size("PING", payload, 8)
        if stream_id:
            raise violation("PING on a stream")
        if not flags & Flag.ACK:
            self._write_frame(encode_frame(Kind.PING, Flag.ACK, 0, payload))

    def _take_goodbye(self, _: int, stream_id: int, payload: bytes) -> None:
        """Go on with the streams that are open: a client that stops still waits for its last answers."""
        if stream_id or len(payload) < 8:
            raise violation("GOAWAY on a stream, or cut off")
        self._note_goodbye(int.from_bytes(payload[:4], "big") & MAX_WINDOW_BYTES)

    def _note_goodbye(self, last_stream_id: int) -> None:
        """Take note that the peer carries out no stream after this one."""

    def _take_priority(self, _: int, stream_id: int, payload: bytes) -> None:
        """Check a priority, which HTTP/2 has given up."""
        _check_size("PRIORITY", payload, _PRIORITY_BYTES)
        if not stream_id:
            raise violation("PRIORITY without a stream")

    def _refuse_push(self, _: int, stream_id: int, payload: bytes) -> None:
        raise violation("a client cannot push")

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
        """Number of streams that at least one side has not ended."""
        return len(self._streams)

    def send_answer(self, stream_id: int, headers: bytes, data: bytes, trailers: bytes) -> None:
        """Send a whole answer. Does nothing for a stream that is over or answered, as all that follows."""
        stream = self._unanswered(stream_id)
        if stream is None:
            return
        size = len(data)
        if size > min(stream.send_window, self._send_window, self._peer_max_frame_bytes) or stream.chunks:
            self._send_in_parts(stream_id, headers, data, trailers)
            return
        stream.send_window -= size
        self._send_window -= size
        self._finish_stream(stream_id, stream)
        self._write_frame(
            self._encode_headers(stream_id, headers)
            + encode_frame(Kind.DATA, 0, stream_id, data)
            + self._encode_headers(stream_id, trailers, ends_stream=True)
        )

    def _send_in_parts(self, stream_id: int, headers: bytes, data: bytes, trailers: bytes) -> None:
        is_within, self._is_gathering = self._is_gathering, True
        self.send_headers(stream_id, headers)
        self.send_data(stream_id, data)
        self.send_trailers(stream_id, trailers)
        self._is_gathering = is_within
        if not is_within:
            self._flush()

    def send_headers(self, stream_id: int, headers: bytes, *, ends_stream: bool = False) -> None:
        """Send the first headers of an answer."""
        stream = self._unanswered(stream_id)
        if stream is None:
            return
        if ends_stream:
            self._finish_stream(stream_id, stream)
        self._write_frame(self._encode_headers(stream_id, headers, ends_stream=ends_stream))

    def _unanswered(self, stream_id: int) -> Stream | None:
        """Return a stream on which an answer may be sent."""
        stream = None if self.closed else self._streams.get(stream_id)
        return None if stream is None or stream.is_answered else stream

    def _encode_headers(self, stream_id: int, headers: bytes, *, ends_stream: bool = False) -> bytes:
        """Return a frame of headers, which takes note of it first when the peer has made its table smaller."""
        if self._must_shrink_table:
            self._must_shrink_table = False
            headers = EMPTY_TABLE + headers
        flags = Flag.END_STREAM if ends_stream else 0
        return encode_header_frames(stream_id, headers, flags, self._peer_max_frame_bytes)

    def send_data(self, stream_id: int, data: bytes) -> None:
        """Send a part of an answer: at once what the peer's windows allow, the rest when they open."""
        stream = self._unanswered(stream_id)
        if stream is None:
            return
        size = len(data)
        if stream.chunks is None:
            stream.chunks = deque()
        chunks = stream.chunks
        if chunks and len(chunks[-1]) + size <= MAX_JOINED_BYTES:
            data = b"".join((chunks.pop(), data))
        chunks.append(memoryview(data))
        self._count_queued(size)
        self._send_stream(stream_id, stream)
        if self.output_bytes > self.limits.max_output_bytes:
            log.warning("connection closed: answers are not read", extra={"remote": self.remote})
            self.close("answers are not read")

    def send_trailers(self, stream_id: int, trailers: bytes) -> None:
        """End an answer with these headers, when all its data has been sent."""
        stream = self._unanswered(stream_id)
        if stream is None:
            return
        stream.trailers = trailers
        self._send_stream(stream_id, stream)

    def reset_stream(self, stream_id: int, error: int) -> None:
        """End a stream at once, without an answer."""
        if not self.closed and stream_id in self._streams:
            self._drop_stream(stream_id, error)
            self._write_frame(encode_reset(stream_id, error))

    def announce_end(self) -> None:
        """Tell the peer with GOAWAY to open no more streams here; those that are open go on.

        It is told once. Streams that it opens before it knows are ignored, so no later GOAWAY may count them as carried
        out: RFC 9113 forbids it (section 6.8), and Netty closes the connection.
        """
        if not self.closed and self._goodbye_id is None:
            self._goodbye_id = self._last_stream_id
            self._write_frame(encode_goodbye(self._goodbye_id, ErrorCode.NO_ERROR))

    def _send_queued(self) -> None:
        """Send on after the window of the connection, or those of all streams, have grown."""
        for stream_id, stream in list(self._streams.items()):
            if stream.chunks:
                self._send_stream(stream_id, stream)

    def _send_stream(self, stream_id: int, stream: Stream) -> None:
        chunks = stream.chunks
        # Counting and writing may close the connection, which gives up the rest.
        while chunks and not self.closed:
            room = self._room_for(stream)
            if room <= 0:
                return
            chunk = chunks.popleft()
            if len(chunk) > room:
                chunks.appendleft(chunk[room:])
                chunk = chunk[:room]
            stream.send_window -= len(chunk)
            self._send_window -= len(chunk)
            self._count_queued(-len(chunk))
            self._write_frame(encode_frame(Kind.DATA, 0, stream_id, bytes(chunk)))
            self._note_sent(stream, len(chunk))
        if stream.trailers is not None and not self.closed:
            trailers = stream.trailers
            self._finish_stream(stream_id, stream)
            self._write_frame(self._encode_end(stream_id, trailers))

    def _room_for(self, stream: Stream) -> int:
        """Return how many bytes of data may be sent on a stream in one frame now."""
        return min(stream.send_window, self._send_window, self._peer_max_frame_bytes)

    def _note_sent(self, stream: Stream, size: int) -> None:
        """Take note that queued data has left."""

    def _encode_end(self, stream_id: int, trailers: bytes) -> bytes:
        """Return the frame that ends a stream after its data."""
        return self._encode_headers(stream_id, trailers, ends_stream=True)

    def _finish_stream(self, stream_id: int, stream: Stream) -> None:
        """Take note that the answer of a stream is complete."""
        if stream.handler is not None:
            self._answered += 1
        self._count_queued(-sum(map(len, stream.chunks or ())))
        stream.is_answered = True
        stream.handler = stream.chunks = stream.trailers = None
        if stream.is_peer_done:
            self._streams.pop(stream_id, None)

    def _drop_stream(self, stream_id: int, error: int) -> None:
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return
        self._count_queued(-sum(map(len, stream.chunks or ())))
        if stream.handler is not None:
            stream.handler.cancel(error)

    def _write_frame(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._frames_bytes += len(frame)
        if not self._is_gathering:
            self._flush()

    def _flush(self) -> None:
        if self._frames:
            frames, self._frames, self._frames_bytes = self._frames, [], 0
            self.write(frames[0] if len(frames) == 1 else b"".join(frames))

    # -- closing ------------------------------------------------------------------------------------------------

    def close(self, reason: str = "") -> None:
        """Close at once, with GOAWAY if the peer still reads, and give up all streams."""
        if self.closed:
            return
        error = ErrorCode.PROTOCOL_ERROR if reason.startswith(_HTTP2) else ErrorCode.NO_ERROR
        if not self._sending:
            with suppress(OSError):
                last_id = self._last_stream_id if self._goodbye_id is None else self._goodbye_id
                goodbye = encode_goodbye(last_id, error)
                self._transport.send_now(b"".join((*self._frames, goodbye)))
        self._frames.clear()
        super().close(reason)
        streams, self._streams = self._streams, {}
        self._count_queued(-self._queued_bytes)
        for stream in streams.values():
            if stream.handler is not None:
                stream.handler.cancel(ErrorCode.CANCEL)


_HTTP2: Final = "HTTP/2: "
"""The beginning of the reason for which a connection ends after a violation of the protocol."""
_TAKE_BY_KIND: Final[dict[int, Callable[[Http2Connection, int, int, bytes], None]]] = {
    Kind.DATA: Http2Connection._take_data,
    Kind.HEADERS: Http2Connection._take_headers,
    Kind.PRIORITY: Http2Connection._take_priority,
    Kind.RST_STREAM: Http2Connection._take_reset,
    Kind.SETTINGS: Http2Connection._take_settings,
    Kind.PUSH_PROMISE: Http2Connection._refuse_push,
    Kind.PING: Http2Connection._take_ping,
    Kind.GOAWAY: Http2Connection._take_goodbye,
    Kind.WINDOW_UPDATE: Http2Connection._take_window_update,
    Kind.CONTINUATION: Http2Connection._take_continuation,
}
"""Functions of the class instead of bound methods, which each connection would hold in a cycle of references."""


def violation(text: str) -> FrameError:
    return FrameError(_HTTP2 + text)


def _check_size(name: str, payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise violation(f"{name} has {len(payload)} bytes instead of {size}")


def _without_padding(payload: bytes) -> bytes:
    """Return what is between the length of the padding and the padding. Raises FrameError."""
    if not payload or payload[0] >= len(payload):
        raise violation("more padding than bytes")
    return payload[1 : len(payload) - payload[0]]


def checked_headers(fields: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers of a request by name. Raises FrameError for such as HTTP/2 forbids."""
    headers: dict[str, str] = {}
    is_after_pseudo = False
    for raw_name, raw_value in fields:
        name = raw_name.decode("latin-1")
        if name.startswith(":"):
            if is_after_pseudo or name in headers or name not in _PSEUDO_HEADERS:
                raise violation(f"the header {name[:64]!r} is unknown, repeated or late")
        else:
            is_after_pseudo = True
            if name in _CONNECTION_HEADERS or name != name.lower():
                raise violation(f"the header {name[:64]!r} is not allowed")
        # Of a repeated header the first counts: no header of this protocol is a list.
        headers.setdefault(name, raw_value.decode("latin-1"))
    if not headers.keys() >= _REQUIRED_HEADERS:
        raise violation("a request needs the headers :method, :scheme and :path")
    if headers.get("te", "trailers") != "trailers":
        raise violation("the header te allows trailers only")
    return headers
