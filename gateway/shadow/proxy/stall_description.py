"""Tells which client's request a stack of the event loop is about, when the stack leads through a session.

`LoopWatchdog` reads the stack only when the loop is blocked, so nothing is added to the path of a request. Each
function of the stack contributes what its variables say: an exchange that is observed or mirrored, a frame that is
routed, an answer that is matched, and the session itself, which knows the client.
"""

from types import CodeType, FrameType
from typing import Any, Final

from codec.constants import FLAG_RESPONSE
from gateway.shadow.proxy.frame_peek import HEADER_AT, UNKNOWN, FrameHead, peek_code
from gateway.shadow.proxy.pending_requests import PendingRequest
from gateway.shadow.proxy.session_driver import SessionDriver
from gateway.shadow.traffic.exchange import Exchange
from remoting.declare import REQUESTS

_EXCHANGE: Final = "exchange"
_FROM_CLIENT: Final[CodeType] = SessionDriver._on_client_data.__code__
_FROM_UPSTREAM: Final[frozenset[CodeType]] = frozenset(
    (SessionDriver._on_primary_data.__code__, SessionDriver._on_target_data.__code__)
)
_SESSION: Final[frozenset[CodeType]] = frozenset(
    each.__code__
    for each in (
        SessionDriver._follow_up,
        SessionDriver._continue_turn,
        SessionDriver._on_decision,
        SessionDriver._on_end,
        SessionDriver.abort,
    )
)


def describe_session_frame(frame: FrameType) -> dict[str, Any] | None:
    """Return what a function on the stack knows about a request: code, name, bytes, client; None for nothing."""
    code, names = frame.f_code, frame.f_code.co_varnames
    if code is _FROM_CLIENT:
        values = frame.f_locals
        return {**_describe_received(values["data"]), "remote": values["self"].client.remote}
    if code in _FROM_UPSTREAM:
        values = frame.f_locals
        return {"answer_bytes": len(values["data"]), "remote": values["self"].client.remote}
    if code in _SESSION:
        return {"remote": frame.f_locals["self"].client.remote}
    if _EXCHANGE in names:
        exchange = frame.f_locals.get(_EXCHANGE)
        if isinstance(exchange, Exchange):
            return {**_describe(exchange.code, len(exchange.request)), "remote": exchange.client}
    elif "head" in names and "frame" in names:
        return _describe_routed(frame.f_locals)
    return None


def _describe_routed(values: dict[str, Any]) -> dict[str, Any] | None:
    """Describe a frame that is being routed, or the request that it answers."""
    head, frame, request = values.get("head"), values.get("frame"), values.get("request")
    if isinstance(request, PendingRequest):
        return _describe(request.code, len(request.frame))
    if isinstance(head, FrameHead) and isinstance(frame, bytes) and not head.flag & FLAG_RESPONSE:
        return _describe(head.code, len(frame))
    return None


def _describe_received(data: bytes) -> dict[str, Any]:
    """Describe the first request of what a client sent, and the size of it all."""
    code = peek_code(data, 0, len(data)) if len(data) > HEADER_AT else UNKNOWN
    facts = {} if code == UNKNOWN else _describe(code, None)
    return {**facts, "received_bytes": len(data)}


def _describe(code: int, size_bytes: int | None) -> dict[str, Any]:
    request = REQUESTS.get(code)
    facts: dict[str, Any] = {"code": code, "request": request.NAME if request is not None else ""}
    return facts if size_bytes is None else {**facts, "request_bytes": size_bytes}
