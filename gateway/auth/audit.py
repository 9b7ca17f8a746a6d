"""The audit log: one line, `administrative request`, for each request that changes something, allowed or refused.

A line has the request, what it is to change, the sender's address, the user and the result. `audited_requests.py`
declares which requests leave one; handlers know nothing of it. There are two places where a request ends: its handler
returns (`AuditLog.observers`), or an exception refuses it before or in the handler (`AuditLog.guard`).

Committed offsets belong in the log when somebody other than the group's consumers commits them (`OutsideCommits`).
Consumers commit several times a second with the request by which administrators move a group that has no members
(`rmq-gateway group seek`, mqadmin's `resetOffsetByTime`). They differ in two ways: consumers announce their groups by
heartbeats, and commit oneway. Programs that read without joining, such as Spark, commit like administrators and go on
for days, so only the first commit of a connection for a group counts.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from codec.command import Command
from codec.java_numbers import quoted
from gateway.auth.audited_requests import AUDITED, describe_request
from gateway.runtime.repeated_events import ALWAYS_WRITTEN
from remoting.acl import ACCESS_KEY
from remoting.connection import Connection, Handler
from remoting.declare import REQUESTS, Header
from remoting.errors import RequestError
from remoting.handler_table import AnswersLater, Finish, Guard, Observe, Outcome, Protect, leave_unprotected
from remoting.requests.offsets import UpdateConsumerOffset

log = logging.getLogger(__name__)

EVENT: Final = "administrative request"
DONE, ACCEPTED, REFUSED, INTERRUPTED = "done", "accepted", "refused", "interrupted"
"""Results of a request. ACCEPTED: the change is in effect, and the answer follows when it is on the disk. INTERRUPTED:
the connection closed before the answer; the change may or may not have taken effect.
"""

FindSigner = Callable[[Command], str | None]
"""Returns the user whose signature a request carries; None without a valid signature."""


def find_no_signer(command: Command) -> str | None:
    """Return None: without access control nobody verifies signatures."""
    return None


IsMember = Callable[[str, Connection], bool]
"""Return True if a connection is a consumer of the group."""


class OutsideCommits:
    """Remembers, until a connection closes, the groups for which it has committed without being a member."""

    def __init__(self, is_member: IsMember) -> None:
        self._is_member = is_member
        self._groups: dict[Connection, set[str]] = {}

    def is_first(self, connection: Connection, command: Command) -> bool:
        """Return True for a connection's first commit for a group that it has not joined."""
        if command.is_oneway:
            return False
        group = UpdateConsumerOffset.from_command(command).consumer_group
        return group not in self._groups.get(connection, ()) and not self._is_member(group, connection)

    def remember(self, connection: Connection, command: Command) -> None:
        """Record that a connection has committed for a group, so that its next commits do not count."""
        if connection not in self._groups:
            self._groups[connection] = set()
            connection.on_close(self._forget)
        self._groups[connection].add(UpdateConsumerOffset.from_command(command).consumer_group)

    def _forget(self, connection: Connection) -> None:
        self._groups.pop(connection, None)


class AuditLog:
    """Writes the audit lines of one server, a namesrv or a broker; each contains the server's name."""

    def __init__(
        self, server: str, find_signer: FindSigner = find_no_signer, is_member: IsMember | None = None
    ) -> None:
        self._server = server
        self._find_signer = find_signer
        self._outside_commits = None if is_member is None else OutsideCommits(is_member)

    def guard(self, protect: Protect = leave_unprotected) -> Guard:
        """Return the guard of a server: the checks of ``protect``, with the audit log around them."""
        return Guard(partial(self._protect, protect), self.observers())

    def observers(self) -> dict[int, Observe]:
        """Return the observers of requests whose handlers return, by request code."""
        observers: dict[int, Observe] = dict.fromkeys(AUDITED, self._begin)
        if self._outside_commits is not None:
            observers[UpdateConsumerOffset.code] = partial(self._begin_commit, self._outside_commits)
        return observers

    def _protect(self, protect: Protect, code: int, handler: Handler) -> Handler:
        checked = protect(code, handler)
        if code not in AUDITED:
            return checked

        def handle(connection: Connection, command: Command) -> bytes | None:
            try:
                return checked(connection, command)
            except Exception as error:
                self._begin(connection, command)(error)
                raise

        return handle

    def _begin(self, connection: Connection, command: Command) -> Finish:
        """Return the function that writes the line. The sender is identified now: the request may delete its user."""
        facts = {
            "request": REQUESTS[command.code].NAME,
            "server": self._server,
            "remote": connection.remote[0],
            **self._describe_sender(command),
            "change": describe_request(command),
        }

        def finish(outcome: Outcome) -> None:
            result = _describe_outcome(outcome)
            # Any client that reaches the port can cause refusals, so their lines are bounded; those of changes are not.
            is_complete = result["result"] != REFUSED
            log.info(EVENT, extra={**facts, **result, ALWAYS_WRITTEN: is_complete})

        return finish

    def _begin_commit(self, commits: OutsideCommits, connection: Connection, command: Command) -> Finish:
        """Return the function that writes the line, if this is a connection's first commit for a foreign group."""
        if not commits.is_first(connection, command):
            return _write_nothing
        write_line = self._begin(connection, command)

        def finish(outcome: Outcome) -> None:
            if outcome is None:
                commits.remember(connection, command)
                write_line(outcome)

        return finish

    def _describe_sender(self, command: Command) -> dict[str, str]:
        """Return the user as ``by``, or an unverified name as ``claims``."""
        name = command.ext.get(ACCESS_KEY)
        if not name:
            return {}
        return {"by" if self._find_signer(command) is not None else "claims": quoted(name)}


def _write_nothing(_: Outcome) -> None:
    """Finish a request that leaves no line."""


def _describe_outcome(outcome: Outcome) -> dict[str, object]:
    if isinstance(outcome, AnswersLater):
        return {"result": ACCEPTED}
    if isinstance(outcome, RequestError):
        return {"result": REFUSED, "code": int(outcome.code), "reason": outcome.remark}
    if isinstance(outcome, Exception):
        return {"result": REFUSED, "reason": type(outcome).__name__}
    if isinstance(outcome, BaseException):
        return {"result": INTERRUPTED}
    if isinstance(outcome, Header) and outcome.code:
        return {"result": REFUSED, "code": int(outcome.code), "reason": outcome.remark}
    return {"result": DONE}
