"""Recognises peers that speak another protocol than remoting, so that the log can say what to do about them."""

import logging
from typing import Final

log = logging.getLogger(__name__)

_HTTP: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN")

HTTP_2_BEGIN: Final = b"PRI "
HTTP_2: Final = (
    "HTTP/2, as gRPC clients of RocketMQ 5 (rocketmq-client-java and others) and proxies speak it",
    "ports of a process with brokers serve gRPC (grpcOnRemotingPorts=true): give gRPC clients the address of one, or "
    "use a remoting client (Java: rocketmq-client)",
)
HTTP: Final = (
    "HTTP",
    "this port speaks the remoting protocol only; pages and metrics have ports of their own (httpPort)",
)
TLS: Final = (
    "TLS",
    "turn TLS on at this server (tls.server.mode), or off at the client (tls.enable=false)",
)


def recognise(data: bytes | bytearray | memoryview) -> tuple[str, str] | None:
    """Return the protocol that a connection's first bytes belong to, and the remedy; None for an unknown protocol."""
    begin = bytes(data[:4])
    if begin == HTTP_2_BEGIN:
        return HTTP_2
    if begin in _HTTP:
        return HTTP
    if begin[:2] == b"\x16\x03":
        return TLS
    return None


def log_foreign(remote: tuple[str, int], local: tuple[str, int], protocol: str, remedy: str) -> None:
    """Log that a peer speaks another protocol than this port does."""
    extra = {"remote": remote, "port": local[1], "protocol": protocol, "remedy": remedy}
    log.warning("connection closed: the peer speaks another protocol", extra=extra)
