"""The rule of SYNC_MASTER: which slaves count as in sync, and up to which position enough of them have the log.

Each slave counts once, however many connections it has: a slave that connects anew replaces its older connection. The
HA server calls `join` with a slave's first report, `acknowledge` for bytes that it was sent on the same connection,
and `leave` when the connection closes. After each, listeners get the position that enough slaves have.

A slave that does not say who it is may be connected from two addresses. So no more of these connections count than
there are registered slaves besides the known ones, but at least one. Which of them are doubles cannot be told, so the
others must have a message as well. While the namesrv has not said who is registered, all count.

Which slaves are enough:

- ``inSyncReplicas`` unset: one slave. While none is connected, or all are at least ``haSlaveFallbehindMax`` bytes
  behind, a message is answered SLAVE_NOT_AVAILABLE at once. These are the rules of official 4.x brokers. The default of
  official 5.x brokers waits for nobody.
- ``inSyncReplicas`` = n, as in official 5.x brokers: n - 1 slaves, for at most ``slaveTimeout``, also while fewer are
  connected.
- With ``enableSlaveActingMaster``, the replicas in sync are this master and the slaves that are less than
  ``haMaxGapNotInSync`` bytes behind. With ``enableAutoInSyncReplicas`` no more than those are required, but at least
  ``minInSyncReplicas``. If fewer are in sync than required, a message is refused before it is stored.

Deviation: a required number that falls while answers wait applies to them as well. In the official broker each message
keeps the number that was required when it was appended, and fails although later ones succeed with fewer copies.

Source: CommitLog.asyncPutMessage and calcNeedAckNums, DefaultHAService.inSyncReplicasNums, GroupTransferService, 5.4.0;
HAService.isSlaveOK, 4.9.8.
"""

from collections.abc import Callable
from typing import Final

from codec.constants import ResponseCode
from gateway.config.replication import ReplicationSettings
from remoting.errors import RequestError

NOT_ENOUGH: Final = "in-sync replicas not enough"


def requires_replicas(settings: ReplicationSettings) -> bool:
    """Tell whether a message of a SYNC_MASTER may have to wait for slaves, or be refused for lack of them."""
    return settings.needed_replicas > 1 or (_adapts(settings) and settings.min_in_sync_replicas > 1)


def _adapts(settings: ReplicationSettings) -> bool:
    return settings.enable_slave_acting_master and settings.enable_auto_in_sync_replicas


class SlaveProgress:
    """The newest connection of one slave.

    ``position`` is the end of its log as it reported it last, ``acknowledged`` the end of what it acknowledged of the
    bytes that this connection sent, 0 before the first acknowledgement. ``is_known``: the slave said which one it is.
    """

    __slots__ = ("acknowledged", "is_known", "position", "slave")

    def __init__(self, slave: str, position: int, is_known: bool) -> None:
        self.slave = slave
        self.is_known = is_known
        self.position = position
        self.acknowledged = 0


class InSyncRule:
    """Implements `ReplicationRule` of `answer_gate.py` for a SYNC_MASTER.

    ``log_end`` returns the end of the master's log. ``alive_replicas`` is the number of registered replicas of the
    broker name, itself included, as the namesrv counts them; None while unknown.
    """

    def __init__(self, settings: ReplicationSettings, log_end: Callable[[], int]) -> None:
        self.settings = settings
        self.alive_replicas: int | None = None
        self._log_end = log_end
        self._slaves: dict[str, SlaveProgress] = {}
        self._nearest_position = 0  # of the slave that is least behind
        self._listeners: list[Callable[[int], None]] = []

    def add_listener(self, listener: Callable[[int], None]) -> None:
        """Call ``listener`` with the replicated position whenever slaves join, acknowledge or leave."""
        self._listeners.append(listener)

    # -- slaves ---------------------------------------------------------------------------------------------------

    def join(self, slave: str, position: int, *, is_known: bool = False) -> SlaveProgress:
        """Count a connected slave, whose log ends at ``position``; its older connection counts no more."""
        progress = self._slaves[slave] = SlaveProgress(slave, position, is_known)
        self._note_change()
        return progress

    def acknowledge(self, progress: SlaveProgress, position: int) -> None:
        """Note that a slave has the log up to a position that this connection has sent it."""
        progress.position = progress.acknowledged = position
        self._note_change()

    def leave(self, progress: SlaveProgress) -> None:
        """Count a connection no more. Idempotent."""
        if self._slaves.get(progress.slave) is progress:
            del self._slaves[progress.slave]
            self._note_change()

    def _note_change(self) -> None:
        self._nearest_position = max((slave.position for slave in self._slaves.values()), default=0)
        position = self.replicated_position
        for listener in self._listeners:
            listener(position)

    # -- what they have -------------------------------------------------------------------------------------------

    def is_in_sync(self, progress: SlaveProgress) -> bool:
        """Tell whether a slave is less than ``haMaxGapNotInSync`` bytes behind."""
        return self._log_end() - progress.position < self.settings.max_gap_not_in_sync_bytes

    @property
    def in_sync_count(self) -> int:
        """The number of replicas that are in sync, this master included."""
        count = 1 + self._distinct([slave for slave in self._slaves.values() if self.is_in_sync(slave)])
        return count if self.alive_replicas is None else min(count, self.alive_replicas)

    @property
    def _double_count(self) -> int:
        """The number of unknown connections that may be a second one of a slave."""
        if self.alive_replicas is None:
            return 0
        unknown = sum(not slave.is_known for slave in self._slaves.values())
        known_count = len(self._slaves) - unknown
        return max(0, unknown - max(1, self.alive_replicas - 1 - known_count))

    def _distinct(self, connections: list[SlaveProgress]) -> int:
        """Return how many slaves these connections are of, at least."""
        unknown = sum(not slave.is_known for slave in connections)
        return len(connections) - unknown + max(min(1, unknown), unknown - self._double_count)

    @property
    def required_copies(self) -> int:
        """The number of replicas that must have a message, this master included."""
        settings = self.settings
        if _adapts(settings):
            return max(min(settings.needed_replicas, self.in_sync_count), settings.min_in_sync_replicas)
        return settings.needed_replicas

    @property
    def replicated_position(self) -> int:
        """The end of what the required number of replicas have of the log."""
        required_slaves = self.required_copies - 1
        if required_slaves <= 0:
            return self._log_end()
        slaves = sorted(self._slaves.values(), key=lambda slave: slave.acknowledged, reverse=True)
        for count in range(required_slaves, len(slaves) + 1):
            if self._distinct(slaves[:count]) >= required_slaves:
                return slaves[count - 1].acknowledged
        return 0

    # -- the rule of the answer gate ------------------------------------------------------------------------------

    @property
    def timeout_s(self) -> float:
        """Maximum time in seconds that an answer waits for replicas."""
        return self.settings.slave_timeout_ms / 1000

    def status_now(self) -> int | None:
        """Return the status of the message that was appended last if its answer need not wait, otherwise None."""
        settings = self.settings
        if not settings.in_sync_replicas:
            behind = self._log_end() - self._nearest_position
            if not self._slaves or behind >= settings.slave_fallbehind_max_bytes:
                return ResponseCode.SLAVE_NOT_AVAILABLE
        return None if self.required_copies > 1 else ResponseCode.SUCCESS

    def check_append(self) -> None:
        """Refuse a message if fewer replicas are in sync than required. Raises RequestError."""
        settings = self.settings
        if not settings.enable_slave_acting_master:
            return
        in_sync = self.in_sync_count
        # Unset, it is 1 here as in the official broker: without a slave a message is stored, with SLAVE_NOT_AVAILABLE.
        required = settings.in_sync_replicas or 1
        if settings.enable_auto_in_sync_replicas:
            required = max(min(required, in_sync), settings.min_in_sync_replicas)
        if required > in_sync:
            raise RequestError(ResponseCode.SYSTEM_ERROR, NOT_ENOUGH)
