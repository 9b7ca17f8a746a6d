"""The protocol's own status codes: refusals of this front, and those of the broker translated.

Source: ResponseBuilder and GrpcProxyException, 5.4.0.
"""

import logging
from typing import Final

from codec.constants import ResponseCode
from gateway.auth.access_control import AccessDenied
from gateway.grpc_front import messages
from gateway.grpc_front.framing import MAX_STATUS_CHARS
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError

log = logging.getLogger(__name__)

_CODES: Final[dict[int, messages.Code]] = {
    ResponseCode.SUCCESS: messages.OK,
    ResponseCode.SYSTEM_BUSY: messages.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_FULL: messages.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: messages.NOT_IMPLEMENTED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: messages.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.TOPIC_NOT_EXIST: messages.TOPIC_NOT_FOUND,
    ResponseCode.NO_PERMISSION: messages.FORBIDDEN,
}
"""Deviation: the official Proxy has no code for a topic or group without permission, and answers an internal error."""


class StatusError(Exception):
    """A request that is refused with a code of the protocol."""

    def __init__(self, code: messages.Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def make_status(code: messages.Code, text: str = "") -> messages.Status:
    """Return a status; without a text it has the name of its code. A long text is truncated."""
    return messages.Status(code=code, message=text[:MAX_STATUS_CHARS] or messages.Code.Name(code))


OK: Final = make_status(messages.OK)


def status_of(error: Exception) -> messages.Status:
    """Return the status that answers a failed request."""
    match error:
        case StatusError():
            return make_status(error.code, error.text)
        case AccessDenied():
            return make_status(messages.UNAUTHORIZED, error.remark or "")
        case RequestError():
            return make_status(_CODES.get(error.code, messages.INTERNAL_SERVER_ERROR), error.remark or "")
        case RemotingTimeout() | RemotingClosed():
            return make_status(messages.PROXY_TIMEOUT, str(error))
    log.error("request failed", exc_info=error)
    return make_status(messages.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")


def overall_status(statuses: list[messages.Status]) -> messages.Status:
    """Return the status of an answer with several results."""
    codes = {status.code for status in statuses}
    if len(codes) > 1:
        return make_status(messages.MULTIPLE_RESULTS)
    return make_status(codes.pop())
