"""The parts of a controller, and the way of a change: decide, store, take over, notify.

Theory of operation
-------------------
All broker sets of the group are in memory while this controller leads. A change is decided by a function of `rules.py`,
written with `Store.compare_and_put`, and only then seen by anybody: it takes its place in memory, its answer leaves,
and brokers are notified. Changes happen one after the other, in the order of their requests.

A crash before the write leaves the old state, and the broker asks again. A crash after it leaves the new state without
an answer: a repeated request is answered as the official controller answers one (the same id for the same broker, the
same master, an unchanged set). A write without an answer ends the term, so that the state is read again.

The official controller has a log of events in a Raft group of its own in the place of the store.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

import trio

from codec.constants import ResponseCode
from gateway.config.controller import ControllerConfig
from gateway.controller.broker_set import BrokerSet
from gateway.controller.election import choose_successor, key_of
from gateway.controller.leadership import Leadership
from gateway.controller.liveness import MAX_LIVE_BROKERS, Heartbeat, Liveness, ReplicaKey
from gateway.controller.notifications import Notifications
from gateway.controller.rules import (
    NO_BROKER,
    Ruling,
    elect_master,
    has_live_master,
    master_may_hold_lease,
    needs_election,
)
from gateway.controller.store import ControllerMember, Entry, Store, StoreUnavailable, TermOver
from gateway.runtime.metrics import Metric
from remoting.connection import Connection
from remoting.declare import Header
from remoting.errors import RequestError
from remoting.requests.controller import ControllerElectMaster, ControllerElectMasterReply
from storage.clock import Clock, clock_with_suspension

log = logging.getLogger(__name__)

MAX_BROKER_SETS: Final = 10_000
MAX_NAME_CHARS: Final = 256
MAX_BROKER_SET_BYTES: Final = 64 * 1024
"""JSON of one broker set: 64 replicas with the longest addresses and check codes, and well below 1.5 MiB, the longest
request that etcd accepts."""
MAX_STATE_BYTES: Final = 16 * 1024 * 1024
"""JSON of all broker sets, which a controller reads when it begins to lead."""
MAX_TURN_S: Final = 1.0
"""Longest time between two turns of the task that watches heartbeats."""
MIN_TURN_S: Final = 0.1
"""Shortest time between two turns of that task, and of the one that holds elections: strangers choose time-outs."""
LEASE_TURN_S: Final = 0.25
"""Time between two elections' turns while a master is missing that may still accept messages."""
SETS_PER_SLICE: Final = 100
"""Broker sets that are looked at before other tasks run; each has up to 64 replicas."""
MAX_METRIC_SETS: Final = 1_000
"""Broker names that have metrics of their own."""
MAX_DELAY_S: Final = 1.0
"""A turn that comes later than by this means that the process was stopped, or its machine."""
Answer = TypeVar("Answer", bound=Header)
NOT_LEADER: Final = "The controller is not in leader state"


@dataclass(slots=True)
class Counts:
    """Numbers since the start."""

    elections: int = 0
    unclean_elections: int = 0
    lost_masters: int = 0


@dataclass(slots=True)
class _Table:
    """The entries of the store, complete while this controller leads."""

    entries: dict[str, Entry] = field(default_factory=dict)
    size_bytes: int = 0


class Controller:
    """One controller. ``config`` is replaced when a request changes it; ``peers`` lists the group for brokers."""

    def __init__(
        self,
        config: ControllerConfig,
        store: Store,
        member: ControllerMember,
        peers: str,
        clock: Clock,
        notifications: Notifications,
    ) -> None:
        self.config = config
        self.peers = peers
        self.clock = clock
        self.liveness = Liveness(clock.monotonic)
        self.notifications = notifications
        self.counts = Counts()
        self._store = store
        self._table = _Table()
        self._lock = trio.Lock()
        # By broker name, set when the write of a new master is over.
        self._changing_masters: dict[str, trio.Event] = {}
        self._nursery: trio.Nursery | None = None
        self._may_need_election = trio.Event()
        self._last_turn_s = clock.monotonic()
        self._waits_for_lease = False
        self.leadership = Leadership(store, member, clock_with_suspension(clock), self._take_over)

    def _take_over(self, entries: dict[str, Entry]) -> None:
        self._table = _Table(entries, sum(entry.size_bytes for entry in entries.values()))
        masters = (entry.broker_set for entry in entries.values())
        self.liveness.begin_term(
            key_of(broker_set, broker_set.master_id)
            for broker_set in masters
            if broker_set.master_id is not None
        )
        if self.liveness.is_full:
            # Until now it was not known here which brokers are registered, and their heartbeats may have been refused.
            self.liveness.wait_for_heartbeats()
        self._may_need_election.set()

    # -- reading ------------------------------------------------------------------------------------------------------

    def check_leads(self) -> None:
        """Raise RequestError(CONTROLLER_NOT_LEADER) unless this controller leads."""
        if self.leadership.term is None:
            raise RequestError(ResponseCode.CONTROLLER_NOT_LEADER, NOT_LEADER)

    def broker_set(self, name: str | None) -> BrokerSet | None:
        """Return a broker set. Raises RequestError unless this controller leads."""
        self.check_leads()
        entry = self._table.entries.get(name or "")
        return None if entry is None else entry.broker_set

    async def settled_broker_set(self, name: str | None) -> BrokerSet | None:
        """Return a broker set as `broker_set` does, but not while a change of its master is being written.

        A master takes the answer for the proof that it may go on storing messages. If it is heard again during the
        election of another one, which was begun while it was dead, it must not get that proof any more.
        """
        while (is_over := self._changing_masters.get(name or "")) is not None:
            await is_over.wait()
        return self.broker_set(name)

    def broker_sets(self) -> Iterator[BrokerSet]:
        """Yield all broker sets known here; they are those of the store while this controller leads."""
        for entry in self._table.entries.values():
            yield entry.broker_set

    # -- changing -----------------------------------------------------------------------------------------------------

    async def change(self, name: str, decide: Callable[[BrokerSet | None], Ruling[Answer]]) -> Ruling[Answer]:
        """Decide about one broker set and store the result; return it when it is stored.

        Raises RequestError if this controller does not lead, or the store cannot be used.
        """
        async with self._lock:
            self.check_leads()
            table = self._table
            entry = table.entries.get(name)
            broker_set = None if entry is None else entry.broker_set
            decision = decide(broker_set)
            if decision.broker_set is not broker_set:
                size_bytes = 0
                if decision.broker_set is not None:
                    size_bytes = len(decision.broker_set.to_json())
                    self._check_room(name, entry, decision.broker_set, size_bytes)
                # The requesting broker may disconnect, but a write must not be left half known.
                with trio.CancelScope(shield=True):
                    await self._write(table, name, entry, decision.broker_set, size_bytes)
        return decision

    @contextmanager
    def _announced_change(
        self, name: str, before: BrokerSet | None, after: BrokerSet | None
    ) -> Iterator[None]:
        """Have `settled_broker_set` wait for a write that changes the master."""
        # The epoch grows with each change of the master.
        if before is None or (after is not None and after.master_epoch == before.master_epoch):
            yield
            return
        is_over = self._changing_masters[name] = trio.Event()
        try:
            yield
        finally:
            del self._changing_masters[name]
            is_over.set()

    def _check_room(self, name: str, entry: Entry | None, broker_set: BrokerSet, size_bytes: int) -> None:
        """Raise RequestError if a registration exceeds a limit. Elections and removals are never refused."""
        if entry is None:
            self._check_room_for_name(name)
        elif broker_set.replicas is entry.broker_set.replicas:
            return
        growth_bytes = size_bytes - (0 if entry is None else entry.size_bytes)
        if growth_bytes <= 0:
            return
        if size_bytes > MAX_BROKER_SET_BYTES:
            remark = f"the replicas of broker-set {name} take more than {MAX_BROKER_SET_BYTES:,} bytes"
            raise RequestError(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)
        if self._table.size_bytes + growth_bytes > MAX_STATE_BYTES:
            remark = f"all broker sets take more than {MAX_STATE_BYTES:,} bytes"
            raise RequestError(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)

    def _check_room_for_name(self, name: str) -> None:
        if not name or len(name) > MAX_NAME_CHARS:
            raise RequestError(
                ResponseCode.CONTROLLER_INVALID_REQUEST, f"broker names have 1 to {MAX_NAME_CHARS} characters"
            )
        if len(self._table.entries) >= MAX_BROKER_SETS:
            raise RequestError(
                ResponseCode.CONTROLLER_INVALID_REQUEST, f"there are {MAX_BROKER_SETS} broker sets already"
            )

    async def _write(
        self, table: _Table, name: str, entry: Entry | None, broker_set: BrokerSet | None, size_bytes: int
    ) -> None:
        with self._announced_change(name, None if entry is None else entry.broker_set, broker_set):
            await self._put(table, name, entry, broker_set, size_bytes)

    async def _put(
        self, table: _Table, name: str, entry: Entry | None, broker_set: BrokerSet | None, size_bytes: int
    ) -> None:
        term = self.leadership.term
        if term is None:
            raise RequestError(ResponseCode.CONTROLLER_NOT_LEADER, NOT_LEADER)
        try:
            version = await self._store.compare_and_put(
                term, name, 0 if entry is None else entry.version, broker_set
            )
        except TermOver as problem:
            self.leadership.give_up(str(problem))
            raise RequestError(ResponseCode.CONTROLLER_NOT_LEADER, NOT_LEADER) from problem
        except StoreUnavailable as problem:
            self.leadership.give_up(str(problem))
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the controller cannot store the change: {problem}"
            ) from problem
        # A table that was replaced meanwhile was read after this write.
        table.size_bytes += size_bytes - (0 if entry is None else entry.size_bytes)
        if broker_set is None:
            table.entries.pop(name, None)
        else:
            table.entries[name] = Entry(broker_set, version, size_bytes)

    # -- elections ----------------------------------------------------------------------------------------------------

    async def elect(self, request: ControllerElectMaster) -> ControllerElectMasterReply:
        """Hold an election, and notify all live replicas if there is a new master."""
        self._excuse_pause()
        before: list[BrokerSet | None] = []

        def decide(broker_set: BrokerSet | None) -> Ruling[ControllerElectMasterReply]:
            before.append(broker_set)
            may_be_unclean = self.config.enable_elect_unclean_master
            return elect_master(broker_set, request, self.liveness, may_be_unclean=may_be_unclean)

        decision = await self.change(request.broker_name, decide)
        if decision.broker_set is not None and decision.broker_set is not before[0]:
            asking_id = None if request.designate_elect else request.broker_id
            self._announce(before[0], decision.broker_set, asking_id)
        return decision.answer

    def _announce(self, before: BrokerSet | None, broker_set: BrokerSet, asking_id: int | None) -> None:
        """Log the result of an election and notify the replicas, but not a broker that asked for it by itself."""
        extra = {"broker": broker_set.name, "epoch": broker_set.master_epoch}
        if broker_set.master_id is None:
            self.counts.lost_masters += 1
            log.error("no master: no replica in sync is alive", extra=extra)
            return
        self.counts.elections += 1
        extra |= {"master": broker_set.master_id, "address": str(broker_set.master_address)}
        if before is not None and before.had_master and broker_set.master_id not in before.sync_set:
            self.counts.unclean_elections += 1
            log.error(
                "unclean election: the new master may lack messages that were acknowledged", extra=extra
            )
        else:
            log.info("master elected", extra=extra)
        if self.config.notify_broker_role_changed and self._nursery is not None:
            for broker_id, replica in broker_set.replicas.items():
                # Who asks gets the answer, often before its port is open.
                if broker_id != asking_id and self.liveness.is_alive(key_of(broker_set, broker_id)):
                    self.notifications.send(self._nursery, replica.address, broker_set)

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    def record_heartbeat(self, key: ReplicaKey, heartbeat: Heartbeat, connection: Connection | None) -> None:
        """Note that a broker is alive. Raises RequestError for one too many that is not registered."""
        if self.liveness.is_full and not self.liveness.is_alive(key) and not self._is_registered(key):
            remark = f"heartbeats of {MAX_LIVE_BROKERS} brokers come already"
            raise RequestError(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)
        if self.liveness.record(key, heartbeat, connection):
            extra = {"broker": key.name, "broker_id": key.broker_id, "address": heartbeat.address}
            log.info("broker is alive", extra=extra)
            self._may_need_election.set()

    def _is_registered(self, key: ReplicaKey) -> bool:
        """Tell whether a broker is a replica of a known set; a controller that has never led knows no sets."""
        entry = self._table.entries.get(key.name)
        if entry is None or entry.broker_set.cluster != key.cluster:
            return False
        return key.broker_id in entry.broker_set.replicas

    def forget_connection(self, connection: Connection) -> None:
        """Take the brokers of a closed connection for dead."""
        self._note_deaths(self.liveness.remove_connection(connection), "its connection closed")

    def remove_silent(self) -> None:
        """Take the brokers for dead whose time for a heartbeat is over, and close their connections."""
        silent = self.liveness.remove_silent()
        self._note_deaths([key for key, _ in silent], "no heartbeat in time")
        for _, broker in silent:
            if broker.connection is not None:
                broker.connection.close("no heartbeat in time")

    def _note_deaths(self, keys: list[ReplicaKey], reason: str) -> None:
        for key in keys:
            extra = {"broker": key.name, "broker_id": key.broker_id, "reason": reason}
            log.warning("broker is dead", extra=extra)
        if keys:
            self._may_need_election.set()

    # -- running ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Lead if possible, and hold the elections that nobody asks for, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self.leadership.run)
            nursery.start_soon(self._watch_heartbeats)
            try:
                while True:
                    interval_s = self.config.scan_inactive_master_interval_ms / 1000
                    with trio.move_on_after(
                        min(interval_s, LEASE_TURN_S) if self._waits_for_lease else interval_s
                    ):
                        await self._may_need_election.wait()
                    self._may_need_election = trio.Event()
                    await self.elect_missing_masters()
                    await trio.sleep(MIN_TURN_S)
            finally:
                self._nursery = None

    async def _watch_heartbeats(self) -> None:
        while True:
            interval_s = self.config.scan_not_active_broker_interval_ms / 1000
            death_s = self.liveness.seconds_to_next_death()
            # A moment after the death: at its exact time a broker is still alive.
            until_death_s = interval_s if death_s is None else death_s + 0.01
            await trio.sleep(max(MIN_TURN_S, min(interval_s, until_death_s, MAX_TURN_S)))
            self._excuse_pause()
            self.remove_silent()

    def _excuse_pause(self) -> None:
        """Give brokers more time if this process was stopped: their heartbeats wait to be read."""
        now_s = self.clock.monotonic()
        pause_s = now_s - self._last_turn_s - MAX_TURN_S
        self._last_turn_s = now_s
        if pause_s > MAX_DELAY_S:
            log.warning("controller was paused", extra={"pause_s": round(pause_s, 1)})
            self.liveness.excuse_pause(pause_s)

    async def elect_missing_masters(self) -> None:
        """Hold an election for each broker set that needs one."""
        self._excuse_pause()
        self._waits_for_lease = False
        for index, broker_set in enumerate(list(self.broker_sets())):
            if index % SETS_PER_SLICE == SETS_PER_SLICE - 1:
                await trio.lowlevel.checkpoint()
            may_be_unclean = self.config.enable_elect_unclean_master
            if self.leadership.term is None:
                return
            if not needs_election(broker_set, self.liveness, may_be_unclean=may_be_unclean):
                self._waits_for_lease |= master_may_hold_lease(broker_set, self.liveness)
                continue
            request = ControllerElectMaster(
                cluster_name=broker_set.cluster, broker_name=broker_set.name, broker_id=NO_BROKER
            )
            try:
                await self.elect(request)
            except RequestError as refusal:
                extra = {"broker": broker_set.name, "reason": refusal.remark}
                log.warning("election failed", extra=extra)

    # -- metrics ------------------------------------------------------------------------------------------------------

    def metrics(self) -> Iterator[Metric | None]:
        """Yield the numbers of this controller; None wherever other tasks may run in between."""
        leads = self.leadership.term is not None
        yield Metric("controller_leads", float(leads), "1 while this controller leads", "gauge")
        yield Metric(
            "controller_terms_total", self.leadership.terms, "times that this controller began to lead"
        )
        failing = float(self.leadership.is_failing)
        meaning = "1 while the store of the controllers, such as etcd, cannot be used"
        yield Metric("controller_store_failing", failing, meaning, "gauge")
        yield Metric(
            "controller_live_brokers",
            len(self.liveness.alive_keys()),
            "brokers whose heartbeats come",
            "gauge",
        )
        sets = list(self.broker_sets()) if leads else []
        yield Metric("controller_broker_sets", len(sets), "broker names; 0 unless it leads", "gauge")
        yield from self._set_metrics(sets)
        yield Metric("controller_elections_total", self.counts.elections, "masters elected")
        yield Metric(
            "controller_unclean_elections_total",
            self.counts.unclean_elections,
            "masters elected that were not in sync",
        )
        yield Metric("controller_notifications_total", self.notifications.sent, "brokers told of their role")
        yield Metric(
            "controller_notification_failures_total",
            self.notifications.failed,
            "brokers that could not be told of their role",
        )

    def _set_metrics(self, sets: list[BrokerSet]) -> Iterator[Metric | None]:
        """Yield the numbers of all broker names together, and those of each up to `MAX_METRIC_SETS`."""
        masterless = lonely = outside = 0
        for index, broker_set in enumerate(sets):
            if index % SETS_PER_SLICE == SETS_PER_SLICE - 1:
                yield None
            in_sync = self._count_live_in_sync(broker_set)
            outside += len(broker_set.replicas) - in_sync
            if broker_set.had_master and not has_live_master(broker_set, self.liveness):
                masterless += 1
            elif broker_set.had_master:
                may_be_unclean = self.config.enable_elect_unclean_master
                lonely += choose_successor(broker_set, self.liveness, may_be_unclean=may_be_unclean) is None
            if index < MAX_METRIC_SETS:
                labels = {"broker": broker_set.name}
                meaning = "epoch of the master of a broker name; it grows with each election"
                yield Metric("controller_master_epoch", broker_set.master_epoch, meaning, "gauge", labels)
                meaning = "replicas of a broker name that are alive and in sync, the master included"
                yield Metric("controller_in_sync_replicas", in_sync, meaning, "gauge", labels)
        yield Metric("controller_missing_masters", masterless, "broker names without a live master", "gauge")
        meaning = "broker names whose master no other replica could replace now"
        yield Metric("controller_missing_successors", lonely, meaning, "gauge")
        meaning = "registered replicas that are dead or not in sync"
        yield Metric("controller_out_of_sync_replicas", outside, meaning, "gauge")

    def _count_live_in_sync(self, broker_set: BrokerSet) -> int:
        return sum(self.liveness.is_alive(key_of(broker_set, broker_id)) for broker_id in broker_set.sync_set)
