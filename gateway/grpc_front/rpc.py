"""One RPC: it reads requests from a stream, runs the method, and writes answers and the final status.

Source: GrpcMessagingApplication, ContextInitPipeline, 5.4.0.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import trio
from google.protobuf.message import DecodeError

from gateway.grpc_front import messages
from gateway.grpc_front.access import RpcSender
from gateway.grpc_front.framing import (
    ACCEPTED_ENCODINGS,
    IDENTITY,
    GrpcError,
    GrpcStatus,
    MessageReader,
    encode_status_text,
    frame_message,
    parse_timeout,
)
from gateway.grpc_front.http2_connection import Http2Connection
from gateway.grpc_front.http2_frames import ErrorCode, encode_headers
from gateway.grpc_front.request_size import MAX_CONTROL_BYTES, check_field_count
from gateway.grpc_front.rpc_counts import RpcCounts
from gateway.grpc_front.statuses import StatusError, status_of
from remoting.eager import EagerCall, enter_task
from remoting.errors import RequestError

log = logging.getLogger(__name__)

MAX_WAITING_MESSAGES: Final = 64
"""Messages of a client's stream that wait for the method to read them."""
_ANSWER_FIELDS: Final = [
    (":status", "200"),
    ("content-type", "application/grpc"),
    ("grpc-accept-encoding", ACCEPTED_ENCODINGS),
]
_ANSWER_HEADERS: Final = encode_headers(_ANSWER_FIELDS)
_OK_TRAILERS: Final = encode_headers([("grpc-status", str(int(GrpcStatus.OK)))])


@dataclass(frozen=True, slots=True)
class Method:
    """An RPC of the service. ``run`` returns the answer, or a list of answers; None if it has sent its answers itself.

    ``fail`` makes the answers to a request that failed. With ``reads_stream`` the method reads requests from the rpc.
    With ``carries_messages`` a request may be as long as a frame.
    """

    request: Any
    run: Callable[["Rpc", Any], Coroutine[Any, Any, Any]]
    fail: Callable[[Any], list[Any]]
    reads_stream: bool = False
    carries_messages: bool = False


def unary(
    request: Any,
    answer: Any,
    run: Callable[["Rpc", Any], Awaitable[Any]],
    fail: Callable[[Any], list[Any]] | None = None,
    *,
    carries_messages: bool = False,
    is_eager: bool = False,
) -> Method:
    """Return a method with one request, which must name its client. By default a failure is an ``answer``'s status.

    One that ``is_eager`` runs without a task until it has to wait, and awaits `remoting.eager.enter_task` first then.
    """

    async def run_identified(rpc: "Rpc", message: Any) -> Any:
        if not rpc.client_id.strip():
            raise StatusError(messages.CLIENT_ID_REQUIRED, "client id cannot be empty")
        if not is_eager:
            await enter_task()
        return await run(rpc, message)

    return Method(
        request,
        run_identified,
        fail or (lambda status: [answer(status=status)]),
        carries_messages=carries_messages,
    )


class Rpc:
    """An RPC in progress."""

    __slots__ = (
        "_begin_s",
        "_code",
        "_counts",
        "_has_ended",
        "_has_sent",
        "_inbox",
        "_is_cancelled",
        "_method",
        "_reader",
        "_scope",
        "_started",
        "client_id",
        "connection",
        "deadline_s",
        "metadata",
        "requests",
        "sender",
        "stream_id",
    )

    def __init__(
        self,
        connection: Http2Connection,
        stream_id: int,
        metadata: Mapping[str, str],
        method: Method,
        counts: RpcCounts,
    ) -> None:
        """Begin an RPC. Raises GrpcError for headers that cannot be used."""
        timeout = metadata.get("grpc-timeout")
        self.connection = connection
        self.stream_id = stream_id
        self.metadata = metadata
        self.client_id = metadata.get("x-mq-client-id", "")
        self.sender = RpcSender(metadata, connection.remote[0])
        self.deadline_s = math.inf if timeout is None else trio.current_time() + parse_timeout(timeout)
        self._method = method
        max_bytes = connection.limits.max_frame_bytes
        if not method.carries_messages:
            max_bytes = min(max_bytes, MAX_CONTROL_BYTES)
        self._reader = MessageReader(metadata.get("grpc-encoding", IDENTITY), max_bytes)
        self._scope: trio.CancelScope | None = None
        """The scope of the method's task; None while it has none."""
        self._is_cancelled = False
        self._has_sent = False
        self._started = False
        self._counts = counts
        self._begin_s = monotonic()
        self._code: int | str = "OK"
        self._has_ended = False
        counts.running += 1
        if method.reads_stream:
            self._inbox, self.requests = trio.open_memory_channel[Any](MAX_WAITING_MESSAGES)

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Bytes of an unfinished message."""
        return self._reader.held_bytes

    @property
    def header_bytes(self) -> int:
        """Bytes of the headers, which are kept with the RPC."""
        return sum(len(name) + len(value) for name, value in self.metadata.items())

    def refuse(self, text: str) -> None:
        """Answer that the request takes too much memory, and forget it."""
        self._refuse(GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, text))

    def receive(self, data: bytes) -> None:
        """Take a part of the request's body, and run the method when its request is complete."""
        try:
            for encoded in self._reader.feed(data):
                self._take_request(encoded)
        except GrpcError as error:
            self._refuse(error)

    def _take_request(self, encoded: bytes) -> None:
        check_field_count(encoded, self._method.request.DESCRIPTOR)
        try:
            request = self._method.request.FromString(encoded)
        except DecodeError as error:
            raise GrpcError(GrpcStatus.INTERNAL, f"a request cannot be decoded: {error}") from error
        if self._method.reads_stream:
            self._queue(request)
        elif self._started:
            raise GrpcError(GrpcStatus.UNIMPLEMENTED, "one request was expected, and several came")
        else:
            self._call(request)

    def _queue(self, request: Any) -> None:
        """Leave a request for the method, which reads them one by one."""
        try:
            self._inbox.send_nowait(request)
        except trio.WouldBlock as error:
            raise GrpcError(
                GrpcStatus.RESOURCE_EXHAUSTED, f"more than {MAX_WAITING_MESSAGES} requests wait"
            ) from error
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # The method reads no more.

    def end_request(self) -> None:
        """Take note that the peer sends no more requests."""
        self.stop_reading()
        if not self._started:
            self._refuse(GrpcError(GrpcStatus.INTERNAL, "the request has no message"))

    def stop_reading(self) -> None:
        """End the requests of a stream, after those that wait: the method comes to its end."""
        if self._method.reads_stream:
            self._inbox.close()

    def cancel(self, error: int = ErrorCode.CANCEL) -> None:
        """Stop the method: the client does not wait for the answer any more."""
        self._is_cancelled = True
        if self._scope is not None:
            self._scope.cancel()  # First, because a method that waits for a request would end well otherwise.
        self.stop_reading()
        self._count("CANCELLED")

    @property
    def left_s(self) -> float:
        """Seconds until the client gives up."""
        return self.deadline_s - trio.current_time()

    @property
    def is_cancelled(self) -> bool:
        """True once the client does not wait for the answer any more."""
        return self._is_cancelled or (self._scope is not None and self._scope.cancel_called)

    # -- running ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run the method of a stream, which reads its requests itself."""
        self._started = True
        try:
            self.connection.spawn(self._run_in_task, lambda: self._method.run(self, None))
        except RequestError as error:
            self._refuse(_too_many(error))

    def _call(self, request: Any) -> None:
        """Run the method with its only request: at once, and in a task if it has to wait."""
        self._started = True
        try:
            # Before the call, which is not given up any more once it has begun.
            self.connection.check_outstanding_limit()
        except RequestError as error:
            raise _too_many(error) from error
        call = EagerCall(self._method.run(self, request))
        try:
            is_done = call.run()
        except Exception as error:  # noqa: BLE001 - it becomes the answer
            self._fail(error)
            return
        if is_done:
            self._answer(call.result)
        elif self.connection.closed:
            call.close()
        else:
            self.connection.spawn(self._run_in_task, call.finish)

    async def _run_in_task(self, run: Callable[[], Awaitable[Any]]) -> None:
        self._scope = trio.CancelScope(deadline=self.deadline_s)
        if self._is_cancelled:
            self._scope.cancel()
        with self._scope:
            try:
                answer = await run()
            except Exception as error:  # noqa: BLE001 - it becomes the answer
                self._fail(error)
            else:
                self._answer(answer)
        if self._scope.cancelled_caught and self.left_s <= 0:
            self.finish(GrpcStatus.DEADLINE_EXCEEDED, "the time of grpc-timeout is over")

    # -- writing ------------------------------------------------------------------------------------------------

    def _answer(self, answer: Any) -> None:
        """Send what the method returned, and end the RPC."""
        match answer:
            case None:
                self.finish(GrpcStatus.OK)
            case list():
                self._send_last(answer)
            case _:
                self._send_last([answer])

    def _fail(self, error: Exception) -> None:
        """End the RPC with the answer to a request that failed."""
        if isinstance(error, GrpcError):
            self.finish(error.status, error.text)
        elif self._method.reads_stream:
            log.error("RPC failed", exc_info=error, extra={"remote": self.connection.remote})
            self.finish(GrpcStatus.INTERNAL, f"{type(error).__name__}: {error}")
        else:
            self._send_last(self._method.fail(status_of(error)))

    def _send_last(self, answers: list[Any]) -> None:
        """Send all answers of a method with one request, and end the RPC."""
        self._count(answers[0].status.code if answers else self._code)
        data = b"".join([frame_message(answer.SerializeToString()) for answer in answers])
        self.connection.send_answer(self.stream_id, _ANSWER_HEADERS, data, _OK_TRAILERS)

    def send(self, message: Any) -> None:
        """Send an answer on a stream."""
        if not self._has_sent:
            self._has_sent = True
            if not self._method.reads_stream:
                self._code = message.status.code
            self.connection.send_headers(self.stream_id, _ANSWER_HEADERS)
        self.connection.send_data(self.stream_id, frame_message(message.SerializeToString()))

    def finish(self, status: GrpcStatus, text: str = "") -> None:
        """End the RPC with a status of the transport."""
        self.stop_reading()
        self._count(self._code if status is GrpcStatus.OK else status.name)
        trailers = [("grpc-status", str(int(status)))]
        if text:
            trailers.append(("grpc-message", encode_status_text(text)))
        if self._has_sent:
            self.connection.send_trailers(self.stream_id, encode_headers(trailers))
        else:
            headers = encode_headers(_ANSWER_FIELDS + trailers)
            self.connection.send_headers(self.stream_id, headers, ends_stream=True)

    def _count(self, code: int | str) -> None:
        """Count the end of the RPC; further ends of it count for nothing."""
        if self._has_ended:
            return
        self._has_ended = True
        counts = self._counts
        counts.running -= 1
        counts.by_code[code] += 1
        if not self._method.reads_stream:
            counts.latency.record(monotonic() - self._begin_s)

    def _refuse(self, error: GrpcError) -> None:
        """End an RPC whose requests cannot be read; the rest of them is not wanted."""
        self._count(error.status.name)
        self.cancel()
        self.finish(error.status, error.text)
        self.connection.reset_stream(self.stream_id, ErrorCode.NO_ERROR)


def _too_many(error: RequestError) -> GrpcError:
    return GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, error.remark or "")
