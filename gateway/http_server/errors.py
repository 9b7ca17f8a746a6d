"""Errors and HTTP statuses that console routes of several parts share.

The parts raise `OperationRefused` from their own logic, without knowing about HTTP; their routes turn it into a
`ConsoleError` with the status `HTTP_CONFLICT`.
"""

from typing import Final

HTTP_CONFLICT: Final = 409
"""The operation is valid, but not in the current state of the topic."""
HTTP_BAD_GATEWAY: Final = 502
"""A cluster could not be asked."""


class OperationRefused(Exception):
    """The current state does not allow an operation; the text says what would have to change first."""


class ConsoleError(Exception):
    """Raised by a route to answer with an error: its HTTP status, and headers besides the usual ones."""

    def __init__(self, text: str, status: int = 400, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers
