"""The parts of replication that a broker has, by its role."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from codec.command import Command
from codec.constants import MASTER_ID
from gateway.broker.delayed.timer_takeover import TakeoverState
from gateway.broker.replication.confirmation import Confirmation
from gateway.broker.replication.epochs import EpochTable
from gateway.broker.replication.follower import Dial, Follower
from gateway.broker.replication.ha_server import HaServer
from gateway.broker.replication.in_sync import InSyncRule
from gateway.broker.replication.master_lookup import Master, MasterLookup
from gateway.broker.replication.members import ReplicaGroup
from gateway.broker.replication.sync_state import SyncStateRule
from gateway.broker.replication.table_sync import TableSync
from gateway.config.replication import ReplicationSettings
from remoting.client import open_client
from remoting.transport import Opener, connect


@dataclass(frozen=True, slots=True)
class PeerLinks:
    """Ways from a slave to its master: to the HA port, and to the port for requests, which ``sign`` signs.

    ``open_secure`` opens the HA port of a master of this project, with TLS if that is configured.
    """

    open_transport: Opener = connect
    dial: Dial = open_client
    sign: Callable[[Command], None] | None = None
    open_secure: Opener | None = None


@dataclass(frozen=True, slots=True)
class SlaveParts:
    """The further parts of a slave: where its master is, and the tasks that copy its log and its tables."""

    lookup: MasterLookup
    follower: Follower
    table_sync: TableSync


class MasterFollower(Protocol):
    """The part of a slave that copies its master's log. ``state`` says how that goes, ``reason`` why it does not.

    ``damaged_messages`` were refused since the start, because their body did not match its CRC.
    """

    state: str
    reason: str
    damaged_messages: int

    @property
    def master_address(self) -> str:
        """The HA address of the master, "" while it is unknown."""

    @property
    def is_copying(self) -> bool:
        """True while the master is connected."""

    @property
    def lag_bytes(self) -> int:
        """Bytes of the master's log that are missing here; -1 while that is unknown."""


@dataclass(frozen=True, slots=True)
class LogCut:
    """The last messages of a log that were cut off, because the master did not have them: from an offset, at a time."""

    time_ms: int
    physical_offset: int
    size_bytes: int


@dataclass(slots=True)
class Replication:
    """``server`` serves slaves, or refuses them at a slave. ``group`` has the registered brokers of this name.
    ``takeover`` says whether the store was a slave's before.

    ``epochs`` is None without a controller, ``in_sync`` unless the broker is a SYNC_MASTER, ``slave`` and its
    ``follower`` unless it is a slave. ``is_controlled``: a controller decides who the master is, and what namesrvs say
    about it does not count. ``master_address`` is where the master of a slave answers requests, "" while unknown.
    ``last_cut`` is of this run. ``confirmation`` is None unless messages are readable once they are confirmed.
    """

    server: HaServer
    group: ReplicaGroup
    takeover: TakeoverState
    in_sync: InSyncRule | SyncStateRule | None = None
    epochs: EpochTable | None = None
    slave: SlaveParts | None = None
    follower: MasterFollower | None = None
    master_address: str = ""
    last_cut: LogCut | None = None
    confirmation: Confirmation | None = None

    @property
    def is_controlled(self) -> bool:
        """True for a broker under a controller: only such have epochs."""
        return self.epochs is not None

    @property
    def end_batch(self) -> Callable[[], None]:
        """Called after each batch of requests: sends what they have stored."""
        confirmation, wake = self.confirmation, self.server.wake
        if confirmation is None:
            return wake

        def advance_and_wake() -> None:
            confirmation.advance()
            wake()

        return advance_and_wake

    def note_master(self, ha_address: str | None, address: str | None) -> None:
        """Take over the addresses that a namesrv's answer has; those that it lacks stay."""
        if self.is_controlled:
            return
        self.master_address = address or self.master_address
        if self.slave is not None:
            self.slave.lookup.note_registration(ha_address, address)

    def follow_master(self, master: Master | None, address: str) -> None:
        """Follow the master that a controller names; None while its HA port is not known."""
        self.master_address = address
        if self.slave is not None:
            self.slave.lookup.set_master(master)

    @property
    def sync_state(self) -> SyncStateRule | None:
        """The replicas in sync of a master under a controller; None at others."""
        return self.in_sync if isinstance(self.in_sync, SyncStateRule) else None

    def confirm_offset(self, log_end: int) -> int:
        """Return the physical offset below which the log, which ends at ``log_end``, is confirmed."""
        if self.sync_state is not None:
            return self.sync_state.confirm_offset
        if self.slave is not None and self.slave.follower.confirm_offset is not None:
            return min(log_end, self.slave.follower.confirm_offset)
        return log_end

    @property
    def lacks_master(self) -> bool:
        """True at a slave that waits for a namesrv to say who its master is, or where its log is copied from."""
        if self.is_controlled:
            return False
        return self.slave is not None and (not self.master_address or self.slave.lookup.master is None)

    def note_members(self, addresses: Mapping[int, str]) -> None:
        """Take over the addresses of all brokers of this name that are registered, by broker id."""
        self.group.note_members(addresses)
        if isinstance(self.in_sync, InSyncRule):
            self.in_sync.alive_replicas = len(addresses)
        self.note_master(None, addresses.get(MASTER_ID))

    def reconfigure(self, settings: ReplicationSettings) -> None:
        """Apply changed settings from now on."""
        self.server.settings = settings
        if self.in_sync is not None:
            self.in_sync.settings = settings

    @property
    def follows_master(self) -> bool:
        """True at a slave that is connected to its master; False once it acts as master, which may be sooner."""
        return self.follower is not None and self.follower.is_copying and not self.group.acts_as_master
