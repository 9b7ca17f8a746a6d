"""Errors of commands that ask servers: each text says what failed, and what to do."""

from typing import Any, Final

from codec.constants import ResponseCode
from remoting.declare import Request
from remoting.requests import namesrv

_ADVICE: Final = {
    ResponseCode.NO_PERMISSION: "Sign requests with --access-key and --secret-key-file, or use another user.",
    ResponseCode.SYSTEM_BUSY: "The server is busy: try again later.",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "This server does not have the request; see its version with "
    '"rmq-gateway cluster info".',
    ResponseCode.TOPIC_NOT_EXIST: 'See the names with "rmq-gateway topic list".',
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: 'See the names with "rmq-gateway group list".',
}

_NO_NAMESRV: Final = (
    "Only namesrvs have this request, so this is probably a broker: pass a namesrv with --namesrv."
)


class AdminError(Exception):
    """A failure that ends a command; the text needs no addition."""


class NotReached(AdminError):
    """A server does not answer. The request may have been carried out all the same.

    ``reason`` is the cause alone, without advice about the kind of server; "" where the text has no such part.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason


class Refused(AdminError):
    """A server answered with an error; ``code`` and ``remark`` are its own."""

    def __init__(self, address: str, request: Request[Any], code: int, remark: str | None) -> None:
        self.code = code
        self.remark = first_line(remark)
        advice = _ADVICE.get(ResponseCode(code), "") if code in set(ResponseCode) else ""
        if code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and type(request).__module__ == namesrv.__name__:
            advice = _NO_NAMESRV
        super().__init__(
            f"{address} refused {request.NAME}: {self.remark or 'no reason given'} (code {code})."
            + (f" {advice}" if advice else "")
        )


class NotFound(AdminError):
    """The topic, group, broker or message does not exist."""


def first_line(remark: str | None) -> str:
    """Return the first line of a remark: official servers append a link or a stack trace."""
    text = (remark or "").strip().split("\n")[0]
    return text.rstrip(".").strip()
