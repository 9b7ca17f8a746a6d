"""Has a broker obey its controllers: it registers, says that it lives, and takes the role that it is given.

Theory of operation
-------------------
1. **Registration.** The broker takes its id (`broker_identity.py`), says where it is (1003), sends heartbeats (904),
   and asks for an election (1002) if there is no master. Until then it has no role: it serves nobody, and no namesrv
   knows it. Each step is repeated until it succeeds.
2. **Roles.** A role comes with an *epoch*, which grows with each election. Only a newer one is obeyed. It is learned
   from answers of the leading controller: to registration and election, and to the question who is master (1004). That
   is asked every `syncBrokerMetadataPeriod`, with each heartbeat of a master, and when a controller says that there is
   a new one (1008). Nothing is taken over from that request itself, which anybody can send: it hurries the question.
3. **The set of replicas in sync.** A master reports changes (1001); `SyncReports` says which set is wanted. A refused
   set is not asked for again at once, and changes nothing else.
4. **The lease** (`fencing.py`) is renewed whenever the leading controller confirms the role after a heartbeat. If it
   confirms a later epoch than the one in which the parts of the broker store, that waits until they are replaced.

A broker that has just been started, and that the controller takes for the living master, was master before it ended,
or another process has its identity. It sends no heartbeats until the controller has noticed that end. Slaves may have
messages of the old epoch that it has lost itself, and one of them is then elected. The official broker goes on at once.
A controller that has noticed the end may let it lead, but in a new epoch. One that begins to lead after the
registration does not know of that end: the broker registers there as well.

Source: ReplicasManager, 5.4.0.
"""

import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

import trio

from codec.constants import ResponseCode
from codec.hosts import format_host
from gateway.broker.replication.broker_identity import Application, BrokerIdentity, UnusableIdentity
from gateway.broker.replication.controller_links import ControllerLink, ControllerLinks, NoLeader
from gateway.broker.replication.fencing import Lease
from gateway.broker.waiting.wake_signal import WakeSignal
from gateway.config.broker import AUTO, BrokerConfig
from gateway.config.replication import ControlledRole
from gateway.runtime.run_blocking import RunBlocking
from remoting.bodies.ha import SyncStateSet
from remoting.connection import Connection
from remoting.errors import REQUEST_FAILURES, RequestError
from remoting.requests.controller import (
    ControllerAlterSyncStateSet,
    ControllerApplyBrokerId,
    ControllerElectMaster,
    ControllerElectMasterReply,
    ControllerGetNextBrokerId,
    ControllerGetReplicaInfo,
    ControllerGetReplicaInfoReply,
    ControllerRegisterBroker,
    ControllerRegisterBrokerReply,
)
from remoting.requests.namesrv import BrokerHeartbeat
from storage.errors import StoreError

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
"""Pause before a step of the registration, or a change of the role that failed, is tried again."""
NO_BROKER: Final = -1
MAX_REPORT_INTERVAL_S: Final = 1.0
"""Longest time between two looks at the set of replicas in sync: a replica joins within about a second."""
LEASE_CHECK_S: Final = 0.5
"""Time between two looks at whether a master has lost its lease, to show it. Each request looks by itself."""
ROLE_POLL_S: Final = 0.02
NOT_IN_SYNC_POLL_S: Final = 1.0
"""Longest time between two questions of a slave that is not in sync: somebody may wait for it to be."""
REFUSED_PAUSE_S: Final = 1.0
"""Pause after a refused set of replicas in sync."""
FAILURES: Final = (*REQUEST_FAILURES, NoLeader, trio.TooSlowError)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class MasterTerm:
    """The master of a broker name in one epoch, as a controller says; ``master_id`` is None while there is none."""

    epoch: int
    master_id: int | None
    address: str
    sync_set: frozenset[int]
    sync_set_epoch: int


@dataclass(frozen=True, slots=True)
class LogState:
    """The log as a heartbeat describes it: its newest epoch, its end, and the end of what is confirmed."""

    epoch: int
    max_offset: int
    confirm_offset: int


class SyncReports(Protocol):
    """The set of replicas in sync, as a master keeps it: `SyncStateRule` of `sync_state.py` implements it."""

    @property
    def epoch(self) -> int:
        """The version of the set that the controller accepted last."""

    def add_change_listener(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when `wanted_set` should be called at once."""

    def wanted_set(self) -> Collection[int] | None:
        """Return the set to ask the controller for; None if the present one is right."""

    def accepted(self, members: Iterable[int], epoch: int) -> None:
        """Use a set from now on that the controller has accepted, unless a newer one is in use."""

    def refused(self, asked: Collection[int], code: int) -> None:
        """Note that the controller has refused a set, with this code."""


class ManagedBroker(Protocol):
    """The broker whose role is decided. `gateway/broker/assembly/controlled_role.py` implements it."""

    @property
    def config(self) -> BrokerConfig:
        """The present configuration."""

    @property
    def log_state(self) -> LogState:
        """The state of the log; the last one while the store is closed."""

    @property
    def sync_reports(self) -> SyncReports | None:
        """The set of replicas in sync of the present parts; None at a slave."""

    async def lead(self, role: ControlledRole) -> None:
        """Become the master, or go on as master in a newer epoch. Raises what went wrong."""

    async def follow(self, role: ControlledRole, master_address: str) -> None:
        """Become a slave of a master, or go on as slave with it. Raises what went wrong."""

    def note_state(self, reason: str) -> None:
        """Show why the broker has no role, or stores nothing; "" if all is well."""

    def note_membership(self, *, is_member: bool) -> bool:
        """Show whether a slave is one of the replicas in sync, as the controllers say; return whether it is.

        One that is not connected to its master is not any more, although its master may still have to say so.
        """


class RoleHints:
    """Notifications of controllers that there may be a new master. They only hurry the manager."""

    def __init__(self) -> None:
        self.signal = WakeSignal()

    def note(self) -> None:
        """Have the leading controller asked for the master at once."""
        self.signal.set()


@dataclass(frozen=True, slots=True)
class _Renewal:
    """A confirmation of the leader that this broker is the master of an epoch, for `Lease.renew`."""

    epoch: int
    heartbeat_sent_s: float
    generation: int


class ReplicasManager:
    """Manages the role of one broker. ``port`` returns the port at which others reach it.

    ``now_ms`` is the wall clock, for the check code. The present role is ``role``; its epoch is 0 before there is one.
    """

    def __init__(
        self,
        broker: ManagedBroker,
        links: ControllerLinks,
        identity: BrokerIdentity,
        lease: Lease,
        hints: RoleHints,
        run_blocking: RunBlocking,
        now_ms: Callable[[], int],
    ) -> None:
        self._broker = broker
        self._links = links
        self._identity = identity
        self._lease = lease
        self._hints = hints
        self._run_blocking = run_blocking
        self._now_ms = now_ms
        self._broker_id: int | None = None
        self._sends_heartbeats = False
        self._epoch_at_start = 0
        self._newest: MasterTerm | None = None
        self._to_change = trio.Event()
        self.role = ControlledRole()
        self._is_master = False
        # The epoch in which the broker's present parts store messages, or in which the parts being built will. None
        # at a slave.
        self._storing_epoch: int | None = None
        self._early_renewal: _Renewal | None = None
        self._is_member = False
        self._is_in_sync = True

    # -- what heartbeats need -----------------------------------------------------------------------------------------

    def heartbeat_over(self, connection: Connection) -> BrokerHeartbeat | None:
        """Return the next heartbeat; None before the broker is registered."""
        if self._broker_id is None or not self._sends_heartbeats:
            return None
        config, state = self._broker.config, self._broker.log_state
        settings = config.replication
        return BrokerHeartbeat(
            cluster_name=config.broker_cluster_name,
            broker_addr=self._address_through(connection),
            broker_name=config.broker_name,
            broker_id=self._broker_id,
            epoch=state.epoch,
            max_offset=state.max_offset,
            confirm_offset=state.confirm_offset,
            heartbeat_timeout_mills=settings.controller_heartbeat_timeout_ms,
            election_priority=settings.broker_election_priority,
        )

    def _address_through(self, connection: Connection) -> str:
        """Return the address at which others find this broker; with ``auto`` the one of this connection."""
        config = self._broker.config
        host = connection.local[0] if config.broker_ip == AUTO else config.broker_ip
        return format_host((host, config.advertised_port or config.listen_port))

    async def heartbeat_answered(self, link: ControllerLink) -> None:
        """Have the role of a master confirmed by the leading controller, which has just answered a heartbeat."""
        is_elected = self._newest is not None and self._newest.master_id == self._broker_id
        if is_elected and self._links.leader is link:
            try:
                await self._confirm_role(link)
            except FAILURES as problem:
                log.debug("role not confirmed", extra={"controller": link.name, "reason": str(problem)})

    def leader_lost(self) -> None:
        """Store nothing until it is known what the leader made of the end of the connection."""
        self._lease.suspend()

    def leader_gone(self) -> None:
        """Go on: a leader that has ended has elected nobody."""
        self._lease.resume()

    # -- running ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Register, and take the roles that the controllers give, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._links.run, self)
            nursery.start_soon(self._change_roles)
            await self._register()
            nursery.start_soon(self._report_sync_set)
            nursery.start_soon(self._watch_lease)
            await self._ask_for_master()

    async def _register(self) -> None:
        """Take an id, if there is none yet, say where the broker is, and learn who is master."""
        self._broker_id = await self._repeat("id", self._take_id)
        term = await self._repeat("registration", self._find_term)
        while term is None:
            self._broker.note_state(
                "the controllers have not noticed yet that this broker, which is their master, has been started again"
            )
            await trio.sleep(RETRY_S)
            term = await self._repeat("registration", self._find_term)
        self._obey(term)

    async def _find_term(self) -> MasterTerm | None:
        """Say where the broker is, and return the term of the living master, if need be after an election.

        Return None if this broker is said to be that, although it has just been started. Raises NoLeader if another
        controller begins to lead meanwhile.
        """
        term = _term_of(await self._register_address())
        leader = self._links.leader
        connection = None if leader is None else leader.connection
        is_own = term is not None and term.master_id == self._broker_id
        if term is not None and is_own and term.epoch > self.role.master_epoch:
            if self._sends_heartbeats and term.epoch > self._epoch_at_start:
                return term  # elected since the registration
            # Its own heartbeats would keep that master alive for good.
            self._sends_heartbeats = False
            return None
        if not self._sends_heartbeats:
            self._epoch_at_start = await self._ask_epoch()
            self._sends_heartbeats = True
        await self._wait_for_heartbeat()
        if leader is None or self._links.leader is not leader or leader.connection is not connection:
            raise NoLeader("another controller leads than the one at which this broker registered")
        return term if term is not None and term.master_id is not None else await self._elect()

    async def _repeat(self, step: str, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of a step, which is tried until it succeeds."""
        while True:
            try:
                return await attempt()
            except (*FAILURES, StoreError, UnusableIdentity) as problem:
                text = problem.remark if isinstance(problem, RequestError) else str(problem)
                self._broker.note_state(f"{step}: {text or type(problem).__name__}")
            # Replicas that start together would otherwise apply for the same id again and again.
            await trio.sleep(RETRY_S * (0.5 + random.random() / 2))

    async def _take_id(self) -> int:
        identity, config = self._identity, self._broker.config
        broker_id: int | None = await self._run_blocking(identity.read)
        if broker_id is not None:
            return broker_id
        application: Application | None = await self._run_blocking(identity.read_application)
        if application is None:
            answer = await self._links.ask_leader(
                ControllerGetNextBrokerId(
                    cluster_name=config.broker_cluster_name, broker_name=config.broker_name
                )
            )
            leader = self._links.leader
            if answer.next_broker_id is None or leader is None or leader.connection is None:
                raise NoLeader("the controller gives no id")
            code = f"{self._address_through(leader.connection)};{self._now_ms()}"
            application = Application(answer.next_broker_id, code)
            await self._run_blocking(partial(identity.write_application, application))
        try:
            await self._links.ask_leader(
                ControllerApplyBrokerId(
                    cluster_name=config.broker_cluster_name,
                    broker_name=config.broker_name,
                    applied_broker_id=application.broker_id,
                    register_check_code=application.check_code,
                )
            )
        except RequestError as refusal:
            if refusal.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                await self._run_blocking(identity.withdraw_application)
            raise
        await self._run_blocking(partial(identity.write, application.broker_id))
        log.info("id of the broker", extra={"broker": config.broker_name, "broker_id": application.broker_id})
        return application.broker_id

    async def _register_address(self) -> ControllerRegisterBrokerReply:
        config = self._broker.config
        leader = await self._links.wait_for_leader()
        assert leader.connection is not None
        request = ControllerRegisterBroker(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=self._broker_id,
            broker_address=self._address_through(leader.connection),
        )
        try:
            return await self._links.ask_leader(request)
        except RequestError as refusal:
            if refusal.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
                refusal.remark = (
                    f"{refusal.remark}. The controllers do not know the id {self._broker_id}, which this broker has in "
                    "brokerIdentity: they have lost their state, which must be restored, or an operator removed it "
                    "there: then delete that file, and the broker gets another id"
                )
            raise

    async def _ask_epoch(self) -> int:
        """Return the epoch of the last election; 0 if there was none."""
        name = self._broker.config.broker_name
        answer = await self._links.ask_leader(ControllerGetReplicaInfo(broker_name=name))
        return answer.master_epoch or 0

    async def _wait_for_heartbeat(self) -> None:
        """Wait until the leading controller has answered a heartbeat: it elects only brokers that live."""
        self._links.wake()
        leader = await self._links.wait_for_leader()
        with trio.fail_after(RETRY_S * 3):
            while leader.heartbeat_sent_s is None:
                if not leader.is_open:
                    raise NoLeader(self._links.trouble)
                await trio.sleep(0.02)

    async def _elect(self) -> MasterTerm:
        """Ask for an election, and return the term of the master. Raises NoLeader if there is none."""
        config = self._broker.config
        request = ControllerElectMaster(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=NO_BROKER if self._broker_id is None else self._broker_id,
            invoke_time=self._now_ms(),
        )
        term = _term_of(await self._links.ask_leader(request))
        if term is None or term.master_id is None:
            raise NoLeader("no master can be elected")
        return term

    # -- handing over -------------------------------------------------------------------------------------------------

    async def have_elected(self, broker_id: int) -> MasterTerm:
        """Have the controller elect a replica, obey the answer, and return it. Raises NoLeader or one of FAILURES.

        The lease ends before: the controller does not wait for that of a master when another one is named. If it elects
        nobody, the next confirmation of the role begins another lease.
        """
        config = self._broker.config
        request = ControllerElectMaster(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=broker_id,
            designate_elect=True,
            invoke_time=self._now_ms(),
        )
        self._lease.end()
        try:
            answer = await self._links.ask_leader(request)
        except FAILURES as problem:
            # Again, because heartbeats went on: what was confirmed meanwhile may be from before the election.
            self._lease.end()
            if isinstance(problem, RequestError):
                with suppress(*FAILURES):
                    await self._confirm_role(await self._links.wait_for_leader())
            raise
        term = _term_of(answer)
        if term is None or term.master_id != broker_id:
            raise NoLeader(f"the controller did not elect the broker {broker_id}")
        self._obey(term)
        return term

    async def wait_for_role(self, epoch: int) -> None:
        """Wait until the role of an epoch, or of a newer one, is taken."""
        while self.role.master_epoch < epoch:  # noqa: ASYNC110 - as long as a change takes
            await trio.sleep(ROLE_POLL_S)

    # -- roles --------------------------------------------------------------------------------------------------------

    async def _ask_for_master(self) -> None:
        """Ask periodically, and after each hint, who is the master."""
        while True:
            period_s = self._broker.config.replication.sync_broker_metadata_period_ms / 1000
            self._hints.signal.clear()
            try:
                await self._confirm_role(await self._links.wait_for_leader())
            except FAILURES as problem:
                await self._handle_refusal(problem)
                if self.role.master_epoch > 0:
                    self._show_membership()  # its connection to the master may have ended meanwhile
            await self._hints.signal.wait(period_s if self._is_in_sync else min(period_s, NOT_IN_SYNC_POLL_S))

    async def _handle_refusal(self, problem: Exception) -> None:
        """Register again if the controller does not know the broker name any more."""
        log.debug("master not known", extra={"reason": str(problem)})
        if (
            isinstance(problem, RequestError)
            and problem.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
        ):
            try:
                await self._register_address()
            except FAILURES as error:
                self._broker.note_state(f"registration: {error}")

    async def _confirm_role(self, link: ControllerLink) -> None:
        """Ask the leading controller who is master; renew the lease, or obey. Raises one of FAILURES."""
        config = self._broker.config
        heartbeat_sent_s, generation = link.heartbeat_sent_s, self._lease.generation
        timeout_s = config.replication.send_heartbeat_timeout_ms / 1000
        answer = await self._links.ask(
            link, ControllerGetReplicaInfo(broker_name=config.broker_name), timeout_s
        )
        term = _term_of(answer)
        if term is None or term.epoch < self._newest_epoch:
            return
        if term.master_id != self._broker_id:
            # Also while the parts of a master are being built: it must not begin with a lease of an earlier term.
            self._lease.end()
        elif heartbeat_sent_s is not None:
            self._renew_lease(_Renewal(term.epoch, heartbeat_sent_s, generation))
        if term.epoch > self.role.master_epoch:
            # Without a master the controller has found nobody. This broker may be in the set, and alive again.
            self._obey(term if term.master_id is not None else await self._elect())
        elif self._is_master and (reports := self._broker.sync_reports) is not None:
            reports.accepted(term.sync_set, term.sync_set_epoch)
        elif not self._is_master and term.epoch == self.role.master_epoch:
            self._note_membership(term.sync_set)

    def _renew_lease(self, renewal: _Renewal) -> None:
        """Renew the lease, also for an epoch that is yet to begin here: requests that wait for that are served at once.

        Parts that store in an earlier epoch get no lease from it: another master may have stored in an epoch between
        the two.
        """
        if self._storing_epoch in (None, renewal.epoch):
            self._lease.renew(renewal.heartbeat_sent_s, renewal.generation)
        else:
            self._early_renewal = renewal

    def _begin_storing(self, epoch: int) -> None:
        """Note that the parts of an earlier epoch are gone, and use the renewal that had to wait for that."""
        self._storing_epoch = epoch
        renewal, self._early_renewal = self._early_renewal, None
        if renewal is not None and renewal.epoch >= epoch:
            self._renew_lease(renewal)

    def _note_membership(self, sync_set: frozenset[int]) -> None:
        self._is_member = self._broker_id in sync_set
        self._show_membership()

    def _show_membership(self) -> None:
        self._is_in_sync = self._broker.note_membership(is_member=self._is_member)

    @property
    def _newest_epoch(self) -> int:
        """The epoch of the present role, or of the newest that is to be taken."""
        return max(self.role.master_epoch, 0 if self._newest is None else self._newest.epoch)

    def _obey(self, term: MasterTerm) -> None:
        """Have the role of a term taken, if it is newer than the present one."""
        if term.epoch <= self._newest_epoch or term.master_id is None:
            return
        epoch_of_log = self._broker.log_state.epoch
        if term.epoch < epoch_of_log:
            self._broker.note_state(
                f"the controller is in epoch {term.epoch}, but the log of this broker has messages of epoch "
                f"{epoch_of_log}: the controllers have lost their state. Restore it"
            )
            return
        self._newest = term
        self._to_change.set()

    async def _change_roles(self) -> None:
        """Carry out changes of the role, one after the other, the newest first."""
        if self._newest_epoch > self.role.master_epoch:
            self._to_change.set()  # a change that an earlier run of this manager had begun
        while True:
            await self._to_change.wait()
            self._to_change = trio.Event()
            term = self._newest
            if term is None or term.epoch <= self.role.master_epoch:
                continue
            try:
                await self._take_role(term)
            except Exception as error:  # whatever went wrong, the broker must not keep its old role
                log.error("role of the broker not changed", exc_info=error, extra={"epoch": term.epoch})
                self._broker.note_state(f"the role of epoch {term.epoch} cannot be taken: {error}")
                await trio.sleep(RETRY_S)
                self._to_change.set()

    async def _take_role(self, term: MasterTerm) -> None:
        assert self._broker_id is not None
        role = ControlledRole(self._broker_id, term.epoch, term.sync_set, term.sync_set_epoch)
        is_elected = term.master_id == self._broker_id
        if is_elected:
            with suppress(*FAILURES):
                await self._confirm_role(await self._links.wait_for_leader())
            if self._newest is not term:
                return
            if self._storing_epoch is None:
                self._storing_epoch = term.epoch
            await self._broker.lead(role)
            self._begin_storing(term.epoch)
        else:
            self._lease.end()
            self._is_master = False
            await self._broker.follow(role, term.address)
            self._storing_epoch = None
        self.role, self._is_master = role, is_elected
        self._broker.note_state("")
        self._note_membership(role.sync_set | ({role.broker_id} if is_elected else frozenset()))
        self._hints.signal.set()
        name = self._broker.config.broker_name
        extra = {"broker": name, "epoch": term.epoch, "broker_id": role.broker_id, "master": term.address}
        if is_elected:
            log.warning("broker leads", extra=extra)
        else:
            log.warning("broker follows", extra=extra)

    async def _watch_lease(self) -> None:
        """Show that a master stores nothing because it has lost its lease."""
        was_valid = True
        while True:
            await trio.sleep(LEASE_CHECK_S)
            self._lease.notify()
            is_valid = not self._is_master or self._lease.is_valid
            if not is_valid:
                self._broker.note_state(
                    f"this master stores nothing: no leading controller confirms its role. {self._links.trouble}"
                )
            elif not was_valid:
                self._broker.note_state("")
            was_valid = is_valid

    # -- the replicas in sync -----------------------------------------------------------------------------------------

    async def _report_sync_set(self) -> None:
        """Ask the controller for each change of the set of replicas in sync."""
        changed = WakeSignal()
        watched: SyncReports | None = None
        while True:
            period_s = self._broker.config.replication.check_sync_state_set_period_ms / 1000
            await changed.wait(min(period_s, MAX_REPORT_INTERVAL_S))
            changed.clear()
            reports = self._broker.sync_reports
            if reports is not None and reports is not watched:
                watched = reports
                reports.add_change_listener(changed.set)
            sync_set = reports.wanted_set() if reports is not None and self._is_master else None
            if reports is None or sync_set is None:
                continue
            try:
                await self._report(reports, sorted(sync_set))
            except FAILURES as problem:
                log.warning("replicas in sync not reported", extra={"reason": str(problem)})
                if isinstance(problem, RequestError):
                    reports.refused(sync_set, problem.code)
                self._hints.signal.set()  # another version of the set may be in force
                await trio.sleep(REFUSED_PAUSE_S)

    async def _report(self, reports: SyncReports, sync_set: list[int]) -> None:
        role = self.role
        request = ControllerAlterSyncStateSet(
            broker_name=self._broker.config.broker_name,
            master_broker_id=role.broker_id,
            master_epoch=role.master_epoch,
            invoke_time=self._now_ms(),
            data=SyncStateSet(sync_state_set=sync_set, sync_state_set_epoch=reports.epoch),
        )
        answer = await self._links.ask_leader(request)
        if answer.data is not None:
            reports.accepted(answer.data.sync_state_set, answer.data.sync_state_set_epoch)


def _term_of(
    answer: ControllerRegisterBrokerReply | ControllerElectMasterReply | ControllerGetReplicaInfoReply,
) -> MasterTerm | None:
    """Return the master that an answer names; None for one without an epoch."""
    if answer.master_epoch is None:
        return None
    sync_set, sync_set_epoch = frozenset[int](), 0
    if answer.data is not None:
        sync_set = frozenset(answer.data.sync_state_set)
    if isinstance(answer, ControllerGetReplicaInfoReply):
        sync_set_epoch = 0 if answer.data is None else answer.data.sync_state_set_epoch
    else:
        sync_set_epoch = answer.sync_state_set_epoch or 0
    return MasterTerm(
        answer.master_epoch,
        answer.master_broker_id if answer.master_address else None,
        answer.master_address or "",
        sync_set,
        sync_set_epoch,
    )
