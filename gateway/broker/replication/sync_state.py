"""The in-sync set of a master under a controller: what it confirms, whom it waits for, and which replicas it asks for.

Theory of operation
-------------------
**Problem.** A controller elects the next master among the replicas of the *SyncStateSet*, so a message is safe when all
of them have it. Only the controller changes the set. The master knows first who keeps up, and asks for a change (1001),
but it does not know at which moment the controller accepts, nor, if no answer comes, whether it did.

**Invariant.** With ``allAckInSyncStateSet`` nothing is confirmed that a replica lacks which may be in the
controller's set: not one of the accepted set (`members`), nor one that a request without a final answer adds
(`required`). What was confirmed stays confirmed.

**The confirm offset** is the smallest end of log that the required replicas have acknowledged. It stands still while
one of them has no connection. A master that requires nobody else confirms its whole log at once, and so does one
without ``allAckInSyncStateSet``.

**Leaving.** A member leaves when its connection closes, when it was not caught up for ``haMaxTimeSlaveNotCatchup``, or
when it comes back without what was confirmed and does not get it soon. It stays required until the controller has
accepted.

**Joining** takes two steps, because under load no replica ever has all that a lonely master has confirmed already:

1. A replica that had what was the end of the log at its report before is *joining*: it is required from now on, so that
   what is confirmed waits for it, for at most `MAX_JOINING_S`.
2. Once it has everything confirmed, the set with it is asked for. It remains required until the answer.

**Refusals.** If the controller refuses the set because it does not know a replica or holds it for dead, a joining one
is required no longer, and not asked for again for a while, which doubles each time. So it never holds up sends. (In the
official broker it remains required, and with allAckInSyncStateSet each later send waits its time-out.) Each request
adds at most one replica, and a request that removes some adds none: a refusal then blames the right one. If a request
that only removes is refused, another member is the reason, and the next one keeps none but the master. All other
refusals, and a request without answer, leave the question open: the replica stays required until a newer set is
accepted, or an answer to a later request settles it.

**Without allAckInSyncStateSet** everything is confirmed at once, and an answer waits until ``inSyncReplicas`` brokers
have the message, whether they are in the set or not. If that is not set, it waits for one member besides the master. A
master that is alone waits for all that join it: the controller may have accepted any of them already.

Source: AutoSwitchHAService and AutoSwitchHAConnection, CommitLog.asyncPutMessage, 5.4.0. Deviations: the two steps of
joining, refusals, and members that lost their log; inSyncReplicas unset is one member of the set besides the
master, if there is one or may be one.
"""

from collections.abc import Callable, Collection, Iterable
from math import inf
from typing import Final, NamedTuple

import trio

from codec.constants import ResponseCode
from codec.java_numbers import parse_integer_or
from gateway.broker.replication.in_sync import NOT_ENOUGH, SlaveProgress
from gateway.config.replication import UNDECIDED_ID, ReplicationSettings
from remoting.errors import RequestError

MAX_JOINING_S: Final = 1.0
"""Longest time for which a joining replica that does not come close is waited for."""
FIRST_CHECK_S: Final = 3.0
"""Time that the members of a new master have to connect. Source: ReplicasManager.schedulingCheckSyncStateSet, 5.4.0."""
MIN_PAUSE_S: Final = 5.0
MAX_PAUSE_S: Final = 60.0
"""Shortest and longest time after a refusal in which a replica is not asked for again."""
OPEN_QUESTION_S: Final = 15.0
"""Time after which a request without an answer is given up, if the controller names the set without its replicas: no
request travels for so long."""
BLAMES_REPLICA: Final = (
    ResponseCode.CONTROLLER_INVALID_REPLICAS,
    ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
)
"""Refusals that say for certain that the set was not accepted, and that one of its replicas is the reason."""


def requires_sync_state(settings: ReplicationSettings) -> bool:
    """Tell whether a message of a master under a controller may have to wait for replicas, or be refused."""
    return (
        settings.all_ack_in_sync_state_set
        or settings.in_sync_replicas != 1
        or settings.min_in_sync_replicas > 1
    )


def id_of(slave: str) -> int:
    """Return the id at the controller that stands for a slave."""
    return parse_integer_or(slave, UNDECIDED_ID)


class ReplicaProgress(SlaveProgress):
    """The newest connection of one replica, which is known by its id at the controller.

    ``caught_up_s`` is when it last had all that the master had sent; ``end_at_report`` is the end of the master's log
    at its last report.
    """

    __slots__ = ("broker_id", "caught_up_s", "end_at_report", "joined_s", "reported_s")

    def __init__(self, slave: str, position: int, now_s: float, log_end: int) -> None:
        super().__init__(slave, position, is_known=True)
        self.broker_id = id_of(slave)
        self.acknowledged = position
        self.caught_up_s = now_s if position >= log_end else -inf
        self.joined_s = self.reported_s = now_s
        self.end_at_report = log_end

    def note_report(self, position: int, now_s: float, log_end: int) -> None:
        """Note a report. Who has what was the end at the report before was caught up at that time."""
        self.position = self.acknowledged = position
        if position >= log_end:
            self.caught_up_s = now_s
        elif position >= self.end_at_report:
            self.caught_up_s = max(self.caught_up_s, self.reported_s)
        self.reported_s, self.end_at_report = now_s, log_end


class RefusedReplica:
    """A replica that the controller refused: how often in a row, and until when it is not asked for."""

    __slots__ = ("pause_s", "until_s")

    def __init__(self) -> None:
        self.pause_s = MIN_PAUSE_S / 2
        self.until_s = -inf

    def note_refusal(self, now_s: float) -> None:
        """Double the pause."""
        self.pause_s = min(MAX_PAUSE_S, 2 * self.pause_s)
        self.until_s = now_s + self.pause_s


class Joining(NamedTuple):
    """Until when a joining replica is waited for, and the confirm offset at its beginning, which it has to reach."""

    until_s: float
    confirmed: int


class SyncStateRule:
    """Implements `ReplicationRule` of `answer_gate.py` for a master under a controller.

    ``own_id`` is its id at the controller, ``members`` and ``epoch`` are the set that the controller named last, and
    the set's epoch. ``epoch_start`` is the physical offset at which the master's own epoch begins, ``confirmed`` the
    offset up to which its log was confirmed before. ``log_end`` returns the end of its log.

    The HA server calls `join`, `acknowledge` and `leave`, with the id at the controller as the slave's name. It calls
    `join` with the first report after a handshake, which compares epochs: what the replica says it has, it has.
    Learners never join. The tasks of the controller call `wanted_set`, and afterwards `accepted` or `refused`.
    """

    def __init__(
        self,
        settings: ReplicationSettings,
        own_id: int,
        log_end: Callable[[], int],
        members: Iterable[int] = (),
        epoch: int = 0,
        *,
        epoch_start: int = 0,
        confirmed: int = 0,
        now_s: Callable[[], float] = trio.current_time,
    ) -> None:
        self.settings = settings
        self.own_id = own_id
        self.members = frozenset(members) | {own_id}
        self.epoch = epoch
        self.required = self.members
        self._log_end = log_end
        self._epoch_start = epoch_start
        self._confirmed = confirmed
        self._now_s = now_s
        self._start_s = now_s()
        self._replicas: dict[int, ReplicaProgress] = {}
        self._joining: dict[int, Joining] = {}
        self._refused: dict[int, RefusedReplica] = {}
        self._requested: frozenset[int] = frozenset()  # the set asked for last, empty after its final answer
        self._open_questions: dict[int, float] = {}  # replicas that may have been accepted, and since when
        self._shrinks_to_itself = False
        self._listeners: list[Callable[[int], None]] = []
        self._change_listeners: list[Callable[[], None]] = []

    def add_listener(self, listener: Callable[[int], None]) -> None:
        """Call ``listener`` with the replicated position whenever replicas join, acknowledge or leave, or the set
        changes.
        """
        self._listeners.append(listener)

    def add_change_listener(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when `wanted_set` should be asked at once, because a replica came or left."""
        self._change_listeners.append(listener)

    # -- replicas ---------------------------------------------------------------------------------------------------

    def join(self, slave: str, position: int, *, is_known: bool = True) -> ReplicaProgress:
        """Count a connected replica, whose log ends at ``position``; its older connection counts no more."""
        progress = ReplicaProgress(slave, position, self._now_s(), self._log_end())
        self._replicas[progress.broker_id] = progress
        self._note_progress(progress)
        return progress

    def acknowledge(self, progress: SlaveProgress, position: int) -> None:
        """Note any report of a replica, also one without news: it shows that the replica keeps up."""
        current = self._replicas.get(id_of(progress.slave))
        if current is progress:
            current.note_report(position, self._now_s(), self._log_end())
            self._note_progress(current)

    def leave(self, progress: SlaveProgress) -> None:
        """Count a connection no more. Idempotent."""
        broker_id = id_of(progress.slave)
        if self._replicas.get(broker_id) is progress:
            del self._replicas[broker_id]
            if self._joining.pop(broker_id, None) is not None:
                self._update_required()
            self._announce()
            if broker_id in self.members:
                self._announce_change()

    def _note_progress(self, progress: ReplicaProgress) -> None:
        broker_id = progress.broker_id
        if broker_id not in self.members:
            was_ready = self._is_ready(broker_id)
            if self._may_join(progress):
                self._joining[broker_id] = Joining(self._now_s() + MAX_JOINING_S, self.confirm_offset)
                self._update_required()
            self._announce()
            if not was_ready and self._is_ready(broker_id):
                self._announce_change()
        else:
            self._announce()

    def _may_join(self, progress: ReplicaProgress) -> bool:
        """Return True if a replica keeps up with the log, so that waiting for it takes a moment only."""
        broker_id, now_s = progress.broker_id, self._now_s()
        refused = self._refused.get(broker_id)
        return (
            broker_id not in self.required
            and progress.acknowledged >= self._epoch_start
            and progress.caught_up_s >= now_s - MAX_JOINING_S
            and (refused is None or now_s >= refused.until_s)
        )

    def _is_ready(self, broker_id: int) -> bool:
        """Return True if a joining replica has everything that was confirmed: since it began, that waits for it."""
        progress, joining = self._replicas.get(broker_id), self._joining.get(broker_id)
        return progress is not None and joining is not None and progress.acknowledged >= joining.confirmed

    def caught_up(self, broker_id: int) -> bool:
        """Tell whether a replica is connected and has kept up within ``haMaxTimeSlaveNotCatchup``."""
        progress = self._replicas.get(broker_id)
        return progress is not None and self._now_s() - progress.caught_up_s <= self._max_behind_s

    @property
    def _max_behind_s(self) -> float:
        return self.settings.ha_max_time_slave_not_catchup_ms / 1000

    # -- what is confirmed ------------------------------------------------------------------------------------------

    @property
    def confirms_at_once(self) -> bool:
        """True while a message is confirmed as soon as it is stored."""
        return not self.settings.all_ack_in_sync_state_set or len(self.required) == 1

    @property
    def confirm_offset(self) -> int:
        """The physical offset below which the log is confirmed. It never falls."""
        return max(self._confirmed, self._log_end()) if self.confirms_at_once else self._confirmed

    def _confirm(self) -> None:
        """Raise the confirm offset to what all required replicas have, unless one of them is not connected."""
        if self.confirms_at_once:
            return
        lowest = self._log_end()
        for broker_id in self.required:
            if broker_id != self.own_id:
                progress = self._replicas.get(broker_id)
                if progress is None:
                    return
                lowest = min(lowest, progress.acknowledged)
        self._confirmed = max(self._confirmed, lowest)

    def _update_required(self) -> None:
        """Set who is required. What was confirmed until now stays confirmed."""
        self._confirmed = self.confirm_offset
        self.required = self.members | self._requested | self._joining.keys() | self._open_questions.keys()

    def _announce(self) -> None:
        self._confirm()
        position = self.replicated_position
        for listener in self._listeners:
            listener(position)

    def _announce_change(self) -> None:
        for listener in self._change_listeners:
            listener()

    # -- the set ----------------------------------------------------------------------------------------------------

    def wanted_set(self) -> frozenset[int] | None:
        """Return the set to ask the controller for now, with `epoch`; None if the set may stay as it is.

        The caller sends one request after the other, and then calls `accepted` or `refused`. A request that has got
        neither when this is called again remained without an answer.
        """
        now_s = self._now_s()
        for broker_id in self._requested - self.members:
            self._open_questions.setdefault(broker_id, now_s)
        self._requested = frozenset()
        self._drop_late(now_s)
        wanted = self._choose_set(now_s)
        if wanted is not None:
            for broker_id in wanted:
                self._joining.pop(broker_id, None)
            self._requested = wanted
        self._update_required()
        self._announce()
        return wanted

    def _choose_set(self, now_s: float) -> frozenset[int] | None:
        lost = {broker_id for broker_id in self.members if self._is_lost(broker_id, now_s)}
        if lost:
            return frozenset({self.own_id}) if self._shrinks_to_itself else self.members - lost
        # The one that was refused least: no replica keeps the others from joining.
        ready = [broker_id for broker_id in self._joining if self._is_ready(broker_id)]
        ready += [broker_id for broker_id in self._open_questions if self._may_stay(broker_id)]
        if not ready:
            return None
        return self.members | {min(ready, key=self._refusal_pause_s)}

    def _refusal_pause_s(self, broker_id: int) -> float:
        refused = self._refused.get(broker_id)
        return 0.0 if refused is None else refused.pause_s

    def _may_stay(self, broker_id: int) -> bool:
        """Return True if a replica that was asked for before has everything that was confirmed."""
        progress = self._replicas.get(broker_id)
        if progress is None or not self.caught_up(broker_id):
            return False
        return not self.settings.all_ack_in_sync_state_set or progress.acknowledged >= self._confirmed

    def _is_lost(self, broker_id: int, now_s: float) -> bool:
        """Return True if a member has to leave the set."""
        if broker_id == self.own_id:
            return False
        progress = self._replicas.get(broker_id)
        if progress is None:
            return now_s - self._start_s >= FIRST_CHECK_S
        is_new = now_s - progress.joined_s < FIRST_CHECK_S
        if self.settings.all_ack_in_sync_state_set and progress.acknowledged < self._confirmed and not is_new:
            return True  # it had what was confirmed when that was confirmed, and has lost it since
        return now_s - max(progress.caught_up_s, self._start_s) > self._max_behind_s

    def _drop_late(self, now_s: float) -> None:
        """Wait no longer for replicas that began to join and did not come closer."""
        for broker_id, joining in list(self._joining.items()):
            if now_s >= joining.until_s and not self._is_ready(broker_id):
                del self._joining[broker_id]

    def accepted(self, members: Iterable[int], epoch: int) -> None:
        """Take over the set that the controller has named, in its answer or otherwise; an older one is ignored."""
        named = frozenset(members)
        now_s = self._now_s()
        if epoch == self.epoch and named | {self.own_id} == self.members:
            # Nothing new. A request from long ago will not be accepted any more.
            late = [
                broker_id
                for broker_id, since_s in self._open_questions.items()
                if now_s - since_s >= OPEN_QUESTION_S
            ]
            for broker_id in late:
                del self._open_questions[broker_id]
            if late:
                self._update_required()
                self._announce()
            return
        if epoch <= self.epoch:
            return
        self.epoch = epoch
        self.members = named | {self.own_id}
        self._requested = frozenset()
        self._open_questions.clear()
        self._shrinks_to_itself = False
        for broker_id in self.members:
            self._refused.pop(broker_id, None)
            self._joining.pop(broker_id, None)
        self._update_required()
        self._announce()

    def refused(self, asked: Collection[int], code: int) -> None:
        """Note that the controller has refused a set."""
        if code not in BLAMES_REPLICA:
            return  # it was accepted already, or by nobody who can tell: `accepted` says it sooner or later
        added = frozenset(asked) - self.members
        if not added:
            self._shrinks_to_itself = True
        now_s = self._now_s()
        for broker_id in added:
            self._refused.setdefault(broker_id, RefusedReplica()).note_refusal(now_s)
            self._open_questions.pop(broker_id, None)
            self._joining.pop(broker_id, None)
        self._requested = frozenset()
        self._update_required()
        self._announce()

    # -- the rule of the answer gate --------------------------------------------------------------------------------

    @property
    def replicated_position(self) -> int:
        """The end of the log for which no answer has to wait any more."""
        if self.settings.all_ack_in_sync_state_set:
            return self.confirm_offset
        if not self.settings.in_sync_replicas:
            return self._position_of_one
        required_slaves = self.settings.in_sync_replicas - 1
        if required_slaves <= 0:
            return self._log_end()
        acknowledged = sorted((replica.acknowledged for replica in self._replicas.values()), reverse=True)
        return acknowledged[required_slaves - 1] if len(acknowledged) >= required_slaves else 0

    @property
    def _position_of_one(self) -> int:
        """The end of what one replica of the set has besides this master.

        A master that is alone in the set waits for all that join it: the controller may have accepted any of them.
        """
        members = self.members - {self.own_id}
        if members:
            return max(self._acknowledged_by(broker_id) for broker_id in members)
        joining = self.required - {self.own_id}
        return min((self._acknowledged_by(broker_id) for broker_id in joining), default=self._log_end())

    def _acknowledged_by(self, broker_id: int) -> int:
        progress = self._replicas.get(broker_id)
        return 0 if progress is None else progress.acknowledged

    @property
    def timeout_s(self) -> float:
        """Maximum time in seconds that an answer waits for replicas."""
        return self.settings.slave_timeout_ms / 1000

    def status_now(self) -> int | None:
        """Return the status of the message that was appended last if its answer need not wait, otherwise None."""
        if self.settings.all_ack_in_sync_state_set:
            return ResponseCode.SUCCESS if self.confirms_at_once else None
        required_copies = self.settings.in_sync_replicas or len(self.required)
        return None if required_copies > 1 else ResponseCode.SUCCESS

    def check_append(self) -> None:
        """Refuse a message while the set is smaller than ``minInSyncReplicas``. Raises RequestError.

        As in the official broker the set that was asked for counts, but only replicas that are still connected: the
        answer may take seconds.
        """
        if len(self.members) >= self.settings.min_in_sync_replicas:
            return
        joining = sum(broker_id in self._replicas for broker_id in self._requested - self.members)
        if len(self.members) + joining < self.settings.min_in_sync_replicas:
            raise RequestError(ResponseCode.SYSTEM_ERROR, NOT_ENOUGH)
