"""Carries out the roles that controllers give a broker: `ManagedBroker` of `replicas_manager.py` for a service.

`ControllerMode` builds and runs all that a broker under controllers has besides its service. A new role replaces the
parts of the broker (`BrokerService.rebuild`); an election that changes nothing here but the epoch, or that gives a
slave another master, does not. A master registers under the id 0, a slave under its id at the controller, as official
ones do.

The controller says where the master answers requests. The master itself says where its HA port is (906), as soon as
it is master. In the official broker a slave learns that from a namesrv, up to 30 s later.
"""

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import trio

from codec.constants import MASTER_ID
from gateway.broker.assembly.namesrv_lookup import resolve_host
from gateway.broker.assembly.role_control import (
    COPYING,
    PROBE_TIMEOUT_S,
    HandOverOrders,
    RoleLinks,
)
from gateway.broker.assembly.saved_role import with_role
from gateway.broker.assembly.stepping_down import LINGER_S, SteppingDown
from gateway.broker.replication.broker_identity import BrokerIdentity, IdentityFiles
from gateway.broker.replication.controller_links import ControllerLinks
from gateway.broker.replication.fencing import Lease
from gateway.broker.replication.follower import NO_CONNECTION
from gateway.broker.replication.master_lookup import Master, parse_address
from gateway.broker.replication.parts import SlaveParts
from gateway.broker.replication.relay import RELAY_S, Relay
from gateway.broker.replication.replicas_manager import (
    LogState,
    ReplicasManager,
    RoleHints,
    SyncReports,
)
from gateway.broker.waiting.wake_signal import WakeSignal
from gateway.config.process import BrokerConfig
from gateway.config.replication import SLAVE, SYNC_MASTER, UNDECIDED_ID, ControlledRole, Role
from remoting.errors import REQUEST_FAILURES, RequestError, first_leaf
from remoting.requests.ha import ExchangeBrokerHaInfo
from storage.clock import Clock, clock_with_suspension

if TYPE_CHECKING:
    from gateway.broker.assembly.service import BrokerService

log = logging.getLogger(__name__)

NO_ROLE: Final = "it waits for its controllers to give it a role"
MIN_IN_SYNC_S: Final = 3.0
"""Time for which a slave must have been one of the replicas in sync before that is shown: a controller answers sooner.
"""
LOOK_INTERVAL_S: Final = 1.0
"""Time between two looks at whether the master's HA port is known and reached."""
MAX_PROMOTION_S: Final = 3.0
"""Longest time that requests passed on to a new master wait for its promotion. Clients wait 3 s for an answer."""
RETRY_S: Final = 0.1
"""Time between two questions to a master that does not know yet that it is one."""


def undecided(config: BrokerConfig) -> BrokerConfig:
    """Return the configuration of a broker that has got no role from its controllers yet: a slave of nobody."""
    config = with_role(config, SLAVE, UNDECIDED_ID, ha_master_address="")
    return replace(config, controlled=ControlledRole())


class ControllerMode:
    """The parts of a broker under controllers that its service shares with its manager, and the manager.

    ``config`` is the broker's, ``files`` are those of its store in ``root``.
    """

    def __init__(self, config: BrokerConfig, clock: Clock, files: IdentityFiles, root: str) -> None:
        timeout_s = config.replication.controller_heartbeat_timeout_ms / 1000
        self._clock = clock
        self._identity = BrokerIdentity(files, root, config.broker_cluster_name, config.broker_name)
        self._settings = config.replication
        self.lease = Lease(timeout_s, clock_with_suspension(clock))
        self.hints = RoleHints()
        self.hand_overs = HandOverOrders()

    async def run(self, service: "BrokerService", links: RoleLinks) -> None:
        """Register at the controllers, and take the roles that they give, until cancelled."""
        roles = ControlledRoles(service, links)
        controllers = ControllerLinks(self._settings, links.dial, self.lease.now, links.sign, resolve_host)
        manager = ReplicasManager(
            roles,
            controllers,
            self._identity,
            self.lease,
            self.hints,
            service.run_blocking,
            self._clock.now_ms,
        )
        async with trio.open_nursery() as nursery:
            hand_overs = SteppingDown(service, links, controllers, manager)
            nursery.start_soon(hand_overs.run, self.hand_overs)
            nursery.start_soon(service.tasks.keep_running, "search for the master", roles.run)
            nursery.start_soon(service.tasks.keep_running, "controllers", manager.run)

    async def step_down(self, service: "BrokerService", max_s: float) -> None:
        """Have another replica become master before this broker ends, if there is one.

        If it has producers, the messages that they still send here are passed on for a while, at most ``max_s`` in all.
        """
        if service.broker.config.role is not Role.MASTER or not service.is_open:
            return
        has_producers = bool(service.broker.clients.producers)
        with trio.move_on_after(max_s):
            try:
                await self.hand_overs.place("")
            except RequestError:
                return  # it is in the log, and the controllers elect another master when this one ends
            if has_producers:
                await trio.sleep(LINGER_S)


class ControlledRoles:
    """The broker of one service, as its `ReplicasManager` uses it."""

    def __init__(self, service: "BrokerService", links: RoleLinks) -> None:
        self._service = service
        self._links = links
        self._log_state = LogState(-1, 0, 0)
        self._master_address = ""
        self._not_in_sync_s = -math.inf
        self._has_new_master = WakeSignal()
        self._has_relay = WakeSignal()

    # -- what the manager asks ----------------------------------------------------------------------------------------

    @property
    def config(self) -> BrokerConfig:
        """The present configuration."""
        return self._service.broker.config

    @property
    def log_state(self) -> LogState:
        """The state of the log; the last one while the store is closed."""
        service, replication = self._service, self._service.broker.replication
        if service.is_open:
            end = service.broker.store.max_physical_offset
            newest = None if replication.epochs is None else replication.epochs.newest
            self._log_state = LogState(
                -1 if newest is None else newest.epoch, end, replication.confirm_offset(end)
            )
        return self._log_state

    @property
    def sync_reports(self) -> SyncReports | None:
        """The set of replicas in sync of the present parts; None at a slave."""
        return self._service.broker.replication.sync_state if self._service.is_open else None

    def note_state(self, reason: str) -> None:
        """Show why the broker has no role, or stores nothing; "" if all is well."""
        self._service.note_controllers(reason)

    def note_membership(self, *, is_member: bool) -> bool:
        """Show whether a slave is one of the replicas in sync, as the controllers say; return whether it is."""
        slave, settings, now_s = (
            self._service.broker.replication.slave,
            self.config.replication,
            trio.current_time(),
        )
        problem = ""
        if slave is None or settings.async_learner:
            # A master is in sync from its election on and is not judged again; a learner never is in sync.
            self._not_in_sync_s = -math.inf
        elif not slave.follower.is_copying:
            problem = f"this slave is not connected to its master {self._master_address}"
        elif not is_member:
            problem = (
                "the controllers do not count this slave among the replicas in sync: it has not caught up yet"
            )
        if problem:
            self._not_in_sync_s = now_s
        elif now_s < self._not_in_sync_s + MIN_IN_SYNC_S:
            # Its master may have asked to remove it when it was not connected, and the answer may be late.
            problem = f"this slave has been among the replicas in sync for less than {MIN_IN_SYNC_S:g} s"
        self._service.note_in_sync(problem)
        return not problem

    # -- roles --------------------------------------------------------------------------------------------------------

    @property
    def _serves(self) -> bool:
        """True while there are parts that have a role."""
        return self._service.is_open and not self._service.fence_reason

    async def lead(self, role: ControlledRole) -> None:
        """Become the master, or go on as master in a newer epoch. Raises what went wrong."""
        service = self._service
        # First, so that an answer of the former master that comes while the parts change leads nobody back to it.
        self._master_address = ""
        if self._serves and self.config.role is Role.MASTER:
            service.pass_on_to(None)
            self._go_on_leading(role)
            return
        if self._serves:
            # Of a former master that leads again: what comes meanwhile would be refused as by any slave.
            service.hold_requests(COPYING)
        service.pass_on_to(None)
        replication = service.broker.replication
        # The former master may be hung: nothing is to wait for it, and what it said last about confirmed messages does
        # not count any more. But who was master before, and still has others in its set, has to wait for them.
        replication.follow_master(None, "")
        if role.sync_set == {role.broker_id}:
            if replication.slave is not None and service.is_open:
                replication.slave.follower.confirm_everything()
            await service.apply_copied_progress()
        await service.rebuild(
            lambda config: replace(
                with_role(config, SYNC_MASTER, MASTER_ID, ha_master_address=""), controlled=role
            ),
            needed=True,
        )

    def _go_on_leading(self, role: ControlledRole) -> None:
        """Begin another epoch with the same parts.

        Another broker was master in between only if there was an unclean election; what it stored is lost.
        """
        broker = self._service.broker
        epochs = broker.replication.epochs
        # An attempt that failed later may have begun the epoch already, which has messages since.
        if epochs is not None and (epochs.newest is None or epochs.newest.epoch != role.master_epoch):
            epochs.append(role.master_epoch, broker.store.max_physical_offset)
        if broker.replication.sync_state is not None:
            broker.replication.sync_state.accepted(role.sync_set, role.sync_set_epoch)
        broker.config = replace(broker.config, controlled=role)
        broker.topics.begin_epoch(role.master_epoch)

    async def follow(self, role: ControlledRole, master_address: str) -> None:
        """Become a slave of a master, or go on as slave with it. Raises what went wrong."""
        config = self.config
        self._master_address = master_address
        relay = self._service.relay
        # Also if it refuses requests by now, because a hand-over takes long.
        was_master = config.role is Role.MASTER
        if was_master or (relay is not None and relay.is_active):
            # Producers learn of the new master within 30 s, and would report errors until then. A former master whose
            # successor is replaced as well passes on to the newest one: nothing is passed on twice.
            address = parse_address(master_address)
            end_s = trio.current_time() + RELAY_S
            self._service.pass_on_to(Relay(address, self._links.dial, end_s, max_promotion_s=MAX_PROMOTION_S))
            self._has_relay.set()
        if not (self._serves and config.role is Role.SLAVE and config.broker_id == role.broker_id):
            await self._service.rebuild(
                lambda config: replace(
                    with_role(config, SLAVE, role.broker_id, ha_master_address=""), controlled=role
                ),
                needed=True,
            )
        self._service.broker.replication.follow_master(None, master_address)
        self._has_new_master.set()

    # -- where the master is ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Find the HA port of each master, and pass requests on to it, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._find_master)
            while True:
                self._has_relay.clear()
                relay = self._service.relay
                if relay is not None and relay.begin():
                    nursery.start_soon(relay.run)
                await self._has_relay.wait(LOOK_INTERVAL_S)

    async def _find_master(self) -> None:
        while True:
            self._has_new_master.clear()
            slave = self._service.broker.replication.slave if self._serves else None
            if slave is None or not self._master_address:
                await self._has_new_master.wait(LOOK_INTERVAL_S)
                continue
            # One that is not connected may have an old address: the master may use another port since its start.
            if slave.lookup.master is None or slave.follower.state == NO_CONNECTION:
                await self._ask_master(self._master_address, slave)
            await self._has_new_master.wait(RETRY_S if slave.lookup.master is None else LOOK_INTERVAL_S)

    async def _ask_master(self, address: str, slave: SlaveParts) -> None:
        """Ask the master for its HA address, and have these parts of a slave follow it there.

        A master that does not know yet that it is one names none.
        """
        try:
            with trio.move_on_after(PROBE_TIMEOUT_S):
                async with self._links.dial(*parse_address(address)) as connection:
                    answer = await connection.ask(ExchangeBrokerHaInfo(), PROBE_TIMEOUT_S, self._links.sign)
                    ha_address = answer.master_ha_address
                    replication = self._service.broker.replication
                    if ha_address and address == self._master_address and replication.slave is slave:
                        master = Master(parse_address(ha_address), parse_address(address))
                        replication.follow_master(master, address)
        except* (ValueError, *REQUEST_FAILURES) as problems:
            extra = {"master": address, "reason": str(first_leaf(problems))}
            log.debug("HA port of the master not known", extra=extra)
