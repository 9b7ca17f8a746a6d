"""The parts of replication that a broker has, by its role."""

from dataclasses import dataclass
from typing import Protocol

from gateway.broker.replication.ha_server import HaServer
from gateway.broker.replication.in_sync import InSyncRule
from gateway.config.replication import ReplicationSettings


class MasterFollower(Protocol):
    """The part of a slave that copies its master's log."""

    @property
    def is_copying(self) -> bool:
        """True while the master is connected."""


@dataclass(slots=True)
class Replication:
    """``server`` serves slaves, or refuses them at a slave.

    ``in_sync`` is None unless the broker is a SYNC_MASTER, ``follower`` unless it is a slave. ``master_address`` is
    where the master of a slave answers requests, "" while unknown.
    """

    server: HaServer
    in_sync: InSyncRule | None = None
    follower: MasterFollower | None = None
    master_address: str = ""

    def note_master(self, ha_address: str | None, address: str | None) -> None:
        """Take over the addresses that a namesrv's answer has; those that it lacks stay."""
        self.master_address = address or self.master_address

    def reconfigure(self, settings: ReplicationSettings) -> None:
        """Apply changed settings from now on."""
        self.server.settings = settings
        if self.in_sync is not None:
            self.in_sync.settings = settings

    @property
    def follows_master(self) -> bool:
        """True at a slave that is connected to its master."""
        return self.follower is not None and self.follower.is_copying
