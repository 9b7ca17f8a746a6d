"""A broker under controllers: the whole `BrokerService` with all parts of controller mode."""

import random
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final

import trio

from gateway.broker.assembly.build import BrokerBuilder
from gateway.broker.assembly.controlled_role import NO_ROLE, ControllerMode, undecided
from gateway.broker.assembly.role_control import RoleLinks
from gateway.broker.broker import Broker
from gateway.broker.replication.parts import PeerLinks
from gateway.broker.replication.tests.controlled_simulation.laws import ControlledHistory, ElectionLaws
from gateway.broker.replication.tests.controlled_simulation.modes import Mode
from gateway.broker.replication.tests.simulation.brokers import (
    LIMITS,
    PORT,
    SETTINGS,
    Answer,
    SimBroker,
    SimClock,
    SimService,
    read_queue,
)
from gateway.broker.replication.tests.simulation.history import LawBroken
from gateway.broker.replication.tests.simulation.network import Network
from gateway.config.replication import Role
from gateway.tests.configs import broker_config
from remoting.declare import Request
from remoting.requests.send import SendMessageReply, SendMessageV2
from remoting.server import ServerLimits

CONTROLLER_SETTINGS: Final[dict[str, Any]] = {
    "enable_controller_mode": True,
    "controller_heartbeat_timeout_ms": 3000,
    "broker_heartbeat_interval_ms": 500,
    "send_heartbeat_timeout_ms": 500,
    "sync_controller_metadata_period_ms": 2000,
    "sync_broker_metadata_period_ms": 2000,
    "check_sync_state_set_period_ms": 1000,
    "ha_max_time_slave_not_catchup_ms": 3000,
    "ha_send_heartbeat_interval_ms": 1500,
    "ha_housekeeping_interval_ms": 6000,
}
"""Times a third as long as usual, so that more happens in the time of a story."""
MAX_CLOCK_ERROR: Final = 0.01
MAX_LAG_S: Final = 6.5
"""Longest time by which the log of a replica in sync is behind: ha_max_time_slave_not_catchup_ms, the time between two
checks, and that of a lease, after which a master that cannot have the set changed stores nothing."""
SMALL_SET_S: Final = 4.0
"""Longest time until a master knows that the set of replicas in sync has become smaller."""
WATCH_S: Final = 0.1
NEVER_S: Final = -1.0


class LeaseClock(SimClock):
    """The clock of a lease: a little fast or slow."""

    def __init__(self, wall: SimClock, rate: float) -> None:
        super().__init__()
        self._wall = wall
        self._rate = rate

    def now_ms(self) -> int:
        return self._wall.now_ms()

    def monotonic(self) -> float:
        return self._rate * trio.current_time()


class ControlledService(SimService):
    """A service that says when it stores something."""

    def __init__(self, host: "ControlledBroker", *arguments: Any, **keywords: Any) -> None:
        self._controlled = host
        super().__init__(host, *arguments, **keywords)

    def _check_appends(self, broker: Broker) -> None:
        super()._check_appends(broker)
        check_lease = broker.store.check_append
        assert check_lease is not None

        def check_and_judge() -> None:
            check_lease()
            self._controlled.note_append(broker)

        broker.store.check_append = check_and_judge


class ControlledBroker(SimBroker):
    """One broker under controllers, through all its processes. Its name is its address."""

    def __init__(
        self,
        number: int,
        network: Network,
        randomness: random.Random,
        settings: dict[str, Any],
        *,
        mode: Mode,
        history: ControlledHistory,
        laws: ElectionLaws,
        peers: Sequence["ControlledBroker"],
        note_role: Callable[[SimBroker], None],
        may_lose: Callable[["ControlledBroker"], bool],
        trace: Callable[[str], None],
    ) -> None:
        super().__init__(
            f"10.0.0.{number}", number, network, randomness, settings,
            history=history, note_role=note_role, choose_id=lambda broker: number, trace=trace,
        )  # fmt: skip
        self.address = f"{self.name}:{PORT}"
        self.lost_power_s: float | None = None
        """Time of the last power cut, until everything that was acknowledged is in the log again."""
        self.tables_until_s = NEVER_S
        """Time until which the tables have what was answered by the masters until then."""
        self.controller_id: int | None = None
        self._end_at_kill = -1
        self._has_slaves_s = 0.0  # the last time at which enough slaves for minInSyncReplicas were connected
        self._laws = laws
        self._replication_mode = mode
        self._controlled_history = history
        self._peers = peers
        self._may_lose = may_lose
        rate = 1 + randomness.uniform(-MAX_CLOCK_ERROR, MAX_CLOCK_ERROR)
        self._lease_clock = LeaseClock(self.clock, rate)
        self._mode: ControllerMode | None = None
        self._role_links: RoleLinks | None = None

    # -- processes ------------------------------------------------------------------------------------------------

    def _open(self, role: Role | None) -> SimService:
        config = undecided(
            broker_config(
                **SETTINGS, **CONTROLLER_SETTINGS, broker_ip=self.name, listen_port=PORT, namesrv_addr="",
                **self._settings,
            )
        )  # fmt: skip
        builder = BrokerBuilder(
            False, self.clock, self._run_blocking, lambda: PORT, self.files,
            links=PeerLinks(self._open_transport, self._dial),
        )  # fmt: skip
        self._mode = mode = ControllerMode(
            config, self._lease_clock, self.files, builder.store_config(config).root
        )
        mode.lease.add_listener(lambda: self._note_going_on(mode))
        self._role_links = RoleLinks(self._dial, hints=mode.hints, hand_overs=mode.hand_overs)
        broker = builder.build(config)
        self.note_store(broker)
        service = ControlledService(
            self, broker, LIMITS, ServerLimits(), self._run_blocking, builder=builder,
            role_links=self._role_links, lease=mode.lease,
        )  # fmt: skip
        service.add_user(self)
        self.follow(broker, service)
        return service

    async def _prepare(self, nursery: trio.Nursery) -> None:
        assert self._mode is not None
        assert self._role_links is not None
        assert self.service is not None
        await self.service.wait_for_role(NO_ROLE)
        nursery.start_soon(self._mode.run, self.service, self._role_links)
        nursery.start_soon(self._watch_roles)

    async def step_down(self, max_s: float) -> None:
        """End the process as SIGTERM does: another replica becomes master before, if there is one."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_at_end, nursery.cancel_scope)
            if self._mode is not None and self.service is not None and self.is_up:
                await self._mode.step_down(self.service, max_s)
            nursery.cancel_scope.cancel()
        if not self.is_killed:
            await self.stop()
        await self.wait_ended()

    async def _cancel_at_end(self, scope: trio.CancelScope) -> None:
        await self.wait_ended()
        scope.cancel()

    def kill(self, *, lose_power: bool) -> None:
        """End the process at once, and note how long its log was."""
        self._end_at_kill = self.log_end
        super().kill(lose_power=lose_power)

    def _crash(self) -> None:
        if self._power_lost:
            self.lost_power_s = trio.current_time()
        super()._crash()

    def forget_tables(self) -> None:
        """Expect nothing of the tables any more."""
        super().forget_tables()
        self.tables_until_s = NEVER_S

    # -- roles ----------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch of the present role, 0 before there is one."""
        controlled = None if self.service is None else self.broker.config.controlled
        return 0 if controlled is None else controlled.master_epoch

    @property
    def is_writable(self) -> bool:
        """True while a message would be stored."""
        service = self.service
        if not self.is_up or self.is_killed or service is None or self._mode is None:
            return False
        is_master = service.is_open and service.broker.config.role is Role.MASTER
        return is_master and not service.fence_reason and self._mode.lease.is_valid

    def note_append(self, broker: Broker) -> None:
        """Have a message judged that is about to be stored."""
        if broker.config.role is not Role.MASTER:
            self._laws.violations.append(f"{self.name} stores a message as {broker.config.role.value}")
        self._laws.note_stored(self, self._peers, trio.current_time())

    def note_store(self, broker: Broker) -> None:
        """Note a store that was opened; that of a master has what was acknowledged, unless that may be lost."""
        if broker.config.role is Role.MASTER and broker.config.controlled is not None:
            epoch = broker.config.controlled.master_epoch
            is_former = self._laws.opened_by == self.name
            self._laws.note_epoch(epoch, broker.store.max_physical_offset)
            self.breaks_promises = self._laws.take_unclean(epoch)
            if self.lost_power_s is not None:
                # A master that is elected again has on its disk what it has answered.
                is_on_disk = is_former and self._replication_mode.is_sync_flush
                self.breaks_promises |= self._may_lose(self) and not is_on_disk
                self.lost_power_s = None
            self._laws.opened_by = self.name
            if not self._replication_mode.all_ack:
                self._controlled_history.forget_reads_after(broker.store.max_offset)
            if not self._replication_mode.keeps_acknowledged and not self.breaks_promises and not is_former:
                self._lose_last(broker)
        super().note_store(broker)

    def _note_going_on(self, mode: ControllerMode) -> None:
        """Note a master that begins another epoch with the store that it has open, before it stores anything in it."""
        if (
            mode is not self._mode
            or self.store is None
            or not self.is_writable
            or self.epoch in self._laws.epoch_starts
        ):
            return
        is_former = self._laws.opened_by == self.name
        self.note_store(self.broker)
        if not is_former:
            # There was an unclean election between, whose master is gone.
            self._limit_progress(self.broker)
            self._note_role(self)

    def _end_of_common_log(self, broker: Broker) -> int:
        log_end = broker.store.max_physical_offset
        epochs, controlled = broker.replication.epochs, broker.config.controlled
        if epochs is None or controlled is None:
            return log_end
        own_epochs = {entry.epoch for entry in epochs.entries}
        return self._laws.end_of_common_log(controlled.master_epoch, own_epochs, log_end)

    def _lose_last(self, broker: Broker) -> None:
        """Expect no longer what this new master lacks: it may lack only what is newer than its lag may be."""
        assert broker.config.controlled is not None
        laws, end = self._laws, self._end_of_common_log(broker)
        laws.opened_epoch, laws.opened_end = broker.config.controlled.master_epoch, end
        lost = self._controlled_history.lose_after(end)
        laws.losses.append(len(lost))
        lag_s = laws.last_stored_s - min((laws.acknowledged_s[end] for end in lost), default=inf)
        laws.longest_lag_s = max(laws.longest_lag_s, lag_s)
        if lost:
            self._trace(
                f"{self.name} lacks {len(lost)} messages, acknowledged up to {lag_s:.1f} s before the last one"
            )
        if lag_s > MAX_LAG_S:
            laws.violations.append(
                f"{self.name} becomes master without a message that was acknowledged {lag_s:.1f} s before the last "
                "one was stored"
            )

    def follow(self, broker: Broker, service: SimService | None = None) -> None:
        """Take over new parts of the service."""
        controlled = broker.config.controlled
        if controlled is not None and controlled.broker_id > 0:
            self.controller_id = controlled.broker_id
        super().follow(broker, service)

    def follow_master(self, master: SimBroker) -> None:
        """Learn nothing: the controllers say who the master is."""

    def forget_master(self) -> None:
        """Trust no copy of the log or of the tables that was made until now: there is another master."""
        self.is_verified = False
        self.sync_times.clear()

    async def _watch_roles(self) -> None:
        """Note whom a slave follows, and how far its tables are."""
        while True:
            await trio.sleep(WATCH_S)
            if self.store is None:
                continue
            newest = self.newest_master
            if self.role is Role.MASTER:
                self._count_slaves()
                if self._is_newest_master and self.is_serving:
                    self.tables_until_s = trio.current_time()
                continue
            address = self.broker.replication.master_address
            master = next((peer for peer in self._peers if peer.address == address), None)
            if master is not self.master or master is not newest:
                self.master = master
                self.forget_master()
            if len(self.sync_times) == 2:
                self.tables_until_s = self.sync_times[0]
            # A slave that others need not wait for may be behind for other reasons.
            is_waited_for = self._replication_mode.keeps_acknowledged
            whole_end = self._history.promised_end if is_waited_for else self._end_at_kill
            if self.is_verified and self.log_end >= whole_end:
                self.lost_power_s = None

    @property
    def _is_newest_master(self) -> bool:
        # A former master that does not know its successor is the only one again while that one is down.
        return self is self.newest_master and self.epoch >= max(self._laws.epoch_starts, default=0)

    @property
    def newest_master(self) -> "ControlledBroker | None":
        """The master of the newest epoch."""
        masters = [peer for peer in self._peers if peer.service is not None and peer.role is Role.MASTER]
        return max(masters, key=lambda peer: peer.epoch, default=None)

    # -- requests -------------------------------------------------------------------------------------------------

    def start_request(
        self, client: str, request: Request[Any], answer: Answer, on_request: Answer = lambda request: None
    ) -> bool:
        """Pass a request to the process, and judge its answer; return False if there is no process."""

        started_s = trio.current_time()

        def judge(outcome: Any) -> None:
            is_acknowledged = (
                isinstance(request, SendMessageV2)
                and isinstance(outcome, SendMessageReply)
                and not outcome.code
            )
            if not is_acknowledged:
                answer(outcome)
                return
            end = int(outcome.msg_id[-16:], 16) + 1
            # A former master passes messages on: the id says which broker has stored this one.
            host = ".".join(str(part) for part in bytes.fromhex(outcome.msg_id[:8]))
            storer = next(peer for peer in self._peers if peer.name == host)
            storer.judge_acknowledged(end, started_s)
            answer(outcome)
            if storer.epoch < self._laws.opened_epoch and end > self._laws.opened_end:
                # Its successor has begun without the message: so the sender has no promise.
                self._history.broken_ends.append(self._laws.opened_end)

        return super().start_request(client, request, judge, on_request)

    def _count_slaves(self) -> None:
        """Note whether enough slaves for ``minInSyncReplicas`` are connected now."""
        slaves = [peer for peer in self._peers if peer.copies_from(self)]
        if 1 + len(slaves) >= self._replication_mode.min_in_sync_replicas:
            self._has_slaves_s = trio.current_time()

    def copies_from(self, master: "ControlledBroker") -> bool:
        """Tell whether this broker is connected to a master, and has compared its log."""
        follower = self.follower
        if self.store is None or follower is None or not follower.is_copying:
            return False
        source = follower.lookup.master
        return source is not None and source.ha_address[0] == master.name

    def judge_acknowledged(self, end: int, sent_s: float) -> None:
        """Judge an acknowledgement of this broker, for a message that ends after ``end`` and was sent at a time."""
        laws = self._laws
        laws.acknowledged_s[end] = trio.current_time()
        # A set that was asked for counts as well, until the controllers answer: its replicas were connected.
        self._count_slaves()
        if max(laws.is_small_since_s, self._has_slaves_s) < sent_s - SMALL_SET_S:
            raise LawBroken(f"{self.name} stores a message, and too few replicas are in sync")
        if laws.may_be_unclean:
            return
        members = [peer for peer in self._peers if laws.is_in_set(peer.controller_id)]
        if self._replication_mode.all_ack:
            copies = members
            required = len(members)
        elif laws.newest is None or laws.newest.master_epoch != self.epoch:
            return  # of this master's messages, its successor has what it had copied
        elif self._replication_mode.in_sync_replicas:
            copies, required = list(self._peers), self._replication_mode.in_sync_replicas
        else:
            copies, required = members, min(2, len(members))
        # The log of a process that has ended cannot be looked at, and what lost power may lack what it had.
        lacking = [
            peer
            for peer in copies
            if peer.store is not None and peer.lost_power_s is None and peer.log_end < end
        ]
        if len(copies) - len(lacking) < required:
            raise LawBroken(
                f"{self.name} acknowledges {end}, which {required} of {[peer.name for peer in copies]} have to have, "
                f"and {[(peer.name, peer.log_end) for peer in lacking]} do not"
            )

    def read(self, topic: str, queue_id: int, offset: int) -> list[tuple[int, bytes]]:
        """Return messages of a queue from an offset on, at any broker, as far as what is read may not be lost.

        Only confirmed messages are readable. They may be lost all the same after an unclean election, where not all
        replicas in sync need have them, and with the power of the last one in sync; others have them until they are
        cut.
        """
        may_be_lost = (
            self._laws.may_be_unclean or not self._replication_mode.all_ack or self._history.broken_ends
        )
        if self.store is None or (may_be_lost and not (self._is_newest_master or self.is_verified)):
            return []
        return read_queue(self.store, topic, queue_id, offset)
