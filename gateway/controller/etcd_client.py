"""Calls of etcd's JSON gateway (etcd 3.4 and later): one HTTP request for each, at the first member that answers.

A member that is hung or cut off costs one time-out; afterwards the next one is asked first. A call that may have
reached a member is not repeated at another one, because it may have been carried out.
"""

import base64
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import h11
import trio

from gateway.controller.store import StoreUnavailable

DEFAULT_TIMEOUT_S: Final = 2.0
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
MAX_SHOWN_BYTES: Final = 200
"""Length of what is shown of an answer that is not understood."""
_RECEIVE_BYTES: Final = 65_536
_UNAUTHENTICATED: Final = 16
"""The gRPC code of a token that is not valid, or no longer."""
_HTTP_UNAUTHORIZED: Final = 401
_BACKWARDS_COMPATIBLE_PORT: Final = 2379

JsonObject = dict[str, Any]
Open = Callable[["EtcdEndpoint"], Awaitable[trio.abc.Stream]]


class EtcdRefusal(Exception):
    """An answer that is an error; ``code`` is that of gRPC, such as 5 for what does not exist."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class EtcdEndpoint:
    """The client address of one etcd member."""

    host: str
    port: int
    is_encrypted: bool

    @classmethod
    def parse(cls, url: str) -> "EtcdEndpoint":
        """Parse ``http[s]://host[:port]``. Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise ValueError(f"{url} is not http://host:port or https://host:port")
        return cls(parts.hostname, parts.port or _BACKWARDS_COMPATIBLE_PORT, parts.scheme == "https")

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def encode(text: str | bytes) -> str:
    """Return bytes as etcd's JSON holds them."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def decode(text: str) -> bytes:
    """Return the bytes of a key or value in etcd's JSON."""
    return base64.b64decode(text)


class EtcdClient:
    """Calls etcd. ``user`` and ``password`` are empty without access control."""

    def __init__(
        self,
        endpoints: Sequence[EtcdEndpoint],
        user: str = "",
        password: str = "",
        context: ssl.SSLContext | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._endpoints = list(endpoints)
        self._user, self._password = user, password
        self._context = context
        self._timeout_s = timeout_s
        self._token = ""

    async def call(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        """Return the answer to one call. Raises StoreUnavailable, or EtcdRefusal for an error that is an answer."""
        if self._user and not self._token:
            await self._authenticate()
        try:
            return await self._post(path, body)
        except EtcdRefusal as refusal:
            if not self._user or refusal.code not in (_UNAUTHENTICATED, _HTTP_UNAUTHORIZED):
                raise
        # The token was forgotten: members forget tokens after five minutes, and when they restart.
        await self._authenticate()
        return await self._post(path, body)

    async def _authenticate(self) -> None:
        self._token = ""
        try:
            answer = await self._post(
                "/v3/auth/authenticate", {"name": self._user, "password": self._password}
            )
        except EtcdRefusal as refusal:
            raise StoreUnavailable(f"etcd refuses the user {self._user}: {refusal}") from refusal
        self._token = answer["token"]

    async def _post(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        problems: list[str] = []
        for endpoint in list(self._endpoints):
            try:
                with trio.fail_after(self._timeout_s):
                    stream = await self._open(endpoint)
            except (OSError, trio.TooSlowError, trio.BrokenResourceError) as error:
                problems.append(f"{endpoint.authority}: {_describe(error)}")
                self._ask_last(endpoint)
                continue
            try:
                with trio.fail_after(self._timeout_s):
                    async with stream:
                        return await self._exchange(stream, endpoint, path, body)
            except (
                OSError,
                ValueError,
                trio.TooSlowError,
                trio.BrokenResourceError,
                h11.ProtocolError,
            ) as error:
                self._ask_last(endpoint)
                may_serve_tls = not endpoint.is_encrypted and not isinstance(error, trio.TooSlowError)
                hint = ". If it serves TLS, its address begins with https://" if may_serve_tls else ""
                raise StoreUnavailable(f"etcd at {endpoint.authority}: {_describe(error)}{hint}") from error
        raise StoreUnavailable(f"no etcd member answers ({'; '.join(problems)})")

    def _ask_last(self, endpoint: EtcdEndpoint) -> None:
        self._endpoints.remove(endpoint)
        self._endpoints.append(endpoint)

    async def _open(self, endpoint: EtcdEndpoint) -> trio.abc.Stream:
        stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
        if not endpoint.is_encrypted:
            return stream
        context = self._context or ssl.create_default_context()
        encrypted = trio.SSLStream(stream, context, server_hostname=endpoint.host, https_compatible=True)
        try:
            await encrypted.do_handshake()
        except BaseException as error:
            await trio.aclose_forcefully(stream)
            if isinstance(error, trio.BrokenResourceError) and not _is_about_certificates(error.__cause__):
                raise OSError(
                    f"{_describe(error)}. If it serves no TLS, its address begins with http://"
                ) from error
            raise
        return encrypted

    async def _exchange(
        self, stream: trio.abc.Stream, endpoint: EtcdEndpoint, path: str, body: Mapping[str, Any]
    ) -> JsonObject:
        http = h11.Connection(h11.CLIENT)
        data = json.dumps(body).encode()
        headers = [
            ("Host", endpoint.authority),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(data))),
            ("Connection", "close"),
        ]
        if self._token:
            headers.append(("Authorization", self._token))
        request = h11.Request(method="POST", target=path, headers=headers)
        await stream.send_all(
            http.send(request) + http.send(h11.Data(data=data)) + http.send(h11.EndOfMessage())
        )
        return _read_answer(*await _receive(stream, http))


async def _receive(stream: trio.abc.Stream, http: h11.Connection) -> tuple[int, bytes]:
    """Return status and body of an answer. Raises h11.ProtocolError for one that ends too early."""
    status, body = 0, bytearray()
    while not isinstance(event := http.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            data = bytes(await stream.receive_some(_RECEIVE_BYTES))
            if not data and not status:
                raise ValueError("it closed the connection without an answer")
            http.receive_data(data)
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_ANSWER_BYTES:
                raise ValueError(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
        elif isinstance(event, h11.ConnectionClosed):
            raise ValueError("it closed the connection without an answer")
    return status, bytes(body)


def _read_answer(status: int, body: bytes) -> JsonObject:
    try:
        document = json.loads(body)
    except ValueError:
        # Also of a member with TLS that is called without: it answers with a sentence.
        text = body[:MAX_SHOWN_BYTES].decode(errors="replace").strip()
        raise ValueError(f"the answer, of HTTP status {status}, is not JSON: {text}") from None
    if not isinstance(document, dict):
        raise ValueError("the answer is not a JSON object")
    # A streaming call wraps its answer.
    answer: JsonObject = document.get("result", document)
    error = answer.get("error")
    if isinstance(error, dict):  # of a streaming call
        raise EtcdRefusal(int(error.get("grpc_code") or 0), str(error.get("message", error)))
    if error is not None or status != 200:
        code = int(answer.get("code", status))
        text = str(answer.get("message") or error or f"HTTP status {status}")
        if code in _MEMBER_TROUBLES:
            raise ValueError(text)
        raise EtcdRefusal(code, text)
    return answer


_MEMBER_TROUBLES: Final = frozenset((4, 13, 14, 502, 503, 504))
"""gRPC codes and HTTP statuses of a member without a leader, or that is about to stop: no answer to what was asked."""


_REFUSED_CERTIFICATE: Final = frozenset(
    (
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "TLSV1_ALERT_UNKNOWN_CA",
    )
)
"""Alerts of a member that is not satisfied with the certificate of its client, or demands one."""
_OTHER_NAME: Final = frozenset((62, 64))
"""Codes of OpenSSL for a certificate of another host name, or of another address."""


def _describe(error: Exception) -> str:
    if isinstance(error, trio.TooSlowError):
        return "no answer in time"
    # Trio tells of a failure of TLS, as of any broken connection, without a text of its own.
    cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) else error
    if isinstance(cause, ssl.SSLError):
        return _describe_tls(cause)
    return str(error) or str(cause or "") or type(error).__name__


def _is_about_certificates(error: BaseException | None) -> bool:
    return isinstance(error, ssl.SSLCertVerificationError) or (
        isinstance(error, ssl.SSLError) and error.reason in _REFUSED_CERTIFICATE
    )


def _describe_tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = (
            ""
            if error.verify_code in _OTHER_NAME
            else ". Set controllerEtcdCa to the authority that signed it"
        )
        return f"its certificate is not accepted: {error.verify_message}{advice}"
    if error.reason in _REFUSED_CERTIFICATE:
        return (
            "it demands the certificate of a client, signed by an authority that it trusts: set controllerEtcdCert and "
            f"controllerEtcdKey ({error.reason})"
        )
    return f"TLS: {error.reason or error}"
