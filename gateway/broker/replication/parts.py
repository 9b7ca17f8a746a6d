"""The parts of replication that a broker has, by its role."""

from dataclasses import dataclass

from gateway.broker.replication.in_sync import InSyncRule


@dataclass(slots=True)
class Replication:
    """``in_sync`` is None unless the broker is a SYNC_MASTER."""

    in_sync: InSyncRule | None = None
