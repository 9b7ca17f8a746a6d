"""Either connection of a session: HTTP/2 whose flow control spans both.

Theory of operation
-------------------
A front that answers calls itself opens a peer's windows again as soon as data has arrived. Here the data is on its way
to somebody else, who may be slow. So the bytes that a peer has sent become its credit only when they have left on the
other connection, or were dropped. Whatever one side does not read therefore stops the other side at the end of its
window: `http2_connection.STREAM_WINDOW_BYTES` for a stream, CONNECTION_WINDOW_BYTES for all of a connection. Reading
never stops for data that waits. Otherwise the frames with which the other side opens its windows would not be read
either, and both would wait for ever.

Data leaves only while less than half of ``output_high_watermark_bytes`` waits for the kernel: a peer with large windows
that reads nothing from its socket would get all of it into the process's memory otherwise.

Frames that one read of a connection causes on the other one leave together, in one system call.
"""

import re
from typing import Any, Protocol, cast

from gateway.grpc_front.http2_connection import (
    CONNECTION_WINDOW_BYTES,
    STREAM_WINDOW_BYTES,
    Fields,
    Http2Connection,
    OpenStream,
    Stream,
    StreamHandler,
    violation,
)
from gateway.grpc_front.http2_frames import encode_window_update

_is_name = re.compile(rb":?[!#$%&'*+.^_`|~0-9a-z-]+").fullmatch
_find_forbidden = re.compile(rb"[\0\r\n]").search


def check_fields(fields: Fields) -> None:
    """Raise FrameError for headers that HTTP/2 forbids, and that would end the other connection of the session."""
    for name, value in fields:
        if not _is_name(name) or _find_forbidden(value):
            raise violation(f"the header {name[:64]!r} has characters that are not allowed")


class RelayHandler(StreamHandler, Protocol):
    """One stream of a session's connection."""

    def note_sent(self, size: int) -> None:
        """Take note that queued bytes have left on this stream, or were dropped."""


class RelayConnection(Http2Connection):
    """One side of a session; ``partner`` is the other one, None before it is open."""

    __slots__ = ("_credit_bytes", "partner")

    def __init__(self, open_stream: OpenStream, max_streams: int, *parts: Any) -> None:
        super().__init__(open_stream, max_streams, *parts)
        self._credit_bytes = 0
        self.partner: RelayConnection | None = None

    # -- credit -------------------------------------------------------------------------------------------------

    def _use_windows(self, stream_id: int, stream: Stream | None, size: int, passed_bytes: int) -> None:
        """Take a frame of data off the windows; only what nobody gets is credit at once. Raises FrameError."""
        self._receive_window -= size
        if stream is not None:
            stream.receive_window -= size
        if self._receive_window < 0 or (stream is not None and stream.receive_window < 0):
            raise violation(f"more data on stream {stream_id} than its window allows")
        is_passed_on = stream is not None and stream.handler is not None
        self.return_credit(stream_id, size - passed_bytes if is_passed_on else size)

    def return_credit(self, stream_id: int, size: int) -> None:
        """Let the peer send as many bytes again, once half of a window can be given back."""
        if self.closed or not size:
            return
        self._credit_bytes += size
        if self._credit_bytes >= CONNECTION_WINDOW_BYTES // 2:
            self._receive_window += self._credit_bytes
            self._write_frame(encode_window_update(0, self._credit_bytes))
            self._credit_bytes = 0
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_peer_done:
            return
        stream.credit_bytes += size
        if stream.credit_bytes >= STREAM_WINDOW_BYTES // 2:
            stream.receive_window += stream.credit_bytes
            self._write_frame(encode_window_update(stream_id, stream.credit_bytes))
            stream.credit_bytes = 0

    # -- reading ------------------------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> bool:
        """Handle input; what it causes on the other connection leaves at its end."""
        partner = self.partner
        if partner is None or partner._is_gathering:
            return super()._feed(data)
        partner._is_gathering = True
        try:
            return super()._feed(data)
        finally:
            partner._is_gathering = False
            partner._flush()

    # -- writing ------------------------------------------------------------------------------------------------

    def can_send(self, stream_id: int) -> bool:
        """Tell whether this side has not ended a stream yet."""
        return self._unanswered(stream_id) is not None

    def _room_for(self, stream: Stream) -> int:
        if self._output_bytes > self.limits.output_high_watermark_bytes // 2:
            return 0
        return super()._room_for(stream)

    def _count_output(self, added: int) -> None:
        super()._count_output(added)
        # The kernel has taken some: there is room for data that waits.
        if added < 0 and self._queued_bytes and not self.closed:
            self._send_queued()

    def _note_sent(self, stream: Stream, size: int) -> None:
        if stream.handler is not None:
            cast(RelayHandler, stream.handler).note_sent(size)

    def _drop_stream(self, stream_id: int, error: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        handler, dropped_bytes = stream.handler, sum(map(len, stream.chunks or ()))
        super()._drop_stream(stream_id, error)
        if handler is not None and dropped_bytes:
            cast(RelayHandler, handler).note_sent(dropped_bytes)
