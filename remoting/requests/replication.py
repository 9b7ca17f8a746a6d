"""Private requests of replication: of a shadow gateway to a target that is this server, and of a slave to its master.

Official servers do not know their codes.
"""

from remoting.bodies.progress import ConsumerOffsetSerializeWrapper
from remoting.bodies.replication import ReplicatedAccounts, ReplicatedTables
from remoting.declare import Header, Request, i32, i64

UNEXPECTED_OFFSET = 21
"""PULL_OFFSET_MOVED: the messages do not start at the queue's next offset, which the reply contains."""
PRIVATE_CODES = range(770_000, 771_000)
"""Request codes private to this project, far from every official range (the highest official one is 200151)."""


class RaiseConsumerOffsets(Request[None], code=770_011):
    """Raise a master's consumer offsets to those that consumers committed at a slave while the master was away.

    Offsets of unknown topics are left out, and smaller ones than the master's. Groups are created as for a first pull.
    """

    data: ConsumerOffsetSerializeWrapper


class PutMessagesAtOffsetsReply(Header):
    """The offset the queue expects next: 0 or one past its last message."""

    next_offset: i64


class PutMessagesAtOffsets(
    Request[PutMessagesAtOffsetsReply],
    code=770_001,
    name="PUT_KEPT_MESSAGES",
    accept_codes=(UNEXPECTED_OFFSET,),
):
    """Store messages under the queue offsets they carry.

    The body holds whole stored messages of one queue, as pull answers do, with offsets from ``first_offset`` on
    without a gap. Messages that the queue already has are skipped. Messages beyond its end (0 for an unused queue) are
    refused with UNEXPECTED_OFFSET, unless ``reset`` states that the messages in between are lost for good: then the
    queue drops the messages it had and begins at ``first_offset``.
    """

    topic: str
    queue_id: i32
    first_offset: i64
    reset: bool = False


class GetReplicatedTablesReply(Header):
    """The answer to GET_REPLICATED_TABLES."""

    data: ReplicatedTables


class OpenReplicationReply(Header):
    """A ticket, in hexadecimal digits, with which a HA connection begins."""

    ticket: str


class OpenReplication(Request[OpenReplicationReply], code=770_012):
    """Return a ticket for one connection to the HA port, soon. Sent by a slave that has credentials.

    ``broker_id`` is the slave's, by which its master knows its connections; None from who only reads the log.
    """

    broker_id: i64 | None = None


class GetReplicatedTables(Request[GetReplicatedTablesReply], code=770_010):
    """Return the tables that official slaves do not copy. Sent by a slave of this project.

    With ``popped_only`` the answer has no more than the keys of offsets that pops have moved.
    """

    popped_only: bool = False


class GetReplicatedAccountsReply(Header):
    """The answer to GET_REPLICATED_ACCOUNTS."""

    data: ReplicatedAccounts


class GetReplicatedAccounts(Request[GetReplicatedAccountsReply], code=770_013):
    """Return users with their secrets, and policies. Sent by a slave of this project."""
