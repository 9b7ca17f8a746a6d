"""Finds committed offsets that belong in the audit log: those that somebody else than the group's consumers commits.

Consumers commit several times a second with the request by which administrators move a group that has no members
(`rmq-gateway group seek`, mqadmin's `resetOffsetByTime`). They differ in two ways: consumers announce their groups by
heartbeats, and commit oneway. Programs that read without joining, such as Spark, commit like administrators and go on
for days; so only the first commit of a connection for a group counts.
"""

from collections.abc import Callable

from codec.command import Command
from remoting.connection import Connection
from remoting.requests.offsets import UpdateConsumerOffset

IsMember = Callable[[str, Connection], bool]
"""Tells whether a connection is a consumer of a group."""


class OutsideCommits:
    """Remembers the groups for which each connection has committed from outside, until it closes."""

    def __init__(self, is_member: IsMember) -> None:
        self._is_member = is_member
        self._groups: dict[Connection, set[str]] = {}

    def is_first(self, connection: Connection, command: Command) -> bool:
        """Tell whether a request is a connection's first commit for a group that it has not joined."""
        if command.is_oneway:
            return False
        group = UpdateConsumerOffset.from_command(command).consumer_group
        return group not in self._groups.get(connection, ()) and not self._is_member(group, connection)

    def remember(self, connection: Connection, command: Command) -> None:
        """Note that a connection has committed for a group, so that its next commits do not count."""
        if connection not in self._groups:
            self._groups[connection] = set()
            connection.on_close(self._forget)
        self._groups[connection].add(UpdateConsumerOffset.from_command(command).consumer_group)

    def _forget(self, connection: Connection) -> None:
        self._groups.pop(connection, None)
