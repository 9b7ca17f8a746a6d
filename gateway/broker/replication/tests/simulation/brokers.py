"""A broker of the simulation: the whole `BrokerService` on files that can be crashed, with a network in memory."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import trio

from codec.message import iter_messages
from gateway.broker.assembly.build import BrokerBuilder
from gateway.broker.assembly.role_control import RoleLinks
from gateway.broker.assembly.saved_role import FILE_NAME, SavedRole, with_role
from gateway.broker.assembly.service import BrokerService
from gateway.broker.broker import Broker
from gateway.broker.replication.follower import Follower
from gateway.broker.replication.parts import PeerLinks
from gateway.broker.replication.tests.simulation.history import History
from gateway.broker.replication.tests.simulation.network import Network, SimTransport
from gateway.config.process import BrokerConfig
from gateway.config.replication import SLAVE, Role
from gateway.tests.configs import broker_config
from remoting.connection import Connection
from remoting.declare import Request
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.frame_connection import FrameConnection
from remoting.limits import ConnectionLimits
from remoting.local_connection import LocalConnection
from remoting.server import ServerLimits
from storage.crash_files import CrashFiles, ProcessKilled
from storage.store import MessageStore

HA_PORT: Final = 10912
PORT: Final = 10911
DIAL_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 60.0
LIMITS: Final = ConnectionLimits()
SETTINGS: Final[dict[str, Any]] = {
    "broker_name": "broker",
    "broker_cluster_name": "cluster",
    "store_path_root_dir": "/s",
    "mapped_file_size_commit_log_bytes": 16_384,
    "mapped_file_size_consume_queue_bytes": 64 * 20,
    "mapped_file_size_timer_log_bytes": 4096,
    "max_hash_slots": 16,
    "max_index_entries": 256,
    "max_message_size_bytes": 6000,
    "offset_journal_bytes": 1 << 14,
    "message_delay_level": "1s 3s 8s",
    "timer_roll_window_slots": 2000,
    "timer_max_delay_s": 1900,
    "transaction_check_interval_ms": 3000,
    "transaction_timeout_ms": 2000,
    "transaction_check_max": 1000,
    "transaction_op_batch_interval_ms": 500,
    "revive_queue_num": 2,
    "clean_resource_interval_ms": 1000,
    "delete_files_max": 1,
    "flush_interval_consume_queue_ms": 3000,
    "timer_flush_interval_ms": 2000,
    "slave_read_enable": True,
    "auto_create_topic_enable": False,
}
Answer = Callable[[Any], None]
"""Called with the reply to a request, or with the exception that it ended with."""


class SimClock:
    """A wall clock on virtual time that can be set."""

    def __init__(self) -> None:
        self.offset_ms = 0

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(trio.current_time() * 1000) + self.offset_ms

    def monotonic(self) -> float:
        return trio.current_time()


class SimFiles(CrashFiles):
    """Files on a disk of which a test says how full it is. ``on_killed`` hears of a death in an operation, at once."""

    used_ratio = 0.0
    on_killed: Callable[[], None] | None = None

    def disk_used_ratio(self, path: str) -> float:
        return self.used_ratio

    def _begin_operation(self) -> None:
        try:
            super()._begin_operation()
        except ProcessKilled:
            if self.on_killed is not None:
                self.on_killed()
            raise


class SimService(BrokerService):
    """A service whose HA server gets its connections from the simulated network, and that can be killed."""

    def __init__(self, host: "SimBroker", *arguments: Any, **keywords: Any) -> None:
        self._host = host
        super().__init__(*arguments, **keywords)

    def start_tasks(self, nursery: trio.Nursery) -> None:
        super().start_tasks(nursery)
        self._keep_running(nursery, "replication", partial(self.broker.replication.server.run, []))

    def _adopt(self, broker: Broker) -> None:
        self._host.note_store(broker)
        super()._adopt(broker)

    def close(self) -> None:
        """Close the store, unless the process was killed."""
        if not self._host.is_killed:
            super().close()

    @property
    def state(self) -> str:
        """The state of the role, in words."""
        return self._roles.status().state

    @property
    def is_serving(self) -> bool:
        """False while the role changes, and for a fenced broker."""
        return self._roles.status().is_serving


class SimBroker:
    """One broker, through all its processes. ``role`` is the one of the present parts, or of the last."""

    def __init__(
        self,
        name: str,
        number: int,
        network: Network,
        randomness: random.Random,
        settings: dict[str, Any],
        *,
        history: History,
        note_role: Callable[["SimBroker"], None],
        choose_id: Callable[["SimBroker"], int],
        trace: Callable[[str], None],
    ) -> None:
        self.name = name
        self.number = self.broker_id = number
        self.role = Role.SLAVE
        self._configured: BrokerConfig | None = None
        self.clock = SimClock()
        self._insert_disk(SimFiles())
        self.disk_delay_s = 0.0
        self._is_disk_waited_for = False
        self.is_up = False
        # A slave whose log was compared with that of its master's present parts, and one that has had everything that
        # was acknowledged since its last loss. Only a loss of power, or a new role, makes a slave incomplete.
        self.is_verified = False
        self.is_complete = True
        self.parts_since_s = 0.0
        self.breaks_promises = False  # the next store that is opened may have less than was acknowledged
        self.expired_end = 0  # the end of what retention has deleted here
        self.sync_times: list[float] = []  # of the last two copies of all tables
        self.seen_offsets: dict[tuple[str, int], int] = {}
        self.seen_names: set[str] = set()
        self.service: SimService | None = None
        self.cuts = 0
        self.master: SimBroker | None = None
        self._network = network
        self._randomness = randomness
        self._settings = settings
        self._history = history
        self._note_role = note_role
        self._choose_id = choose_id
        self._trace = trace
        self._nursery: trio.Nursery | None = None
        self._power_lost: bool | None = None
        self._ended = trio.Event()
        self._threads: set[trio.CancelScope] = set()
        self._connections: dict[str, LocalConnection] = {}

    @property
    def store(self) -> MessageStore | None:
        """The open store; None while there is none."""
        service = self.service
        return service.broker.store if service is not None and service.is_open else None

    @property
    def open_store(self) -> MessageStore:
        assert self.store is not None
        return self.store

    @property
    def broker(self) -> Broker:
        assert self.service is not None
        return self.service.broker

    @property
    def is_serving(self) -> bool:
        return self.is_up and self.service is not None and self.service.is_serving

    @property
    def is_fenced(self) -> bool:
        """True while the process waits for the operator to say which role it has."""
        return self.is_up and self.service is not None and self.service.state == "fenced"

    @property
    def log_end(self) -> int:
        return -1 if self.store is None else self.store.max_physical_offset

    @property
    def follower(self) -> Follower | None:
        slave = None if self.service is None else self.broker.replication.slave
        return None if slave is None else slave.follower

    @property
    def has_held_answers(self) -> bool:
        """True while answers wait for the disk or the slave."""
        return self.store is not None and self.broker.answer_gate.held_count > 0

    @property
    def is_flushing(self) -> bool:
        """True while the disk has not yet begun to write what it lacks."""
        store = self.store
        return (
            store is not None
            and self._is_disk_waited_for
            and store.durable_offset < store.max_physical_offset
        )

    @property
    def is_killed(self) -> bool:
        """True once the process runs no more, although its tasks may still be unwound."""
        return self._power_lost is not None

    # -- processes --

    async def run_process(self, role: Role | None) -> None:
        """Run one process until it is stopped, killed or loses power; None is the role that it had last."""
        self._power_lost = None
        self._ended = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self.service = self._open(role)
                nursery.start_soon(self._watch_tables)
                nursery.start_soon(self._write_back)
                await self._prepare(nursery)
                self._listen(nursery)
                self.is_up = True
                await self.service.run([])
                nursery.cancel_scope.cancel()
        except* ProcessKilled:
            self._power_lost = bool(self._power_lost)
        finally:
            self.is_up = self.is_verified = False
            self._network.stop_listening(self.name)
            self._connections.clear()
        if self.is_killed:
            self._crash()
        else:
            self._network.end_connections(self.name, silently=False)
        self.service = None
        self._ended.set()

    async def _prepare(self, nursery: trio.Nursery) -> None:
        """Do what is to be done before the first connection comes, without waiting: an operator gives the role."""

    def _open(self, role: Role | None) -> SimService:
        if role is not None or self._configured is None:
            self._configured = self._configure(role or Role.SLAVE)
        configured = self._configured
        builder = BrokerBuilder(
            False, self.clock, self._run_blocking, lambda: PORT, self.files,
            links=PeerLinks(self._open_transport, self._dial),
        )  # fmt: skip
        config_path = builder.store_config(configured).config_path
        if role is not None:
            # The operator edits the configuration file, which then decides.
            self.files.small.pop(f"{config_path}/{FILE_NAME}", None)
        saved_role = SavedRole(self.files, config_path, configured)
        config: BrokerConfig = saved_role.apply(configured)
        broker = builder.build(config)
        self.note_store(broker)
        service = SimService(
            self, broker, LIMITS, ServerLimits(), self._run_blocking, builder=builder,
            role_links=RoleLinks(self._dial, saved_role=saved_role),
        )  # fmt: skip
        service.add_user(self)
        self.follow(broker, service)
        return service

    def _configure(self, role: Role) -> BrokerConfig:
        """Return what is in the configuration file. A slave gets an id that no other broker of the name has."""
        config = broker_config(
            **SETTINGS,
            broker_ip=f"10.0.0.{self.number}",
            listen_port=PORT,
            **self._settings,
            namesrv_addr="",
        )
        return with_role(config, SLAVE, self._choose_id(self)) if role is Role.SLAVE else config

    def _listen(self, nursery: trio.Nursery) -> None:
        def serve_slave(transport: SimTransport) -> None:
            nursery.start_soon(self.broker.replication.server.serve, transport)

        assert self.service is not None
        server = self.service.server
        self._network.listen((self.name, HA_PORT), serve_slave)
        self._network.listen(
            (self.name, PORT), lambda transport: nursery.start_soon(server.serve_transport, transport)
        )

    def note_store(self, broker: Broker) -> None:
        """Note that a store was opened, before any request is served from it."""
        end = broker.store.max_physical_offset
        if self.breaks_promises:
            self.breaks_promises = False
            self._history.break_promises_after(self._end_of_common_log(broker))
        self._trace(f"{self.name} opens as {broker.config.role.value}, log ends at {end}")

    def _end_of_common_log(self, broker: Broker) -> int:
        """Return where the log ends that a new master has in common with all masters before it."""
        return broker.store.max_physical_offset

    def follow(self, broker: Broker, service: SimService | None = None) -> None:
        """Take over new parts of the service."""
        if service is not None:
            self.service = service
        elif broker.config.role is Role.SLAVE and self.role is Role.SLAVE:
            self.cuts += 1
            self.seen_offsets.clear()  # they may be of messages that were cut
        role = broker.config.role
        if role is Role.MASTER and self.role is Role.SLAVE:
            self._limit_progress(broker)
        self.is_complete = self.is_complete and role is Role.SLAVE and self.role is Role.SLAVE
        self.role, self.broker_id = role, broker.config.broker_id
        self.parts_since_s = trio.current_time()
        self.is_verified = False
        self._note_role(self)

    def _limit_progress(self, broker: Broker) -> None:
        """Expect no progress beyond the queues: consumers of the last master may have read what is lost now."""
        self._history.limit_commits(broker.store.max_offset)
        for queue, offset in self.seen_offsets.items():
            self.seen_offsets[queue] = min(offset, broker.store.max_offset(*queue))

    async def leave(self) -> None:
        """Nobody is sent here: clients ask for the role."""

    def follow_master(self, master: "SimBroker") -> None:
        """Learn from the namesrv who the master is."""
        if self.service is not None and master is not self and self.role is Role.SLAVE:
            self.master = master
            addresses = f"{master.name}:{HA_PORT}", f"{master.name}:{PORT}"
            self.broker.replication.note_master(*addresses)

    def _crash(self) -> None:
        lose_power = bool(self._power_lost)
        self.is_complete = self.is_complete and not lose_power
        # A slave saves what it copies within seconds, a master what it answers at once.
        if lose_power or self.role is Role.SLAVE:
            self.forget_tables()
        self._network.end_connections(self.name, silently=lose_power and self._randomness.random() < 0.7)
        files = self.files.crash(self._randomness, lose_unflushed=lose_power)
        files.used_ratio = self.files.used_ratio
        self._insert_disk(files)

    def _insert_disk(self, files: SimFiles) -> None:
        files.on_killed = self._die
        self.files = files

    def forget_tables(self) -> None:
        """Expect nothing of the tables any more: a crash may have taken the last seconds of them."""
        self.sync_times.clear()
        self.seen_offsets.clear()
        self.seen_names.clear()

    def wipe(self) -> None:
        """Begin anew with an empty disk, as the operator does with a slave that cannot follow."""
        self._insert_disk(SimFiles())
        self.is_complete = False
        self.forget_tables()

    async def _watch_tables(self) -> None:
        """Note what a slave has copied: its log, and when it copied the tables."""
        while True:
            await trio.sleep(0.2)
            if self.service is None:
                continue  # the process ends in this moment
            slave, master = self.broker.replication.slave, self.master
            if slave is None or master is None or self.store is None:
                continue
            connected_s, synced_s = slave.follower.connected_since, slave.table_sync.synced_at
            if slave.follower.is_copying and connected_s is not None and connected_s > master.parts_since_s:
                if not self.is_verified:
                    self._trace(f"{self.name} copies")
                self.is_verified = True
                if self.log_end >= self._history.promised_end:
                    self.is_complete = True
            if synced_s is not None and synced_s not in self.sync_times:
                self.sync_times = [*self.sync_times[-1:], synced_s]

    async def _open_transport(self, host: str, port: int) -> SimTransport:
        return await self._network.connect(self.name, host, port)

    @asynccontextmanager
    async def _dial(self, host: str, port: int) -> AsyncIterator[Connection]:
        transport: SimTransport | None = None
        with trio.move_on_after(DIAL_TIMEOUT_S):
            transport = await self._network.connect(self.name, host, port)
        if transport is None:
            raise TimeoutError(f"no connection to {host}:{port}")
        async with trio.open_nursery() as nursery:
            connection = FrameConnection(transport, {}, nursery, LIMITS)
            nursery.start_soon(connection.run)
            try:
                yield connection
            finally:
                connection.close("done")
                nursery.cancel_scope.cancel()

    async def _run_blocking(self, work: Callable[[], Any]) -> Any:
        """Run what a thread would run; a slow disk takes its time before and after.

        As a thread, it ends with its process only, and not with the task that waits for it.
        """
        delay_s = self.disk_delay_s or self._randomness.random() * self._randomness.choice([0.002, 0.04])
        part = self._randomness.random()
        with trio.CancelScope(shield=True) as scope:
            self._threads.add(scope)
            self._is_disk_waited_for = True
            try:
                await trio.sleep(delay_s * part)
            finally:
                self._is_disk_waited_for = False
                self._threads.discard(scope)
            if self.is_killed:
                raise ProcessKilled
            outcome = work()
        if scope.cancelled_caught:
            # By `kill`: a task that is shielded from the end of its nursery ends with the process all the same.
            raise ProcessKilled
        # Not cancelled by `kill` any more, and in vain if the process is.
        await trio.sleep(delay_s * (1 - part))
        return outcome

    async def _write_back(self) -> None:
        """Let the kernel write some sectors now and then."""
        while True:
            await trio.sleep(self._randomness.uniform(1, 8))
            self.files.write_back(self._randomness)

    async def stop(self) -> None:
        """End the process cleanly."""
        if self.service is not None and self.is_up:
            await self.service.stop()
        await self._ended.wait()

    def kill(self, *, lose_power: bool) -> None:
        """End the process at once; with ``lose_power`` what was not flushed may be lost."""
        self._trace(f"{self.name} {'loses power' if lose_power else 'is killed'}")
        self._end_at_once(lose_power=lose_power)

    def _die(self) -> None:
        """End the process in the middle of a file operation.

        Its exception alone would end the process only when the tasks beside it are unwound: a shielded one, which
        waits for a slow disk, takes seconds, in which the other tasks would serve, and be judged.
        """
        if not self.is_killed:
            self._trace(f"{self.name} dies in a file operation")
            self._end_at_once(lose_power=False)

    def _end_at_once(self, *, lose_power: bool) -> None:
        self._power_lost = lose_power
        self.is_up = False
        for thread in self._threads:
            thread.cancel()
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()

    def spare(self) -> None:
        """Let the process live on that was to die in its next file operations.

        It dies here if its next operation was to be the last: a thread that waits for a slow disk may be about to begin
        that.
        """
        if self.files.operations_left == 0 and self.is_up:
            self.kill(lose_power=False)
        self.files.operations_left = None

    async def wait_ended(self) -> None:
        await self._ended.wait()

    # -- requests --

    def start_request(
        self, client: str, request: Request[Any], answer: Answer, on_request: Answer = lambda request: None
    ) -> bool:
        """Pass a request to the process; return False if there is none."""
        if not self.is_up or self._nursery is None or self.service is None:
            return False
        connection = self._connections.get(client)
        if connection is None:
            connection = self._connections[client] = LocalConnection(
                self.service.handlers, (client, 1), (self.name, PORT), self._nursery, LIMITS,
                on_batch=self.service.end_batch, on_request=on_request,
            )  # fmt: skip
            self.service.handle_open(connection)

        async def run() -> None:
            # Here, so that a killed process takes the request with it.
            try:
                outcome = await connection.call(request, timeout_s=REQUEST_TIMEOUT_S)
            except (RequestError, RemotingTimeout, RemotingClosed) as error:
                outcome = error
            if not self.is_killed:
                answer(outcome)

        self._nursery.start_soon(run)
        return True

    def read(self, topic: str, queue_id: int, offset: int) -> list[tuple[int, bytes]]:
        """Return messages of a queue from an offset on, with their offsets.

        None at a slave that has not yet compared its log with the master's: it may have to be cut.
        """
        if self.store is None or (self.role is Role.SLAVE and not self.is_verified):
            return []
        return read_queue(self.store, topic, queue_id, offset)

    def committed(self, group: str, topic: str, queue_id: int) -> int:
        """Return a consumer offset, -1 without one."""
        return self.broker.offsets.query_offset(group, topic, queue_id)


def read_queue(store: MessageStore, topic: str, queue_id: int, offset: int) -> list[tuple[int, bytes]]:
    """Return messages of a queue from an offset on, with their offsets."""
    chunks = store.read(topic, queue_id, max(offset, store.min_offset(topic, queue_id)), 32).chunks
    return [(message.queue_offset, bytes(message.body)) for message in iter_messages(b"".join(chunks))]
