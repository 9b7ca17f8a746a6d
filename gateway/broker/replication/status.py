"""The state of replication as people see it: in `brokerStatus`, metrics, `/readyz` and `rmq-gateway cluster`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from codec.hosts import format_host
from gateway.broker.replication.follower import NO_CONNECTION
from gateway.broker.replication.parts import LogCut, Replication
from gateway.broker.replication.replica import Replica
from gateway.config.replication import ReplicationSettings, Role
from storage.commit_log import CommitLog
from storage.errors import CorruptionError
from storage.store import MessageStore

TROUBLE: Final = "replicationTrouble"
"""The entry of the runtime information with the reason why a slave cannot copy its master, or two have one id."""


@dataclass(frozen=True, slots=True)
class SlaveStatus:
    """One slave as its master sees it: what it has not acknowledged, in bytes and as the age of the oldest of them."""

    address: str
    behind_bytes: int
    behind_ms: int
    in_sync: bool


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """The state of a broker's replication.

    ``slaves`` are those of a master; the rest is of a slave. ``behind_bytes`` and ``behind_ms`` are -1 while unknown.
    ``unqueued_bytes`` are copied, but not in their queues yet. ``trouble`` needs an operator.
    """

    settings: ReplicationSettings
    slaves: tuple[SlaveStatus, ...] = ()
    behind_bytes: int = -1
    behind_ms: int = -1
    unqueued_bytes: int = 0
    state: str = ""
    trouble: str = ""
    last_cut: LogCut | None = None

    @property
    def in_sync_count(self) -> int:
        """Number of slaves that are in sync."""
        return sum(slave.in_sync for slave in self.slaves)

    @property
    def is_worth_showing(self) -> bool:
        """False for a master that nobody copies, and that waits for nobody."""
        return bool(self.slaves) or self.settings.is_sync_master or self.settings.role is Role.SLAVE

    def runtime_info(self) -> Mapping[str, str]:
        """Return the entries of `brokerStatus`; none where there is nothing to show."""
        if not self.is_worth_showing:
            return {}
        info = {"brokerRole": self.settings.broker_role}
        if self.settings.role is Role.MASTER:
            return (
                info
                | self._trouble_info
                | {
                    "slaves": str(len(self.slaves)),
                    "slavesInSync": str(self.in_sync_count),
                    "slaveBehindBytes": str(max((slave.behind_bytes for slave in self.slaves), default=0)),
                    "slaveBehindMs": str(max((slave.behind_ms for slave in self.slaves), default=0)),
                }
            )
        info |= {
            # An official entry, of messages that are not in their queues yet.
            "dispatchBehindBytes": str(self.unqueued_bytes),
            "slaveState": self.state,
            "slaveBehindBytes": str(self.behind_bytes),
            "slaveBehindMs": str(self.behind_ms),
        }
        if self.last_cut is not None:
            cut = self.last_cut
            info["lastCut"] = f"{cut.size_bytes} bytes from {cut.physical_offset} on at {cut.time_ms}"
        return info | self._trouble_info

    @property
    def _trouble_info(self) -> dict[str, str]:
        return {TROUBLE: self.trouble} if self.trouble else {}


def replication_status(
    replication: Replication, store: MessageStore, settings: ReplicationSettings, now_ms: int
) -> ReplicationStatus:
    """Return the state of this moment."""
    if settings.role is Role.SLAVE:
        return _status_of_slave(replication, store, settings, now_ms)
    log = store.commit_log
    slaves = (_slave_status(replica, log, settings, now_ms) for replica in replication.server.replicas)
    return ReplicationStatus(settings, tuple(slaves), trouble=replication.server.trouble)


def _status_of_slave(
    replication: Replication, store: MessageStore, settings: ReplicationSettings, now_ms: int
) -> ReplicationStatus:
    follower = replication.follower
    if follower is None:
        return ReplicationStatus(settings, last_cut=replication.last_cut)
    behind_bytes, newest_ms = follower.lag_bytes, store.dispatched_until_ms
    behind_ms = 0 if behind_bytes == 0 else -1
    if behind_bytes > 0 and newest_ms is not None:
        behind_ms = max(0, now_ms - newest_ms)
    needs_operator = bool(follower.reason) and follower.state != NO_CONNECTION
    trouble = f"{follower.state}: {follower.reason}" if needs_operator else ""
    return ReplicationStatus(
        settings,
        behind_bytes=behind_bytes,
        behind_ms=behind_ms,
        unqueued_bytes=max(0, store.max_physical_offset - store.commit_log.readable_until),
        state=follower.state,
        trouble=trouble,
        last_cut=replication.last_cut,
    )


def _slave_status(
    replica: Replica, log: CommitLog, settings: ReplicationSettings, now_ms: int
) -> SlaveStatus:
    behind = replica.bytes_behind(log.max_offset)
    return SlaveStatus(
        format_host(replica.remote),
        behind,
        _age_at(log, replica.acknowledged, now_ms) if behind else 0,
        behind < settings.max_gap_not_in_sync_bytes,
    )


def _age_at(log: CommitLog, offset: int, now_ms: int) -> int:
    """Return the age, in ms, of the first message from an offset on; 0 where none begins."""
    try:
        time_ms = log.first_store_timestamp(max(offset, log.first_base))
    except CorruptionError:
        return 0
    return 0 if time_ms is None else max(0, now_ms - time_ms)
