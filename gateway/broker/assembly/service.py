"""Running one broker: its listeners, its background tasks, its changes of role, its shutdown.

Theory of operation
-------------------
A broker that becomes master or slave, or whose store must be cut, needs other parts: another store, tables that are
read again, other background tasks. Its listeners and connections stay, because clients would take their end for the
end of the broker. `BrokerService.rebuild` replaces everything behind them:

1. Requests are held (`limits/request_pause.py`). Answers that wait for a message or for the disk are sent.
2. The background tasks end, the tables are written, and the store is closed.
3. The caller's step runs, such as a cut of the closed store. `BrokerBuilder` opens the store and builds the parts with
   the changed configuration.
4. The handlers of the new parts replace the old ones in the table that connections use, tasks start according to the
   new role, and whoever holds the `Broker` gets the new one (`add_user`). Held requests are passed on.

If a step fails, the broker is *fenced*: it has no store, refuses every request, says so in `/readyz`, and leaves the
namesrvs. The next `rebuild` begins with step 3; a slave that needs the change tries again by itself. A crash at any
step leaves a store that the next start recovers.
"""

import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final, Protocol

import trio

from codec.constants import ResponseCode
from gateway.broker.assembly.build import BrokerBuilder
from gateway.broker.assembly.native_sends import NativeSends
from gateway.broker.assembly.role_control import NO_LINKS, ROLE_REQUESTS, RoleControl, RoleLinks
from gateway.broker.assembly.role_control import handlers as role_handlers
from gateway.broker.broker import Broker
from gateway.broker.consumers.broadcast_offsets import SCAN_INTERVAL_S
from gateway.broker.delayed.timer_task import TimerTask, save_timers
from gateway.broker.limits.go_away import GoAway
from gateway.broker.limits.request_pause import MAX_HOLD_S, RequestPause
from gateway.broker.messages.index_builder import IndexBuilder
from gateway.broker.processors import all_handlers
from gateway.broker.processors.log_expiry import expire_messages
from gateway.broker.processors.turns import run_in_slices
from gateway.broker.replication.epochs import EpochTable
from gateway.broker.replication.fencing import Lease, LeaseGuard
from gateway.broker.replication.follower import Follower
from gateway.broker.replication.parts import LogCut
from gateway.broker.replication.relay import Relay
from gateway.broker.replication.role_guard import RoleGuard
from gateway.broker.replication.status import replication_status
from gateway.broker.statistics.traffic_rates import SAMPLE_INTERVAL_S
from gateway.broker.topics.topic_table import SAVE_INTERVAL_S
from gateway.config.process import BrokerConfig
from gateway.config.replication import Role
from gateway.runtime.config_file import ChangingTable, SettingsTable
from gateway.runtime.run_blocking import RunBlocking
from gateway.runtime.supervise import TaskSupervisor
from remoting.connection import Connection, Handler
from remoting.errors import RequestError
from remoting.frame_connection import FrameConnection
from remoting.handler_table import NO_GUARD, Guard, GuardedHandlers, Protect
from remoting.limits import ConnectionLimits
from remoting.reactor import Reactor
from remoting.requests.send import SendMessageV2
from remoting.server import AcceptTransport, ConnectionType, RemotingServer, ServerLimits
from storage.cut import cut_store, delete_old_copy
from storage.errors import FlushFailed, StoreFull
from storage.store import MessageStore

log = logging.getLogger(__name__)

EXPIRY_INTERVAL_S = 10.0
SETTLE_INTERVAL_S = 1.0
DISK_CHECK_INTERVAL_S = 1.0
HOUR_MS: Final = 3_600_000
DRAIN_POLL_S = 0.01
DELIVERY_PAUSE_S = 1.0
# Longest sleep, so that a change of the wall clock, or a suspended machine, is noticed soon.
MAX_SLEEP_S = 5.0


ROLE_CHANGE: Final = "change of role"
"""The name under which a failed change is shown beside background tasks."""
NAME_OWNER: Final = "ownership of the broker name"
CONTROLLERS: Final = "role given by controllers"
"""The name under which a broker that has no role, or no lease, is shown beside background tasks."""
IN_SYNC: Final = "in-sync"
"""The name under which a slave that its controllers do not count among the replicas in sync is shown. Probes that must
not wait for that leave it out by this name (`/readyz?exclude=in-sync`)."""
COPYING: Final = "copying the master"
"""The name under which a slave that cannot copy is shown beside background tasks."""
MAX_CHANGES: Final = 8
MIN_REPEAT_PAUSE_S: Final = 1.0
MAX_REPEAT_PAUSE_S: Final = 30.0
"""Pauses before a change that is needed, and for which there was no room, is tried again."""
MAX_ANSWER_S: Final = 5.0
"""Longest wait for the answers to requests that began before a change."""

ChangeConfig = Callable[[BrokerConfig], BrokerConfig]


class ReplicationTrouble(Exception):
    """A slave cannot copy its master, and that will not change by itself."""


class NotConfirmed(Exception):
    """No controller has given the broker a role, or confirms it."""


class NotInSync(Exception):
    """The slave would not be elected, because it may lack messages."""


class PartsReplaced(Exception):
    """The parts that a change was ordered for were replaced before it began."""


class PartsUser(Protocol):
    """Uses the parts of a broker, and so must know of a change."""

    def follow(self, broker: Broker) -> None:
        """Use these parts from now on."""

    async def leave(self) -> None:
        """Send nobody to the broker until `follow` is called: it has no parts."""


@dataclass(frozen=True, slots=True)
class PartsChange:
    """An order to build the parts again; ``finish`` is called with None, or with what went wrong.

    ``prepare`` runs, in slices, once all tasks have ended, before the tables are written and the store is closed.

    A change that is ``needed`` fences the broker if it fails at any step: it must not serve with its previous parts.
    If there was no room for it, or the disk did not work, it is tried again.
    """

    change_config: ChangeConfig
    between: Callable[[], object]
    finish: Callable[[Exception | None], None]
    needed: bool = False
    prepare: Callable[[], Iterable[None]] = tuple
    parts: Broker | None = None
    """The parts that the change is for; it is dropped if others replace them before it begins."""


class MasterShift:
    """The time in which the tasks of a master run: it ends when the broker rests, and another one begins afterwards."""

    def __init__(self) -> None:
        self.ends = trio.Event()
        self.has_ended = trio.Event()
        self.begins_again = trio.Event()


class BrokerService:
    """Runs one broker.

    Without a ``builder`` its parts cannot be built again; without ``ha_listeners`` it has no slaves. With a ``lease``
    a controller decides about its role.
    """

    def __init__(
        self,
        broker: Broker,
        limits: ConnectionLimits,
        server_limits: ServerLimits,
        run_blocking: RunBlocking,
        reactor: Reactor | None = None,
        accept_transport: AcceptTransport | None = None,
        guard: Guard = NO_GUARD,
        connection_type: ConnectionType = FrameConnection,
        builder: BrokerBuilder | None = None,
        ha_listeners: Sequence[socket.socket] = (),
        role_links: RoleLinks = NO_LINKS,
        lease: Lease | None = None,
    ) -> None:
        self.broker = broker
        self._lease_guard = (
            None
            if lease is None
            else LeaseGuard(lease, broker.config.broker_name, lambda: self.broker.config.role is Role.MASTER)
        )
        self._check_appends(broker)
        self._controllers_reason = ""
        self._sync_problem = ""
        self._ha_listeners = list(ha_listeners)
        self._builder = builder
        self._guard = guard
        self.run_blocking = run_blocking
        self._drain_s = server_limits.max_drain_s
        self._go_away = GoAway(broker.clock)
        self._pause = RequestPause(ROLE_REQUESTS)
        self.relay: Relay | None = None
        """The way to the master that this broker handed over to, None without one."""
        self._other_master = ""
        self._shift = MasterShift()
        self._roles = RoleControl(self, role_links)
        self.native_sends = NativeSends(limits)
        self.guarded_handlers = GuardedHandlers(
            self._bind_handlers(broker), self._guards_of(broker), self._choose_native_sends
        )
        broker.flow_control.add_listener(self.guarded_handlers.apply_guards)
        self.handlers: dict[int, Handler] = self.guarded_handlers.by_code
        self.tasks = TaskSupervisor(broker.config.broker_name)
        self._answer_marked = broker.long_polls.answer_marked
        self._wake_slaves = broker.replication.end_batch
        self.server = RemotingServer(
            self.handlers,
            limits,
            server_limits,
            on_batch=self.end_batch,
            on_open=self.handle_open,
            reactor=reactor,
            accept_transport=accept_transport,
            connection_type=connection_type,
            taker=self.native_sends,
        )
        self._checkpoint_extent = _log_extent(broker.store)
        self._checking_transactions = trio.Lock()
        self._connections: set[Connection] = set()
        self._users: list[PartsUser] = []
        self._order_change, self._changes = trio.open_memory_channel[PartsChange](MAX_CHANGES)
        self._is_open = True
        self._is_changing = False
        self._is_resting = False
        self._fence = ""
        self._failed_change: PartsChange | None = None
        self._repeat_pause_s = MIN_REPEAT_PAUSE_S
        self._has_unsaved_tables = False

    def _check_appends(self, broker: Broker) -> None:
        """Have the store of a broker under controllers refuse what would be stored without a lease."""
        if self._lease_guard is not None:
            broker.store.check_append = self._lease_guard.check_append

    def _bind_handlers(self, broker: Broker) -> dict[int, Handler]:
        observed = self._guard.observed
        return all_handlers().bind(broker, observed) | role_handlers.bind(self._roles, observed)

    def _guards_of(self, broker: Broker) -> tuple[Protect, ...]:
        """Return the guards, in the order in which a request passes them.

        Access control is the first, because a request that it refuses must not use up a quota; quotas are the last,
        because requests that another guard refuses do not count.
        """
        flow = broker.flow_control
        guards = (
            self._guard.protect,
            self._go_away.guard,
            flow.limit_waiting_time,
            self._pause.guard,
            RoleGuard(
                lambda: broker.config,
                lambda: broker.replication.master_address,
                lambda: self.relay,
                lambda: self._other_master,
                lambda: broker.replication.takeover.is_compared,
            ).guard,
            flow.limit_held_sends,
            flow.limit_pull_rate,
            flow.limit_send_rate,
        )
        return guards if self._lease_guard is None else (*guards, self._lease_guard.guard)

    def _choose_native_sends(self, guarded: GuardedHandlers) -> None:
        guards, lease_guard = guarded.guards_of(SendMessageV2.code), self._lease_guard
        if lease_guard is None:
            limits = self.broker.flow_control.limits_on_plain_sends(guards)
        else:
            limits = self.broker.flow_control.limits_on_plain_sends(
                [guard for guard in guards if guard != lease_guard.guard]
            )
            limits = None if limits is None else lease_guard.limit_plain_sends(limits)
        self.native_sends.follow(self.broker, limits)

    @property
    def is_open(self) -> bool:
        """False while the parts are replaced, and after that failed: then the store of ``broker`` is closed."""
        return self._is_open

    def keeps_parts(self, parts: Broker) -> bool:
        """Return False once the parts of the broker were replaced, or are about to be."""
        return self.broker is parts and self._is_open and not self._is_changing

    def require_parts(self, parts: Broker) -> None:
        """Raise RequestError unless the broker keeps these parts."""
        if not self.keeps_parts(parts):
            raise RequestError(
                ResponseCode.SYSTEM_BUSY, f"{parts.config.broker_name} gets another role meanwhile"
            )

    def add_user(self, user: PartsUser) -> None:
        """Have ``user`` told of all parts that are built from now on."""
        self._users.append(user)

    def end_batch(self) -> None:
        """Answer the waiting requests that a batch of requests concerns, and send its messages to slaves."""
        self._answer_marked()
        self._wake_slaves()

    def handle_open(self, connection: Connection) -> None:
        """Note a new connection, also one in this process, and have the broker forget it when it closes."""
        self._connections.add(connection)
        connection.on_close(self._handle_close)

    def _handle_close(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self.broker.clients.drop_connection(connection)
        self.broker.long_polls.drop_connection(connection)

    async def run(self, listeners: list[socket.socket]) -> None:
        """Serve until `stop` or cancelled; then write the tables and close the store."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run_parts)
                nursery.start_soon(self._roles.run)
                await self.server.serve(listeners)
                nursery.cancel_scope.cancel()
        finally:
            for listener in self._ha_listeners:
                listener.close()
            self.close()

    # -- changes of the parts ----------------------------------------------------------------------------------

    async def rebuild(
        self,
        change_config: ChangeConfig,
        between: Callable[[], object] = lambda: None,
        *,
        needed: bool = False,
    ) -> None:
        """Replace the parts by those of a changed configuration; ``between`` runs while the store is closed.

        Raises what went wrong. The broker is fenced then, unless the change is not ``needed`` and its store was not
        closed yet. Waits while too many changes are outstanding. Must not be called by a background task of the
        broker, nor by the task of a request: both have to end first. They use `order_rebuild`.
        """
        is_done = trio.Event()
        failures: list[Exception] = []

        def finish(failure: Exception | None) -> None:
            if failure is not None:
                failures.append(failure)
            is_done.set()

        await self._order_change.send(PartsChange(change_config, between, finish, needed))
        await is_done.wait()
        if failures:
            try:
                raise failures[0]
            finally:
                failures.clear()

    def order_rebuild(
        self,
        change_config: ChangeConfig,
        between: Callable[[], object],
        finish: Callable[[Exception | None], None] = lambda failure: None,
        prepare: Callable[[], Iterable[None]] = tuple,
    ) -> None:
        """Have the parts replaced as `rebuild` does a needed change, and ``finish`` called afterwards.

        It gets the failure or None, and is called again after each further attempt. The order holds for the present
        parts only: ``finish`` gets PartsReplaced if an earlier change replaces them. Raises trio.WouldBlock while too
        many changes are outstanding.
        """
        change = PartsChange(change_config, between, finish, needed=True, prepare=prepare, parts=self.broker)
        self._order_change.send_nowait(change)

    async def _run_parts(self) -> None:
        """Run the background tasks, and replace the parts whenever that is ordered."""
        while True:
            async with trio.open_nursery() as nursery:
                if self._is_open:
                    self.start_tasks(nursery)
                change = await self._receive_change()
                self._is_changing = True
                if self._is_open:
                    await self._settle_requests()
                nursery.cancel_scope.cancel()
            await self._replace_parts(change)

    async def _receive_change(self) -> PartsChange:
        """Wait for the next change, or until the one that failed is to be tried again."""
        with trio.move_on_after(inf if self._failed_change is None else self._repeat_pause_s):
            while True:
                change = await self._changes.receive()
                if change.parts is None or change.parts is self.broker:
                    return change
                # Such as a cut of a slave that became master meanwhile: its log is the one that counts now.
                change.finish(PartsReplaced("the parts of the broker were replaced before the change began"))
        assert self._failed_change is not None
        return self._failed_change

    def _plan_attempt(self, change: PartsChange, failure: Exception | None) -> None:
        """Have a needed change tried again if it failed for a reason that may pass.

        Another one that fails meanwhile, such as an operator's promotion of a fenced slave, does not end that.
        """
        if failure is not None and not change.needed and self._failed_change is not None:
            return
        if not change.needed or not isinstance(failure, StoreFull | OSError):
            self._failed_change = None
            return
        is_repeated = change is self._failed_change
        self._repeat_pause_s = (
            min(2 * self._repeat_pause_s, MAX_REPEAT_PAUSE_S) if is_repeated else MIN_REPEAT_PAUSE_S
        )
        self._failed_change = change

    async def rest(self, served: AbstractSet[int]) -> None:
        """Store and change nothing more until `resume` or a rebuild; only requests of the ``served`` codes are served.

        The others are held; see `refuse_held_in_time`. Those that began before are answered first, and what was to be
        stored later is stored. Raises RequestError if that takes too long, is refused by the store, or if a change of
        the parts comes first.
        """
        broker = self.broker
        self.require_parts(broker)
        self._shift.ends.set()
        await self._shift.has_ended.wait()
        self.require_parts(broker)
        await self._settle_requests(served)
        self.require_parts(broker)
        if self._has_running_requests:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"requests that may store messages run for more than {MAX_ANSWER_S:g} s",
            )
        # Otherwise written when the store is closed, where no slave gets them any more.
        broker.transactions.op_messages.flush()
        if broker.transactions.op_messages.pending_bytes:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the ends of transactions cannot be stored")
        broker.pop.state.reviver.commit_offsets()
        self._is_resting = True
        self.end_batch()

    def pass_on_to(self, relay: Relay | None) -> None:
        """Pass requests on to another master, or to none, once this broker is a slave."""
        if self.relay is not None:
            self.relay.end()
        self.relay = relay
        # The guard of a slave has the relay that there was when it was applied.
        self.guarded_handlers.apply_guards()

    def resume(self) -> None:
        """Serve again as before `rest`."""
        self._is_resting = False
        self._fence = ""
        self._pause.lift()
        self._settle_held()
        self._shift.begins_again.set()

    def hold_requests(self, served: AbstractSet[int]) -> None:
        """Hold requests of other codes than the ``served`` ones until a rebuild, which the caller orders."""
        self._pause.hold(served)
        self.guarded_handlers.apply_guards()

    async def _settle_requests(self, served: AbstractSet[int] = frozenset()) -> None:
        """Hold new requests, and have those answered that began before; the background tasks still run."""
        self._pause.hold(served)
        self.guarded_handlers.apply_guards()
        self.broker.flow_control.release_held()
        with trio.move_on_after(MAX_ANSWER_S):
            await self._answer_waiting()
            while self._has_running_requests:  # noqa: ASYNC110
                await trio.sleep(DRAIN_POLL_S)
        # Their time limits may be longer, and nobody would answer them later.
        self.broker.answer_gate.end_waits()

    @property
    def _has_running_requests(self) -> bool:
        return any(
            connection.running_task_count > self._roles.waiting[connection]
            for connection in self._connections
        )

    async def _answer_waiting(self) -> None:
        """Answer the requests that wait for a message, and wait for those that wait for the disk or for slaves."""
        broker = self.broker
        while broker.answer_gate.held_count or len(broker.long_polls):
            # Repeatedly, because a pull that waited for its quota then waits for a message.
            broker.long_polls.answer_all()
            await trio.sleep(DRAIN_POLL_S)

    async def _replace_parts(self, change: PartsChange) -> None:
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.refuse_held_in_time)
            try:
                broker = await self._build_again(change)
            except Exception as error:  # noqa: BLE001 - logged, shown, and handed to whoever ordered the change
                failure = error
                if change.needed and self._is_open:
                    self._close_to_fence()
                self._go_on_without(error)
            else:
                self._adopt(broker)
            self._is_changing = False
            nursery.cancel_scope.cancel()
        self._plan_attempt(change, failure)
        self.tasks.record_outcome(ROLE_CHANGE, failure)
        self._settle_held()
        for user in self._users:
            if self._is_open and not self.fence_reason:
                user.follow(self.broker)
            else:
                await user.leave()
        try:
            change.finish(failure)
        finally:
            # Its traceback refers to this frame, and so to files that are to be freed.
            del failure

    def _settle_held(self) -> None:
        self.guarded_handlers.apply_guards()
        self._pause.settle_held()
        self.end_batch()

    async def refuse_held_in_time(self) -> None:
        """Refuse requests that were held for too long, and those that come until the change is over."""
        broker = self.broker
        await trio.sleep(MAX_HOLD_S)
        if self.broker is not broker:
            return  # the new parts serve requests, and nobody would lift the fence
        self._pause.fence("the broker changes its role")
        self._pause.settle_held()

    async def _build_again(self, change: PartsChange) -> Broker:
        assert self._builder is not None, "a service without a builder cannot change its parts"
        config = change.change_config(self.broker.config)
        if self._is_open:
            await run_in_slices(change.prepare())
            # In a thread, because closing flushes all that is left, on the event loop.
            await self.run_blocking(self.broker.store.flush)
            self.close()
        elif self._has_unsaved_tables:
            self._persist_tables()
        self.tasks.settle_all()
        if self._sync_problem:
            self._show_in_sync()
        return await self._builder.rebuild(config, change.between)

    def _adopt(self, broker: Broker) -> None:
        """Serve with new parts from now on."""
        previous, self.broker = self.broker, broker
        broker.replication.last_cut = previous.replication.last_cut
        self._is_open = True
        self._is_resting = False
        self._fence = ""
        self._check_appends(broker)
        broker.clients.take_over(previous.clients)
        self._checkpoint_extent = _log_extent(broker.store)
        self._answer_marked = broker.long_polls.answer_marked
        self._wake_slaves = broker.replication.end_batch
        self._pause.lift()
        self.guarded_handlers.replace(self._bind_handlers(broker), self._guards_of(broker))
        broker.flow_control.add_listener(self.guarded_handlers.apply_guards)
        extra = {"broker": broker.config.broker_name, "role": broker.config.role.value}
        log.info("parts of the broker replaced", extra=extra)

    def note_other_master(self, reason: str) -> None:
        """Store no messages as long as another broker is the master of this name; "" means that none is."""
        # Also when it is the same: a change of the parts settles all outcomes.
        if reason or self._other_master:
            self.tasks.record_outcome(NAME_OWNER, RuntimeError(reason) if reason else None)
        if reason == self._other_master:
            return
        self._other_master = reason
        self.guarded_handlers.apply_guards()
        if reason:
            log.error(
                "another broker is master of this name, so nothing is stored here", extra={"reason": reason}
            )
        else:
            log.info("this broker is the master of its name")

    def note_controllers(self, reason: str) -> None:
        """Show why no controller has given a role, or confirms it; "" if all is well."""
        # Also when it is the same: a change of the parts settles all outcomes.
        self.tasks.record_outcome(CONTROLLERS, NotConfirmed(reason) if reason else None)
        if reason and reason != self._controllers_reason:
            log.warning(
                "role not confirmed", extra={"broker": self.broker.config.broker_name, "reason": reason}
            )
        self._controllers_reason = reason

    def note_in_sync(self, problem: str) -> None:
        """Show in `/readyz` that a slave is not one of the replicas in sync; "" if it is, or is none.

        An update of several replicas, one after the other, waits for that.
        """
        if problem == self._sync_problem:
            return
        self._sync_problem = problem
        self._show_in_sync()
        if problem:
            log.info("replica not in sync", extra={"reason": problem})
        else:
            log.info("replica in sync")

    def _show_in_sync(self) -> None:
        self.tasks.record_outcome(IN_SYNC, NotInSync(self._sync_problem) if self._sync_problem else None)

    async def apply_copied_progress(self) -> None:
        """Apply the master's progress that waits for the queues, before a promotion: otherwise work is repeated."""
        slave = self.broker.replication.slave
        if slave is not None and self.is_open:
            try:
                await slave.table_sync.apply_all_copied()
            except ValueError as error:
                log.warning("progress of the master cannot be read", extra={"reason": str(error)})

    @property
    def role_trouble(self) -> str:
        """The reason for which the broker stores nothing, because its role is not certain; "" if it is."""
        return self.fence_reason or self._controllers_reason

    @property
    def fence_reason(self) -> str:
        """The reason for which requests are refused, "" while they are served or held."""
        return self._pause.refusal or ""

    async def fence(self, reason: str) -> None:
        """Refuse requests, and leave the namesrvs, until the next rebuild: two brokers must not serve as one."""
        self._fence = f"{self.broker.config.broker_name} is fenced: {reason}"
        self._pause.fence(self._fence)
        self._settle_held()
        self.tasks.record_outcome(ROLE_CHANGE, RuntimeError(reason))
        log.error("broker is fenced and refuses all requests", extra={"reason": reason})
        for user in self._users:
            await user.leave()

    async def wait_for_role(self, reason: str) -> None:
        """Refuse requests, and stay out of the namesrvs, until the first rebuild: the broker has no role yet."""
        self._pause.fence(f"{self.broker.config.broker_name} has no role: {reason}")
        self._settle_held()
        self.note_controllers(reason)
        for user in self._users:
            await user.leave()

    def _close_to_fence(self) -> None:
        try:
            self.close()
        except Exception as error:
            extra = {"broker": self.broker.config.broker_name}
            log.error("store of the broker not closed cleanly", exc_info=error, extra=extra)

    def _go_on_without(self, error: Exception) -> None:
        """Serve with the previous parts if they were not closed yet, and nobody otherwise.

        A broker that was fenced before the change stays fenced.
        """
        name = self.broker.config.broker_name
        if self._is_open:
            if self._fence:
                self._pause.fence(self._fence)
            else:
                self._is_resting = False
                self._pause.lift()
            log.error("the broker keeps its role", exc_info=error, extra={"broker": name})
            return
        self._pause.fence(f"{name} is fenced, because its store could not be opened again: {error}")
        log.error("broker is fenced and refuses all requests", exc_info=error, extra={"broker": name})

    # -- background tasks ---------------------------------------------------------------------------------------

    def start_tasks(self, nursery: trio.Nursery) -> None:
        """Start the background tasks of the role. A defect in one is logged; neither task nor broker ends."""
        broker, config, store = self.broker, self.broker.config, self.broker.config.store
        self._keep_running(nursery, "long polls", broker.long_polls.run)
        self._keep_running(nursery, "group changes", broker.clients.run)
        self._keep_running(nursery, "flush", broker.group_commit.run)
        self._keep_running(nursery, "answer deadlines", broker.answer_gate.watch_deadlines)
        if broker.replication.confirmation is not None:
            self._keep_running(nursery, "confirmed messages", broker.replication.confirmation.run)
        save_s = config.flush_consumer_offset_interval_ms / 1000
        self._repeat(nursery, "save offsets", save_s, self._save_offsets)
        for table in self._settings:
            nursery.start_soon(self._save_settings, table)
        self._repeat(nursery, "settle tables", SETTLE_INTERVAL_S, self._settle_tables)
        self._repeat(nursery, "expire clients", EXPIRY_INTERVAL_S, self._close_expired_clients)
        self._repeat(nursery, "sample rates", SAMPLE_INTERVAL_S, broker.rates.take_sample)
        if store.message_index_enable:
            self._keep_running(nursery, "index", IndexBuilder(broker.store, self._is_catching_up).run)
        self._repeat(nursery, "disk space", DISK_CHECK_INTERVAL_S, self._check_disk_space)
        self._repeat(nursery, "expire files", store.clean_resource_interval_ms / 1000, self._remove_expired)
        checkpoint_s = store.flush_interval_consume_queue_ms / 1000
        self._repeat(nursery, "checkpoint", checkpoint_s, self._write_checkpoint)
        if self._ha_listeners:
            serve = partial(broker.replication.server.run, self._ha_listeners)
            self._keep_running(nursery, "replication", serve)
        if config.role is Role.MASTER:
            self._shift = MasterShift()
            if not self._fence:  # A fenced broker must not store messages of its own either.
                nursery.start_soon(self._work_as_master, self._shift)
        else:
            self._repeat(nursery, "watch replication", DISK_CHECK_INTERVAL_S, self._note_replication)
            assert broker.replication.slave is not None
            follower = broker.replication.slave.follower
            self._keep_running(nursery, "copy of the log", follower.run)
            self._keep_running(nursery, "copy of the tables", broker.replication.slave.table_sync.run)
            self._keep_running(nursery, "cuts of the log", partial(self._cut_when_diverged, follower))

    async def _work_as_master(self, shift: "MasterShift") -> None:
        """Run the tasks of a master, but not between `rest` and `resume`."""
        while True:
            try:
                async with trio.open_nursery() as nursery:
                    self._start_tasks_of_master(nursery)
                    await shift.ends.wait()
                    nursery.cancel_scope.cancel()
            finally:
                # Also when a change of the parts ends all tasks: `rest` waits for it.
                shift.has_ended.set()
            await shift.begins_again.wait()
            self._shift = shift = MasterShift()

    def _note_replication(self) -> None:
        """Show in `/readyz` that a slave cannot copy its master until an operator decides."""
        broker, settings = self.broker, self.broker.config.replication
        status = replication_status(broker.replication, broker.store, settings, broker.clock.now_ms())
        trouble = ReplicationTrouble(status.trouble) if status.trouble else None
        self.tasks.record_outcome(COPYING, trouble)

    def _start_tasks_of_master(self, nursery: trio.Nursery) -> None:
        """Start the tasks that store messages or move offsets: the log and the tables of a slave are its master's."""
        broker = self.broker
        self._keep_running(nursery, "delayed messages", self._deliver_delayed)
        self._keep_running(nursery, "pop deadlines", partial(broker.pop.run, self.tasks))
        self._keep_running(nursery, "transaction checks", self._check_transactions)
        self._keep_running(nursery, "transaction ends", self._write_transaction_ends)
        if broker.staged_batches is not None:
            self._keep_running(nursery, "staged batches", broker.staged_batches.run)
        self._repeat(nursery, "broadcast offsets", SCAN_INTERVAL_S, self._commit_broadcast_offsets)
        self._start_timers(nursery)

    def _is_catching_up(self) -> bool:
        slave = self.broker.replication.slave
        return slave is not None and slave.follower.is_catching_up

    async def _cut_when_diverged(self, follower: Follower) -> None:
        """Have the store cut where its log differs from the master's; the parts are built again then."""
        while True:
            await follower.diverged.wait()
            end, store, builder = follower.cut_at, self.broker.store, self._builder
            if end is not None and builder is not None:
                cut = LogCut(self.broker.clock.now_ms(), end, store.max_physical_offset - end)
                self.order_rebuild(
                    lambda config: config,
                    partial(_cut, store, self.broker.replication.epochs, end),
                    partial(self._note_cut, cut),
                    # In the last moment, and saved before the cut: the tables must not move forward again.
                    prepare=partial(self.broker.pop.state.reviver.undo_pops_from, end),
                )
                await trio.sleep_forever()
            await trio.sleep(SETTLE_INTERVAL_S)

    def _note_cut(self, cut: LogCut, failure: Exception | None) -> None:
        """Remember, and log, what was cut off: an operator may want to know which messages are lost."""
        if failure is not None:
            return  # logged, and shown as a failed change
        self.broker.replication.last_cut = cut
        extra = {
            "broker": self.broker.config.broker_name,
            "physical_offset": cut.physical_offset,
            "bytes": cut.size_bytes,
        }
        log.warning("log was cut to what the master has", extra=extra)

    def _keep_running(self, nursery: trio.Nursery, name: str, work: Callable[[], Awaitable[None]]) -> None:
        nursery.start_soon(self.tasks.keep_running, name, work)

    def _repeat(
        self,
        nursery: trio.Nursery,
        name: str,
        interval_s: float,
        work: Callable[[], Awaitable[None] | None],
    ) -> None:
        nursery.start_soon(self.tasks.repeat, name, interval_s, work)

    def _start_timers(self, nursery: trio.Nursery) -> None:
        broker = self.broker
        timers = broker.timer_delivery
        if timers is None:
            return
        task = TimerTask(timers, broker.clock, broker.long_polls, self.tasks)
        self._keep_running(nursery, "timer task", task.run)
        self._repeat(nursery, "sample timers", SAMPLE_INTERVAL_S, timers.update_rates)
        save_s = broker.config.store.timer_flush_interval_ms / 1000
        self._repeat(nursery, "save timers", save_s, lambda: save_timers(timers, self.run_blocking))

    async def _deliver_delayed(self) -> None:
        """Deliver delayed messages when they are due. Sleep until then, or until an earlier one arrives."""
        delay, clock = self.broker.delay_service, self.broker.clock
        while True:
            delay.earlier.clear()
            due = delay.next_due_ms()
            left_s = inf if due is None else min(MAX_SLEEP_S, max(0.0, (due - clock.now_ms()) / 1000))
            await delay.earlier.wait(left_s)
            delivered = await self.tasks.attempt(
                "deliver delayed messages", lambda: self._deliver_due(clock.now_ms())
            )
            await trio.sleep(0 if delivered else DELIVERY_PAUSE_S)

    def _deliver_due(self, now_ms: int) -> None:
        try:
            self.broker.delay_service.deliver_due(now_ms)
        finally:
            self.broker.long_polls.answer_marked()

    async def _check_transactions(self) -> None:
        while True:
            await trio.sleep(self.broker.config.transaction_check_interval_ms / 1000)
            await self.tasks.attempt("check transactions", self.check_transactions_once)

    async def check_transactions_once(self) -> None:
        """Ask producers about all transactions that are open for long enough; at most one such round at a time."""
        async with self._checking_transactions:
            await run_in_slices(self.broker.transaction_checks.run_round())
        self.broker.long_polls.answer_marked()
        await (
            self._save_offsets()
        )  # After a crash before the next save, the same producers would be asked again.

    async def _write_transaction_ends(self) -> None:
        while True:
            await trio.sleep(self.broker.config.transaction_op_batch_interval_ms / 1000)
            await self.tasks.attempt("write ends of transactions", self.broker.transactions.op_messages.flush)

    async def _close_expired_clients(self) -> None:
        await run_in_slices(self.broker.clients.close_expired())
        await run_in_slices(self.broker.queue_locks.remove_expired())

    async def _commit_broadcast_offsets(self) -> None:
        await run_in_slices(self.broker.broadcasts.commit_and_expire())

    def _commit_pops(self) -> Iterator[None]:
        """Take how far pops are, and which offsets they have moved, into the tables that are saved, in slices.

        In this order: an offset of the revive group that counts a pop is saved with the key of the pop, or after it.
        """
        reviver, takeover = self.broker.pop.state.reviver, self.broker.replication.takeover
        reviver.commit_offsets()
        for added_keys, removed_keys in reviver.take_changed_keys():
            takeover.change_popped_keys(added_keys, removed_keys)
            yield

    async def _save_offsets(self) -> None:
        # One at a time: the revive group's offset of one must not be written before the keys of another.
        async with self.broker.replication.takeover.saving_progress:
            broker, takeover = self.broker, self.broker.replication.takeover
            # First, because the others are not saved after a failed flush of the store.
            await broker.consumer_filters.save_changes()
            if broker.config.role is Role.MASTER:
                await run_in_slices(self._commit_pops())
            await takeover.save_with_offsets(broker.offsets)
            await broker.delay_service.save_changes()
            # After the offsets as well: their file may be without offsets now that pops of before had moved.
            await takeover.save_changes()
            await broker.pop.state.ordered_pops.save_changes()

    @property
    def _settings(self) -> tuple[SettingsTable, ...]:
        broker = self.broker
        return broker.groups, broker.topics, broker.pop.request_modes

    async def _save_settings(self, table: SettingsTable) -> None:
        """Save a table as soon as it changes: an official broker that takes over knows only what is in the file."""
        while True:
            await table.wait_until_dirty()
            await self.tasks.attempt("save settings", table.save_changes)
            await trio.sleep(SAVE_INTERVAL_S)

    async def _settle_tables(self) -> None:
        """Flush tables that were written without waiting for the disk; waiting would have delayed all answers."""
        for table in self._settings:
            await table.settle()

    async def _remove_expired(self) -> None:
        """Delete files of the log, of queues, timers, batches and cuts that are older than their retention time."""
        max_files = self.broker.config.store.delete_files_max
        await expire_messages(self.broker.store, self.run_blocking, max_files)
        self._remove_old_copy()
        if self.broker.timer_delivery is not None:
            self.broker.timer_delivery.remove_expired_files()
        if self.broker.staged_batches is not None:
            await self.broker.staged_batches.remove_expired(self.broker.config.store.staged_reserved_hours)

    def _remove_old_copy(self) -> None:
        """Delete one copy of messages that were cut off long ago."""
        hours, store = self.broker.config.replication.cut_copies_reserved_hours, self.broker.store
        if hours:
            delete_old_copy(store.config, store.files, self.broker.clock.now_ms() - hours * HOUR_MS)

    def _check_disk_space(self) -> None:
        """Raise StoreFull while the disk has no room for messages, so that this task fails, which `/readyz` shows."""
        trouble = self.broker.store.trouble
        if trouble is not None and self.broker.store.flushes.failure is None:
            raise StoreFull(f"messages are refused: {trouble}")

    async def _write_checkpoint(self) -> None:
        store = self.broker.store
        # Before it is written: what is confirmed meanwhile, or after the last append, the next one has to cover.
        extent = _log_extent(store)
        if extent != self._checkpoint_extent:
            await self.run_blocking(store.write_checkpoint)
            self._checkpoint_extent = extent

    async def stop(self) -> None:
        """Send clients away (`go_away.py`), and end `run` after the outstanding requests are answered.

        That includes requests that wait for a message, for the disk or for replicas.
        """
        self.server.stop_accepting()
        self._go_away.begin()
        self.guarded_handlers.apply_guards()
        with trio.move_on_after(self._drain_s):
            if self._is_open:
                await self._answer_waiting()
            if self.server.connections:
                await self._go_away.wait_quiet()
        if self._is_open and self._stores_at_end:
            # Otherwise written by `close`, when no slave is connected any more.
            self.broker.transactions.op_messages.flush()
            await self.broker.replication.server.settle()
        await self.server.drain()

    def close(self) -> None:
        """Write the tables and close the store. A table that cannot be written is logged, and the others still are.

        Does nothing for a store that is closed. Raises StoreFull or OSError if progress, such as the offsets of
        consumers, could not be written.
        """
        if not self._is_open:
            return
        self._is_open = False
        broker = self.broker
        with ExitStack() as stack:
            stack.callback(self._close_store)
            stack.callback(broker.group_commit.close)
            if broker.timer_delivery is not None:
                stack.callback(broker.timer_delivery.close)
            stack.callback(self._persist_tables)
            if broker.config.role is Role.MASTER:
                stack.callback(lambda: list(self._commit_pops()))
            if self._stores_at_end:
                stack.callback(broker.transactions.op_messages.flush)

    def _close_store(self) -> None:
        """Close the store, as after a kill if tables are unsaved: the next start then reads the journal of offsets."""
        store = self.broker.store
        if self._has_unsaved_tables:
            with suppress(FlushFailed):
                store.flush()
        store.close(clean=not self._has_unsaved_tables)

    @property
    def _stores_at_end(self) -> bool:
        """True at a master, but not after `rest`: a slave that takes over must have the whole log."""
        return self.broker.config.role is Role.MASTER and not self._is_resting

    def _persist_tables(self) -> None:
        """Write all tables. Raises StoreFull or OSError as `close` does; the next call then tries again."""
        broker, takeover = self.broker, self.broker.replication.takeover
        self._has_unsaved_tables = True
        with ExitStack() as stack:
            # The last is written first: what pops have moved is written before the offsets, as `_save_offsets` does.
            for table in (*self._settings, broker.delay_service, takeover):
                stack.callback(_persist_unless_flush_failed, table)
            stack.callback(self._note_saved_offsets)
            stack.callback(_persist_unless_flush_failed, broker.consumer_filters)
            stack.callback(_persist_unless_flush_failed, takeover, broker.offsets)
            stack.callback(_persist_unless_flush_failed, broker.pop.state.ordered_pops)
        self._has_unsaved_tables = False
        broker.offsets.delete_journal()

    def _note_saved_offsets(self) -> None:
        if not self.broker.offsets.is_dirty:
            self.broker.replication.takeover.note_saved_offsets()


def _log_extent(store: MessageStore) -> tuple[int, int, int]:
    """Return the offsets that change when the store needs a checkpoint.

    The first one is that of the log's beginning: the ends of queues are noted once messages have expired, because the
    log does not tell any more how far the queues had come.
    """
    return store.min_physical_offset, store.max_physical_offset, store.readable_until


def _cut(store: MessageStore, epochs: EpochTable | None, end: int) -> None:
    """Cut a closed store, and forget the epochs of what is cut."""
    cut_store(store.config, store.files, end)
    if epochs is not None:
        epochs.cut(end)


def _persist_unless_flush_failed(*tables: ChangingTable) -> None:
    """Write tables in their order, up to the first that cannot be written.

    After a failed flush of messages a table of progress keeps its last content. Raises StoreFull or OSError, after
    logging it: when several tables fail, the caller reports only one.
    """
    for number, table in enumerate(tables):
        try:
            table.persist()
        except FlushFailed:
            return
        except (StoreFull, OSError) as error:
            for unsaved in tables[number:]:
                if unsaved.is_dirty:
                    unsaved.file.report_failure(error)
            raise
