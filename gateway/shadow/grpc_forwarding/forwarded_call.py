"""One call of a client: its stream on the client's connection, and the one with the same number at the Proxy.

Headers, data and trailers pass as they come, so backpressure is that of the two connections. Three things are added to
it where they apply:

- messages that name addresses are collected and translated (`endpoints.py`); a long route is translated in slices, by
  one task for all calls, and what follows on its stream waits for it;
- sends and acknowledgements are copied for the capture (`captured_calls.py`);
- the beginning of an answer is looked at for its status, which is counted.

The end comes once, from whichever side is first. The other side is told in its own way: the Proxy by RST_STREAM when
the client has given up, the client by RST_STREAM with the Proxy's reason, by UNAVAILABLE when the Proxy's connection is
lost, and by DEADLINE_EXCEEDED when neither has kept to the time of ``grpc-timeout``.
"""

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Final

import trio
from google.protobuf.message import DecodeError

from gateway.grpc_front.framing import (
    IDENTITY,
    GrpcError,
    GrpcStatus,
    MessageReader,
    encode_status_text,
    frame_message,
)
from gateway.grpc_front.http2_connection import Fields, violation
from gateway.grpc_front.http2_frames import ErrorCode, encode_fields, encode_headers
from gateway.grpc_front.request_size import Unreadable
from gateway.grpc_front.rpc_counts import RpcCounts
from gateway.shadow.grpc_forwarding.captured_calls import CallRecorder
from gateway.shadow.grpc_forwarding.endpoints import (
    TRANSLATED_ANSWERS,
    TRANSLATED_REQUESTS,
    EndpointTranslation,
    find_status_code,
)
from gateway.shadow.grpc_forwarding.relay_connection import check_fields

if TYPE_CHECKING:
    from gateway.shadow.grpc_forwarding.client_connection import ClientConnection
    from gateway.shadow.grpc_forwarding.proxy_connection import ProxyConnection

TELEMETRY: Final = "Telemetry"
MAX_TRANSLATED_REQUEST_BYTES: Final = 1024 * 1024
"""Longest request, unpacked, in which addresses are translated. Telemetry may carry a stack trace."""
MAX_REQUESTS_PER_FRAME: Final = 16
"""Requests of a client that are translated at once. Clients send one; an empty one takes five bytes of a frame."""
MAX_TURN_BYTES: Final = 16 * 1024
"""Longest answer that is translated at once: about 250 queues."""
DEADLINE_GRACE_S: Final = 5.0
"""Time after a call's deadline in which the Proxy or the client ends it."""
_HEAD_BYTES: Final = 32
_GRPC_STATUS: Final = b"grpc-status"
_STATUS_NAMES: Final = {str(int(status)).encode(): status.name for status in GrpcStatus}


class ForwardedCall:
    """A call in progress. The handlers of its two streams are a `RequestHalf` and an `AnswerHalf`.

    It refers to neither: a cycle would keep each call in memory until the garbage collector runs, which it rarely does.
    """

    def __init__(
        self,
        client: "ClientConnection",
        proxy: "ProxyConnection",
        stream_id: int,
        method: str,
        counts: RpcCounts,
        translation: EndpointTranslation,
        *,
        encoding: str,
        deadline_s: float,
        recorder: CallRecorder | None,
        long_work: trio.Lock,
    ) -> None:
        self.client = client
        self.proxy = proxy
        self.stream_id = stream_id
        self.method = method
        self.translation = translation
        self.deadline_s = deadline_s
        self.recorder = recorder
        self.long_work = long_work
        self.encoding = encoding
        self.passes_requests = method not in TRANSLATED_REQUESTS
        """True if the data of requests passes as it is."""
        self.passes_answers = method not in TRANSLATED_ANSWERS
        """True if the data of answers passes as it is."""
        self.has_headers = False
        """True once the client was sent the first headers of the answer."""
        self.is_over = False
        self.waiting: deque[bytes | None] = deque()
        """Long answers that are not translated yet, and those that follow; None stands for the end."""
        self._counts = counts
        self._begin_s = monotonic()
        counts.running += 1

    @property
    def waiting_bytes(self) -> int:
        """Bytes of answers that are not translated yet."""
        return sum(len(message) for message in self.waiting if message is not None)

    def is_overdue(self, now_s: float) -> bool:
        """Tell whether the call's deadline is over, and the time for its end as well."""
        return now_s > self.deadline_s + DEADLINE_GRACE_S

    def expire(self) -> None:
        """End a call that nobody else has ended."""
        self.fail(GrpcStatus.DEADLINE_EXCEEDED, "the time of grpc-timeout is over")

    def fail(self, status: GrpcStatus, text: str) -> None:
        """End the call with a status of the gateway's own."""
        if not self.end(status.name):
            return
        self.proxy.reset_stream(self.stream_id, ErrorCode.CANCEL)
        trailers = [("grpc-status", str(int(status))), ("grpc-message", encode_status_text(text))]
        if self.has_headers:
            self.client.send_trailers(self.stream_id, encode_headers(trailers))
        else:
            head = [(":status", "200"), ("content-type", "application/grpc")]
            self.client.send_headers(self.stream_id, encode_headers(head + trailers), ends_stream=True)

    def end(self, code: int | str) -> bool:
        """Count the end of the call; return False if it was over before."""
        if self.is_over:
            return False
        self.is_over = True
        self.waiting.clear()
        counts = self._counts
        counts.running -= 1
        counts.by_code[code] += 1
        if self.method != TELEMETRY:
            counts.latency.record(monotonic() - self._begin_s)
        return True


class RequestHalf:
    """The client's stream: takes the request, and hands it to the Proxy."""

    def __init__(self, call: ForwardedCall) -> None:
        self.call = call
        self._reader: MessageReader | None = None
        if not call.passes_requests:
            self._reader = MessageReader(call.encoding, MAX_TRANSLATED_REQUEST_BYTES)

    @property
    def held_bytes(self) -> int:
        """Bytes of an unfinished message, of what is copied for the capture, and of answers that wait.

        Those of answers count here because the Proxy's stream may have ended, and this one has not.
        """
        reader, recorder = self._reader, self.call.recorder
        held_bytes = self.call.waiting_bytes + (0 if reader is None else reader.held_bytes)
        return held_bytes if recorder is None else held_bytes + recorder.held_bytes

    @property
    def header_bytes(self) -> int:
        """Bytes of the headers, which are not kept."""
        return 0

    def refuse(self, text: str) -> None:
        """Give up the copy for the capture, or a request that takes too much memory."""
        if self.call.recorder is not None:
            self.call.recorder.give_up()
            self.call.recorder = None
        else:
            self.call.fail(GrpcStatus.RESOURCE_EXHAUSTED, text)

    def receive(self, data: bytes) -> None:
        """Take a part of the request."""
        call = self.call
        proxy, stream_id = call.proxy, call.stream_id
        reader = self._reader
        if reader is None and proxy.can_send(stream_id):
            if call.recorder is not None:
                call.recorder.add_request(data)
            proxy.send_data(stream_id, data)
            return
        call.client.return_credit(stream_id, len(data))
        if reader is None or call.is_over:
            return
        try:
            requests = reader.feed(data)
            if len(requests) > MAX_REQUESTS_PER_FRAME:
                raise GrpcError(
                    GrpcStatus.RESOURCE_EXHAUSTED,
                    f"more than {MAX_REQUESTS_PER_FRAME} requests came at once: send them one by one",
                )
            for encoded in requests:
                request = call.translation.translate_request(call.method, encoded)
                proxy.send_data(stream_id, frame_message(request))
        except GrpcError as error:
            call.fail(error.status, error.text)

    def end_request(self) -> None:
        """End the request at the Proxy as well."""
        self.call.proxy.finish_request(self.call.stream_id)

    def cancel(self, error: int) -> None:
        """Give up: the client has reset the stream, or its connection is closed."""
        if self.call.end("CANCELLED") and not self.call.client.closed:
            self.call.proxy.reset_stream(self.call.stream_id, error)

    def note_sent(self, size: int) -> None:
        """Take note that the client was sent a part of an answer that passes as it is."""
        call = self.call
        if call.passes_answers:
            call.proxy.return_credit(call.stream_id, size)


class AnswerHalf:
    """The stream at the Proxy: takes the answer, and hands it to the client."""

    def __init__(self, call: ForwardedCall) -> None:
        self._call = call
        self._reader: MessageReader | None = None
        self._head = b""
        self._trailers = b""
        self._ending: int | str = GrpcStatus.UNKNOWN.name

    @property
    def held_bytes(self) -> int:
        """Bytes of an unfinished message."""
        return 0 if self._reader is None else self._reader.held_bytes

    @property
    def header_bytes(self) -> int:
        """Bytes of headers that are kept."""
        return len(self._trailers)

    def refuse(self, text: str) -> None:
        """Give up an answer that takes too much memory."""
        self._call.fail(GrpcStatus.RESOURCE_EXHAUSTED, text)

    def receive_headers(self, fields: Fields, *, is_last: bool) -> None:
        """Pass the headers or the trailers on. Raises FrameError for such as HTTP/2 forbids."""
        fields = list(fields)
        check_fields(fields)
        if [name for name, _ in fields if name.startswith(b":")] != [b":status"] * (
            not self._call.has_headers
        ):
            raise violation("an answer begins with its status, and ends without one")
        values = dict(reversed(fields))  # The first of a repeated header counts.
        if not self._call.has_headers and not is_last:
            if values.get(b":status", b"").startswith(b"1"):
                return  # Interim headers: those of the answer follow.
            self._call.has_headers = True
            encoding = values.get(b"grpc-encoding", IDENTITY.encode()).decode("latin-1")
            if not self._call.passes_answers:
                self._reader = MessageReader(encoding, self._call.client.limits.max_frame_bytes)
            self._call.client.send_headers(self._call.stream_id, encode_fields(fields))
            return
        self._ending = self._code_of(values.get(_GRPC_STATUS, b""))
        self._trailers = encode_fields(fields)
        if self._call.waiting:
            self._call.waiting.append(None)
        else:
            self._finish()

    def _code_of(self, status: bytes) -> int | str:
        """Return what the call counts as: RocketMQ's code, if the transport has none of its own."""
        name = _STATUS_NAMES.get(status, GrpcStatus.UNKNOWN.name)
        code = find_status_code(self._head) if name == "OK" and self._call.method != TELEMETRY else None
        return name if code is None else code

    def _finish(self) -> None:
        """End the client's stream as the Proxy has ended its own."""
        call = self._call
        is_first = call.end(self._ending)
        if call.has_headers:
            call.client.send_trailers(call.stream_id, self._trailers)
        else:
            call.client.send_headers(call.stream_id, self._trailers, ends_stream=True)
        if is_first and call.recorder is not None:
            call.recorder.finish(self._ending)

    def receive(self, data: bytes) -> None:
        """Pass a part of the answer on. Raises FrameError for one before its headers."""
        call = self._call
        if not call.has_headers:
            raise violation("data before the headers of its answer")
        if len(self._head) < _HEAD_BYTES:
            self._head += data[: _HEAD_BYTES - len(self._head)]
        if call.passes_answers:
            if call.recorder is not None:
                call.recorder.add_answer(data)
            if call.client.can_send(call.stream_id):
                call.client.send_data(call.stream_id, data)
            else:
                call.proxy.return_credit(call.stream_id, len(data))
            return
        call.proxy.return_credit(call.stream_id, len(data))
        if self._reader is None or call.is_over:
            return
        try:
            for encoded in self._reader.feed(data):
                if call.is_over:
                    return
                if call.waiting or len(encoded) > MAX_TURN_BYTES:
                    self._translate_later(encoded)
                else:
                    self._send(self._parts_of(encoded))
        except GrpcError as error:
            call.fail(error.status, error.text)

    def _parts_of(self, encoded: bytes) -> list[bytes]:
        """Return the parts of a short answer, translated; the answer itself if it cannot be read."""
        try:
            return list(self._call.translation.translate_answer(self._call.method, encoded))
        except (Unreadable, DecodeError):
            return [encoded]

    def _send(self, parts: list[bytes]) -> None:
        self._call.client.send_data(self._call.stream_id, frame_message(b"".join(parts)))

    def _translate_later(self, encoded: bytes) -> None:
        call = self._call
        call.waiting.append(encoded)
        if len(call.waiting) == 1:
            call.client.spawn(self._translate_waiting)
        call.client.limit_waiting(self, len(encoded))

    async def _translate_waiting(self) -> None:
        """Translate the messages that wait, a slice in each turn, and pass on what follows them.

        The calls of one client wait for each other first, so that many of one delay no other by more than one.
        """
        call = self._call
        while call.waiting:
            if call.waiting[0] is None:
                self._finish()
                return
            async with call.client.long_work, call.long_work:
                # The call may have ended while it waited, which forgets the messages.
                encoded = call.waiting[0] if call.waiting else None
                parts = [] if encoded is None else await self._translate_in_slices(encoded)
            if not call.is_over:
                self._send(parts)
                call.waiting.popleft()

    async def _translate_in_slices(self, encoded: bytes) -> list[bytes]:
        parts = []
        try:
            for part in self._call.translation.translate_answer(self._call.method, encoded):
                if part:
                    parts.append(part)
                else:
                    await trio.lowlevel.checkpoint()
        except (Unreadable, DecodeError):
            return [encoded]
        return parts

    def end_request(self) -> None:
        """Take note that the Proxy has ended its stream; a request that goes on is not wanted any more."""
        call = self._call
        if not self._trailers:
            call.fail(GrpcStatus.INTERNAL, "the primary's Proxy has ended the answer without a status")
        elif call.proxy.can_send(call.stream_id):
            call.proxy.reset_stream(call.stream_id, ErrorCode.NO_ERROR)

    def cancel(self, error: int) -> None:
        """End the client's stream: the Proxy has reset this one, or its connection is lost."""
        call = self._call
        if self._trailers:
            return  # The answer is complete, and perhaps still being translated.
        if call.proxy.closed:
            call.fail(GrpcStatus.UNAVAILABLE, "the connection to the primary's Proxy is lost")
        elif call.end("CANCELLED"):
            call.client.reset_stream(call.stream_id, error)

    def note_sent(self, size: int) -> None:
        """Take note that the Proxy was sent a part of a request that passes as it is."""
        call = self._call
        if call.passes_requests:
            call.client.return_credit(call.stream_id, size)
