"""A request that waits for a message: what `long_poll.py` needs of it, and how little of its command it keeps."""

from enum import Enum
from typing import Final, Protocol

from codec.command import Command
from remoting.connection import Connection

MAX_WAITING_HEADER_CHARS: Final = 2048
"""Largest header of a request that may wait: a hundred thousand requests may wait for minutes. Those of clients have a
quarter of this, without their expression."""


class WaitOutcome(Enum):
    """The outcome of trying to answer a waiting request."""

    ANSWERED = 0
    NOTHING = 1
    """There is no message for it yet."""
    UNFINISHED = 2
    """There are more messages to look at than one step may."""


# Looking up a member of an Enum takes 0.2 us, twenty times as long as a name.
ANSWERED: Final = WaitOutcome.ANSWERED
NOTHING: Final = WaitOutcome.NOTHING
UNFINISHED: Final = WaitOutcome.UNFINISHED


class WaitingRequest:
    """A request that found no message yet. ``waiting_list`` is where it waits, None before and after."""

    __slots__ = ("connection", "tick", "waiting_list")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.tick = 0
        self.waiting_list: WaitingList | None = None

    def expire(self) -> None:
        """Answer the request with or without messages."""
        raise NotImplementedError

    def release(self) -> None:
        """Give up what is kept for the request. Called once, when it waits no longer."""


class WaitingList(Protocol):
    """Waiting requests in the order in which they came."""

    def add(self, request: WaitingRequest, /) -> None:
        """Add a request that is not in a list."""

    def discard(self, request: WaitingRequest, /) -> None:
        """Remove a request of this list."""


def keep_header(command: Command, expression_field: str, shared_expression: str | None) -> bool:
    """Drop what a waiting request does not need of its command; return False if the rest is too large to wait.

    ``shared_expression`` is the text that the filter cache holds for the request's expression, None without one.
    """
    command.body = b""
    command.remark = None
    if shared_expression is not None and command.ext.get(expression_field) == shared_expression:
        command.ext[expression_field] = shared_expression
        shared_chars = len(shared_expression)
    else:
        shared_chars = 0
    return sum(map(len, command.ext.values())) - shared_chars <= MAX_WAITING_HEADER_CHARS
