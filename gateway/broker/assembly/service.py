"""Running one broker: its listeners, its background tasks, its shutdown."""

import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import partial
from math import inf

import trio

from gateway.broker.broker import Broker
from gateway.broker.consumers.broadcast_offsets import SCAN_INTERVAL_S
from gateway.broker.delayed.timer_task import TimerTask, save_timers
from gateway.broker.limits.go_away import GoAway
from gateway.broker.messages.index_builder import IndexBuilder
from gateway.broker.processors import all_handlers
from gateway.broker.processors.turns import run_in_slices
from gateway.broker.statistics.traffic_rates import SAMPLE_INTERVAL_S
from gateway.broker.topics.topic_table import SAVE_INTERVAL_S
from gateway.runtime.config_file import ChangingTable, SettingsTable
from gateway.runtime.run_blocking import RunBlocking
from gateway.runtime.supervise import TaskSupervisor
from remoting.connection import Connection, Handler
from remoting.frame_connection import FrameConnection
from remoting.handler_table import NO_GUARD, Guard, GuardedHandlers
from remoting.limits import ConnectionLimits
from remoting.reactor import Reactor
from remoting.server import AcceptTransport, ConnectionType, RemotingServer, ServerLimits
from storage.errors import FlushFailed, StoreFull

log = logging.getLogger(__name__)

EXPIRY_INTERVAL_S = 10.0
SETTLE_INTERVAL_S = 1.0
DISK_CHECK_INTERVAL_S = 1.0
DRAIN_POLL_S = 0.01
DELIVERY_PAUSE_S = 1.0
# Longest sleep, so that a change of the wall clock, or a suspended machine, is noticed soon.
MAX_SLEEP_S = 5.0


class BrokerService:
    """Runs one broker."""

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
    ) -> None:
        self.broker = broker
        self._run_blocking = run_blocking
        self._drain_s = server_limits.max_drain_s
        self._go_away = GoAway(broker.clock)
        flow = broker.flow_control
        self.guarded_handlers = GuardedHandlers(
            all_handlers().bind(broker, guard.observed),
            # A request passes these in this order. Access control is the first, because a request that it refuses must
            # not use up a quota; quotas are the last, because requests that another guard refuses do not count.
            (
                guard.protect,
                self._go_away.guard,
                flow.limit_waiting_time,
                flow.limit_held_sends,
                flow.limit_pull_rate,
                flow.limit_send_rate,
            ),
        )
        flow.add_listener(self.guarded_handlers.apply_guards)
        self.handlers: dict[int, Handler] = self.guarded_handlers.by_code
        self.tasks = TaskSupervisor(broker.config.broker_name)
        self.server = RemotingServer(
            self.handlers,
            limits,
            server_limits,
            on_batch=broker.long_polls.answer_marked,
            on_open=self.handle_open,
            reactor=reactor,
            accept_transport=accept_transport,
            connection_type=connection_type,
        )
        self._checkpoint_end = broker.store.max_physical_offset
        self._checking_transactions = trio.Lock()

    def handle_open(self, connection: Connection) -> None:
        """Have the broker forget a new connection when it closes."""
        connection.on_close(self._handle_close)

    def _handle_close(self, connection: Connection) -> None:
        self.broker.clients.drop_connection(connection)
        self.broker.long_polls.drop_connection(connection)

    async def run(self, listeners: list[socket.socket]) -> None:
        """Serve until `stop` or cancelled; then write the tables and close the store."""
        try:
            async with trio.open_nursery() as nursery:
                self.start_tasks(nursery)
                await self.server.serve(listeners)
                nursery.cancel_scope.cancel()
        finally:
            self.close()

    def start_tasks(self, nursery: trio.Nursery) -> None:
        """Start the background tasks. A defect in one is logged and shown; it ends neither the task nor the broker."""
        broker, config, store = self.broker, self.broker.config, self.broker.config.store
        self._keep_running(nursery, "long polls", broker.long_polls.run)
        self._keep_running(nursery, "group changes", broker.clients.run)
        self._keep_running(nursery, "flush", broker.group_commit.run)
        self._keep_running(nursery, "answer deadlines", broker.answer_gate.watch_deadlines)
        self._keep_running(nursery, "delayed messages", self._deliver_delayed)
        self._keep_running(nursery, "pop deadlines", partial(broker.pop.run, self.tasks))
        self._keep_running(nursery, "transaction checks", self._check_transactions)
        self._keep_running(nursery, "transaction ends", self._write_transaction_ends)
        if broker.staged_batches is not None:
            self._keep_running(nursery, "staged batches", broker.staged_batches.run)
        save_s = config.flush_consumer_offset_interval_ms / 1000
        self._repeat(nursery, "save offsets", save_s, self._save_offsets)
        for table in self._settings:
            nursery.start_soon(self._save_settings, table)
        self._repeat(nursery, "settle tables", SETTLE_INTERVAL_S, self._settle_tables)
        self._repeat(nursery, "expire clients", EXPIRY_INTERVAL_S, self._close_expired_clients)
        self._repeat(nursery, "sample rates", SAMPLE_INTERVAL_S, broker.rates.take_sample)
        self._repeat(nursery, "broadcast offsets", SCAN_INTERVAL_S, self._commit_broadcast_offsets)
        if store.message_index_enable:
            self._keep_running(nursery, "index", IndexBuilder(broker.store).run)
        self._repeat(nursery, "disk space", DISK_CHECK_INTERVAL_S, self._check_disk_space)
        self._repeat(nursery, "expire files", store.clean_resource_interval_ms / 1000, self._remove_expired)
        checkpoint_s = store.flush_interval_consume_queue_ms / 1000
        self._repeat(nursery, "checkpoint", checkpoint_s, self._write_checkpoint)
        self._start_timers(nursery)

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
        self._repeat(nursery, "save timers", save_s, lambda: save_timers(timers, self._run_blocking))

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

    async def _save_offsets(self) -> None:
        # First, because the others are not saved after a failed flush of the store.
        await self.broker.consumer_filters.save_changes()
        self.broker.pop.state.reviver.commit_offsets()
        await self.broker.offsets.save_changes()
        await self.broker.delay_service.save_changes()
        await self.broker.pop.state.ordered_pops.save_changes()

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
        """Delete expired files one at a time: freeing a gigabyte takes the system about 0.1 s."""
        for _ in range(self.broker.config.store.delete_files_max):
            if not self.broker.store.delete_expired_log_files(max_files=1):
                break
            await trio.lowlevel.checkpoint()
        await run_in_slices(self.broker.store.hide_expired_entries())
        if self.broker.timer_delivery is not None:
            self.broker.timer_delivery.remove_expired_files()
        if self.broker.staged_batches is not None:
            await self.broker.staged_batches.remove_expired(self.broker.config.store.staged_reserved_hours)

    def _check_disk_space(self) -> None:
        """Raise StoreFull while the disk has no room for messages, so that this task fails, which `/readyz` shows."""
        trouble = self.broker.store.trouble
        if trouble is not None and self.broker.store.flushes.failure is None:
            raise StoreFull(f"messages are refused: {trouble}")

    async def _write_checkpoint(self) -> None:
        store = self.broker.store
        end = store.max_physical_offset
        if end != self._checkpoint_end:
            await self._run_blocking(store.write_checkpoint)
            self._checkpoint_end = end

    async def stop(self) -> None:
        """Send clients away (`go_away.py`), and end `run` after the outstanding requests are answered.

        That includes requests that wait for a message, for the disk or for replicas.
        """
        broker = self.broker
        self.server.stop_accepting()
        self._go_away.begin()
        self.guarded_handlers.apply_guards()
        with trio.move_on_after(self._drain_s):
            while broker.answer_gate.held_count or len(broker.long_polls):
                # Repeatedly, because a pull that waited for its quota then waits for a message.
                broker.long_polls.answer_all()
                await trio.sleep(DRAIN_POLL_S)
            if self.server.connections:
                await self._go_away.wait_quiet()
        await self.server.drain()

    def close(self) -> None:
        """Write the tables and close the store. A table that cannot be written is logged, and the others still are.

        Raises StoreFull or OSError if progress, such as the offsets of consumers, could not be written.
        """
        broker = self.broker
        with ExitStack() as stack:
            stack.callback(broker.store.close)
            stack.callback(broker.group_commit.close)
            if broker.timer_delivery is not None:
                stack.callback(broker.timer_delivery.close)
            for table in (
                *self._settings,
                broker.delay_service,
                broker.consumer_filters,
                broker.offsets,
                broker.pop.state.ordered_pops,
            ):
                stack.callback(_persist_unless_flush_failed, table)
            stack.callback(broker.pop.state.reviver.commit_offsets)
            stack.callback(broker.transactions.op_messages.flush)


def _persist_unless_flush_failed(table: ChangingTable) -> None:
    """Write a table. After a failed flush of messages a table of progress keeps its last content.

    Raises StoreFull or OSError, after logging it: when several tables fail, the caller reports only one.
    """
    try:
        with suppress(FlushFailed):
            table.persist()
    except (StoreFull, OSError) as error:
        table.file.report_failure(error)
        raise
