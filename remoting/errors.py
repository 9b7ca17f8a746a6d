"""Exceptions between sending a request and its answer."""

from typing import Final


class RequestError(Exception):
    """A refusal: the server's answer to one request, with its response code and remark.

    Raised by a handler it becomes the answer, with ``fields`` as header; raised by a client it is the answer that
    arrived.
    """

    def __init__(self, code: int, remark: str | None = None, fields: dict[str, str] | None = None) -> None:
        super().__init__(f"CODE: {code}  DESC: {remark}")
        self.code = code
        self.remark = remark
        self.fields = fields

    def __reduce__(self) -> tuple[type["RequestError"], tuple[int, str | None]]:
        return RequestError, (self.code, self.remark)


class RemotingTimeout(Exception):
    """No answer within the time the caller gave. The peer may still carry out the request."""


class RemotingClosed(Exception):
    """The connection ended before the answer came. The peer may still carry out the request."""


REQUEST_FAILURES: Final = (OSError, RemotingClosed, RemotingTimeout, RequestError)
"""All that a request to another server may raise, with the connection that is opened for it."""


def first_leaf(error: BaseException) -> BaseException:
    """Return the first exception of a group, which may hold groups itself, or the exception if it is not a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
