"""Translates the addresses in requests and answers, so that clients of the gateway come back to it.

The official Proxy names itself in routes: the host by which the client says that it reaches it, and its own port.
Clients open a connection to what a route names, and repeat it in later requests and in their settings. So answers get
the address by which the client has reached the gateway, and requests the address of the Proxy.

A request is decoded once its fields are counted: a client decides what is in it. Answers may be long, so they are
searched field by field, and only parts that have addresses are decoded. Fields that this version does not know stay as
they are.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from google.protobuf.message import DecodeError

from codec.hosts import Host
from gateway.grpc_front import messages
from gateway.grpc_front.framing import GrpcError, GrpcStatus
from gateway.grpc_front.request_size import Unreadable, check_field_count, read_varint, value_size
from gateway.grpc_front.routes import MAX_ENDPOINTS_BYTES, endpoints_of

ENTRIES_PER_SLICE: Final = 64
"""Queues of a route that are translated in one turn of the event loop."""
_VALUE_KINDS: Final = (0, 1, 2, 5)
"""The wire types of values. The others are those of groups, which are not used, and undefined."""
_ROUTE_QUEUES: Final = 2
_ASSIGNMENTS: Final = 2
_SETTINGS: Final = 2
_TELEMETRY: Final = "Telemetry"
_QUEUE_REQUESTS: Final[dict[str, Any]] = {
    "ReceiveMessage": messages.ReceiveMessageRequest,
    "PullMessage": messages.PullMessageRequest,
    "UpdateOffset": messages.UpdateOffsetRequest,
    "GetOffset": messages.GetOffsetRequest,
    "QueryOffset": messages.QueryOffsetRequest,
}
"""Requests that repeat a queue of a route."""
_ROUTE_REQUESTS: Final[dict[str, Any]] = {
    "QueryRoute": messages.QueryRouteRequest,
    "QueryAssignment": messages.QueryAssignmentRequest,
}
_REQUESTS: Final = _QUEUE_REQUESTS | _ROUTE_REQUESTS | {_TELEMETRY: messages.TelemetryCommand}
TRANSLATED_REQUESTS: Final = frozenset(_REQUESTS)
TRANSLATED_ANSWERS: Final = frozenset((*_ROUTE_REQUESTS, _TELEMETRY))


class EndpointTranslation:
    """The addresses of one call: those of the Proxy, and those by which its client reaches the gateway.

    `local` is the gateway's address as the connection shows it. A client usually names a better one itself.
    """

    def __init__(self, proxy: messages.Endpoints, local: Host) -> None:
        self._proxy = proxy
        self._local = local
        self._dialled: messages.Endpoints | None = None

    @property
    def gateway(self) -> messages.Endpoints:
        """The endpoints that the client is told."""
        if self._dialled is None:
            self._dialled = endpoints_of(self._local)
        return self._dialled

    # -- requests -----------------------------------------------------------------------------------------------

    def translate_request(self, method: str, encoded: bytes) -> bytes:
        """Return a request with the Proxy's address in place of the gateway's. Raises GrpcError.

        A request that cannot be decoded is left to the Proxy.
        """
        try:
            kind = _REQUESTS[method]
            check_field_count(encoded, kind.DESCRIPTOR)
            request = kind.FromString(encoded)
        except (DecodeError, Unreadable):
            return encoded
        if method == _TELEMETRY:
            is_changed = self._exchange(request.settings.access_point)
        elif method in _ROUTE_REQUESTS:
            is_changed = self._exchange(request.endpoints)
        else:
            # A queue of a route: its address was learned here.
            endpoints = request.message_queue.broker.endpoints
            is_changed = bool(endpoints.addresses)
            if is_changed:
                endpoints.CopyFrom(self._proxy)
        return bytes(request.SerializeToString()) if is_changed else encoded

    def _exchange(self, dialled: messages.Endpoints) -> bool:
        """Note the endpoints by which a client reaches the gateway, and replace them; return whether it named any."""
        if not dialled.addresses:
            return False
        if dialled.ByteSize() > MAX_ENDPOINTS_BYTES:
            raise GrpcError(
                GrpcStatus.INVALID_ARGUMENT, f"the endpoints take more than {MAX_ENDPOINTS_BYTES} bytes"
            )
        self._dialled = messages.Endpoints()
        self._dialled.CopyFrom(dialled)
        dialled.CopyFrom(self._proxy)
        return True

    # -- answers ------------------------------------------------------------------------------------------------

    def translate_answer(self, method: str, encoded: bytes) -> Iterator[bytes]:
        """Yield the parts of an answer with the gateway's address in place of the Proxy's.

        An empty part ends a slice of a long answer. Raises Unreadable for bytes that are not an answer.
        """
        match method:
            case "QueryRoute":
                return _replace(encoded, _ROUTE_QUEUES, self._translate_queue)
            case "QueryAssignment":
                return _replace(encoded, _ASSIGNMENTS, self._translate_assignment)
        return _replace(encoded, _SETTINGS, self._translate_server_settings)

    def _translate_queue(self, encoded: bytes) -> bytes:
        queue = messages.MessageQueue.FromString(encoded)
        if not queue.broker.endpoints.addresses:
            return encoded
        queue.broker.endpoints.CopyFrom(self.gateway)
        return bytes(queue.SerializeToString())

    def _translate_assignment(self, encoded: bytes) -> bytes:
        assignment = messages.Assignment.FromString(encoded)
        if not assignment.message_queue.broker.endpoints.addresses:
            return encoded
        assignment.message_queue.broker.endpoints.CopyFrom(self.gateway)
        return bytes(assignment.SerializeToString())

    def _translate_server_settings(self, encoded: bytes) -> bytes:
        """Translate the access point, and the collector of metrics if that is the Proxy itself."""
        settings = messages.Settings.FromString(encoded)
        is_changed = False
        if settings.access_point.addresses:
            settings.access_point.CopyFrom(self.gateway)
            is_changed = True
        if settings.metric.endpoints == self._proxy:
            settings.metric.endpoints.CopyFrom(self.gateway)
            is_changed = True
        return bytes(settings.SerializeToString()) if is_changed else encoded


def _replace(encoded: bytes, number: int, translate: Callable[[bytes], bytes]) -> Iterator[bytes]:
    """Yield a message in parts, in which each field of this number is translated. Raises Unreadable, DecodeError."""
    begin = position = entries = 0
    while position < len(encoded):
        field_begin = position
        tag, position = read_varint(encoded, position)
        if tag & 7 not in _VALUE_KINDS:
            raise Unreadable
        size, value_begin = value_size(encoded, position, tag & 7)
        position = value_begin + size
        if position > len(encoded):
            raise Unreadable
        if tag != number << 3 | 2:
            continue
        value = translate(encoded[value_begin:position])
        yield encoded[begin:field_begin] + bytes((tag,)) + _encode_varint(len(value)) + value
        begin = position
        entries += 1
        if not entries % ENTRIES_PER_SLICE:
            yield b""
    yield encoded[begin:]


def _encode_varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def find_status_code(head: bytes) -> int | None:
    """Return RocketMQ's code from the beginning of an answer's bytes; None if they begin with something else.

    An answer's first field is its status, of which the first field is the code.
    """
    if len(head) < 5 or head[0]:
        return None  # Compressed.
    try:
        tag, position = read_varint(head, 5)
        if tag != 1 << 3 | 2:
            return None
        _, position = read_varint(head, position)
        tag, position = read_varint(head, position)
        return read_varint(head, position)[0] if tag == 1 << 3 else None
    except Unreadable:
        return None
