"""One RPC: it reads requests from a stream, runs the method, and writes answers and the final status.

Source: GrpcMessagingApplication, ContextInitPipeline, 5.4.0.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import trio
from google.protobuf.message import DecodeError
from h2.errors import ErrorCodes

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
from gateway.grpc_front.request_size import MAX_CONTROL_BYTES, check_field_count
from gateway.grpc_front.statuses import StatusError, status_of
from remoting.errors import RequestError

log = logging.getLogger(__name__)

MAX_WAITING_MESSAGES: Final = 64
"""Messages of a client's stream that wait for the method to read them."""
_ANSWER_HEADERS: Final = [
    (":status", "200"),
    ("content-type", "application/grpc"),
    ("grpc-accept-encoding", ACCEPTED_ENCODINGS),
]


@dataclass(frozen=True, slots=True)
class Method:
    """An RPC of the service. ``run`` returns the answer; None if it has sent its answers itself.

    ``fail`` makes the answers to a request that failed. With ``reads_stream`` the method reads requests from the rpc.
    With ``carries_messages`` a request may be as long as a frame.
    """

    request: Any
    run: Callable[["Rpc", Any], Awaitable[Any]]
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
) -> Method:
    """Return a method with one request, which must name its client. By default a failure is an ``answer``'s status."""

    async def run_identified(rpc: "Rpc", message: Any) -> Any:
        if not rpc.client_id.strip():
            raise StatusError(messages.CLIENT_ID_REQUIRED, "client id cannot be empty")
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
        "_has_sent",
        "_inbox",
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
        self, connection: Http2Connection, stream_id: int, metadata: Mapping[str, str], method: Method
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
        self._scope = trio.CancelScope(deadline=self.deadline_s)
        self._inbox, self.requests = trio.open_memory_channel[Any](MAX_WAITING_MESSAGES)
        self._has_sent = False
        self._started = False

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Bytes of an unfinished message."""
        return self._reader.held_bytes

    def receive(self, data: bytes) -> None:
        """Take a part of the request's body, and start the method when its request is complete."""
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
        if not self._method.reads_stream and self._started:
            raise GrpcError(GrpcStatus.UNIMPLEMENTED, "one request was expected, and several came")
        try:
            self._inbox.send_nowait(request)
        except trio.WouldBlock as error:
            raise GrpcError(
                GrpcStatus.RESOURCE_EXHAUSTED, f"more than {MAX_WAITING_MESSAGES} requests wait"
            ) from error
        except trio.BrokenResourceError:
            return  # The method reads no more.
        self.start()

    def end_request(self) -> None:
        """Take note that the peer sends no more requests."""
        self._inbox.close()
        if not self._started:
            self._refuse(GrpcError(GrpcStatus.INTERNAL, "the request has no message"))

    def stop_reading(self) -> None:
        """End the requests of a stream, after those that wait: the method comes to its end."""
        self._inbox.close()

    def cancel(self) -> None:
        """Stop the method: the client does not wait for the answer any more."""
        self._scope.cancel()  # First, because a method that waits for a request would end well otherwise.
        self._inbox.close()

    @property
    def left_s(self) -> float:
        """Seconds until the client gives up."""
        return self.deadline_s - trio.current_time()

    @property
    def is_cancelled(self) -> bool:
        """True once the client does not wait for the answer any more."""
        return self._scope.cancel_called

    # -- running ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run the method, unless it runs already."""
        if self._started:
            return
        self._started = True
        try:
            self.connection.spawn(self._run)
        except RequestError as error:
            self._refuse(GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, error.remark or ""))

    async def _run(self) -> None:
        with self._scope:
            try:
                if self._method.reads_stream:
                    await self._method.run(self, None)
                else:
                    await self._answer(await self.requests.receive())
                self.finish(GrpcStatus.OK)
            except GrpcError as error:
                self.finish(error.status, error.text)
            except Exception as error:
                log.exception("RPC failed", extra={"remote": self.connection.remote})
                self.finish(GrpcStatus.INTERNAL, f"{type(error).__name__}: {error}")
        if self._scope.cancelled_caught and self.left_s <= 0:
            self.finish(GrpcStatus.DEADLINE_EXCEEDED, "the time of grpc-timeout is over")

    async def _answer(self, request: Any) -> None:
        try:
            answer = await self._method.run(self, request)
        except GrpcError:
            raise
        except Exception as error:  # noqa: BLE001 - the one place where a request's failure becomes its answer
            for message in self._method.fail(status_of(error)):
                self.send(message)
        else:
            if answer is not None:
                self.send(answer)

    # -- writing ------------------------------------------------------------------------------------------------

    def send(self, message: Any) -> None:
        """Send an answer."""
        if not self._has_sent:
            self._has_sent = True
            self.connection.send_headers(self.stream_id, _ANSWER_HEADERS)
        self.connection.send_data(self.stream_id, frame_message(message.SerializeToString()))

    def finish(self, status: GrpcStatus, text: str = "") -> None:
        """End the RPC with a status of the transport."""
        self._inbox.close()
        trailers = [("grpc-status", str(int(status)))]
        if text:
            trailers.append(("grpc-message", encode_status_text(text)))
        if self._has_sent:
            self.connection.send_trailers(self.stream_id, trailers)
        else:
            self.connection.send_headers(self.stream_id, _ANSWER_HEADERS + trailers, ends_stream=True)

    def _refuse(self, error: GrpcError) -> None:
        """End an RPC whose requests cannot be read; the rest of them is not wanted."""
        self._scope.cancel()
        self.finish(error.status, error.text)
        self.connection.reset_stream(self.stream_id, ErrorCodes.NO_ERROR)
