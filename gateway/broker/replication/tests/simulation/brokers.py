"""A broker of the simulation: the real parts that store, acknowledge and copy messages, without request processors."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Final, cast

import trio

from codec.command import decode_frame, encode_response
from codec.constants import ResponseCode
from codec.message import iter_messages
from gateway.broker.messages.answer_gate import LENGTH_BYTES, AnswerGate
from gateway.broker.messages.group_commit import GroupCommit
from gateway.broker.replication.follower import Follower
from gateway.broker.replication.ha_server import HaServer
from gateway.broker.replication.in_sync import InSyncRule
from gateway.broker.replication.master_lookup import Master, MasterLookup
from gateway.broker.replication.tests.simulation.history import History
from gateway.broker.replication.tests.simulation.network import Network, SimTransport
from gateway.config.replication import ReplicationSettings, Role
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.requests.replication import OpenReplication
from storage.append import NewMessage
from storage.config import StoreConfig
from storage.crash_files import CrashFiles, ProcessKilled
from storage.cut import cut_store
from storage.errors import StoreError
from storage.store import MessageStore

HA_PORT: Final = 10912
PORT: Final = 10911
CONFIG: Final = StoreConfig(
    root="/s",
    commit_log_file_bytes=16_384,
    consume_queue_file_entries=64,
    index_slots=16,
    index_entries=256,
    max_message_bytes=6000,
    reserve_commit_log_bytes=2000,
    reserve_queue_bytes=200,
    max_open_queue_files=8,
)
NOT_MASTER: Final = -1
Reply = Callable[[int, int], None]
"""Called with the code of an answer and the queue offset in it."""


class SimClock:
    """A wall clock on virtual time that can be set."""

    def __init__(self) -> None:
        self.offset_ms = 0

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(trio.current_time() * 1000) + self.offset_ms

    def monotonic(self) -> float:
        return trio.current_time()


class SimConnection:
    """The connection of one send: hands the answer to its client."""

    def __init__(self, reply: Reply) -> None:
        self.remote = ("client", 0)
        self.outstanding_requests = 0
        self._reply = reply

    def write(self, answer: bytes) -> None:
        command = decode_frame(answer, LENGTH_BYTES, len(answer))
        self._reply(command.code, int(command.ext.get("queueOffset", "-1")))


class SimBroker:
    """One broker, through all its processes. ``role`` is the one of the present process, or of the next."""

    def __init__(
        self,
        name: str,
        role: Role,
        network: Network,
        randomness: random.Random,
        settings: ReplicationSettings,
        *,
        sync_flush: bool,
        history: History,
        trace: Callable[[str], None],
    ) -> None:
        self.name = name
        self.role = role
        self.peer: SimBroker | None = None
        self.clock = SimClock()
        self.files = CrashFiles()
        self.disk_delay_s = 0.0
        self._is_disk_waited_for = False
        self.is_up = False
        self.is_fenced = False  # takes no messages any more, before a planned change of roles
        # A slave whose log was compared with that of its master's last process, and one that has had everything that
        # was acknowledged since its last loss. Only a loss of power, or a new role, makes a slave incomplete.
        self.is_verified = False
        self.is_complete = role is Role.SLAVE
        self.started_s = 0.0
        self.breaks_promises = False  # the next process may have less than was acknowledged
        self.store: MessageStore | None = None
        self.gate: AnswerGate | None = None
        self.follower: Follower | None = None
        self.cuts = 0
        self._network = network
        self._randomness = randomness
        self._settings = settings
        self._sync_flush = sync_flush
        self._history = history
        self._trace = trace
        self._nursery: trio.Nursery | None = None
        self._power_lost: bool | None = None
        self._ended = trio.Event()

    @property
    def has_held_answers(self) -> bool:
        """True while answers wait for the disk or the slave."""
        return self.gate is not None and self.gate.held_count > 0

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
    def open_store(self) -> MessageStore:
        assert self.store is not None
        return self.store

    # -- processes --

    async def run_process(self, role: Role) -> None:
        """Run one process of the broker until it is stopped, killed or loses power."""
        self.is_complete = self.is_complete and role is Role.SLAVE and self.role is Role.SLAVE
        self.role, self.is_fenced, self._power_lost = role, False, None
        self._ended = trio.Event()
        try:
            while await self._run_parts():
                pass
        finally:
            self.is_up = self.is_verified = False
            self._network.stop_listening(self.name)
            self._ended.set()

    async def _run_parts(self) -> bool:
        """Build the parts and run them; return True if they are to be built anew, after a cut of the log."""
        cut_at = None
        try:
            self.store = MessageStore.open(CONFIG, self.files, self.clock)
            if self.breaks_promises:
                self.breaks_promises = False
                self._history.break_promises_after(self.store.max_physical_offset)
            self._trace(
                f"{self.name} opens as {self.role.value}, log ends at {self.store.max_physical_offset}"
            )
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self.started_s = trio.current_time()
                self._start_parts(nursery)
                self.is_up = True
                if self.role is Role.MASTER and self.peer is not None:
                    self.peer.is_verified = False
                if self.follower is not None:
                    await self.follower.diverged.wait()
                    cut_at = self.follower.cut_at
                    nursery.cancel_scope.cancel()
        except* ProcessKilled:
            self._power_lost = False
        self.is_up = False
        if self._power_lost is not None:
            self._crash()
            return False
        self._network.end_connections(self.name, silently=False)
        try:
            self.store.close()
            if cut_at is not None:
                self._trace(f"{self.name} cuts its log at {cut_at}")
                self.cuts += 1
                cut_store(CONFIG, self.files, cut_at)
        except ProcessKilled:
            self._power_lost = False
            self._crash()
            return False
        return cut_at is not None

    def _crash(self) -> None:
        lose_power = bool(self._power_lost)
        self.is_complete = self.is_complete and not lose_power
        self._network.end_connections(self.name, silently=lose_power and self._randomness.random() < 0.7)
        self.files = self.files.crash(self._randomness, lose_unflushed=lose_power)
        self.store = None

    def _start_parts(self, nursery: trio.Nursery) -> None:
        store, settings = self.open_store, self._settings
        commit = GroupCommit(
            store, synchronous=self._sync_flush, interval_ms=500, run_blocking=self._run_blocking
        )
        rule = None
        if self.role is Role.MASTER and settings.is_sync_master:
            rule = InSyncRule(settings, lambda: store.max_physical_offset)
        self.gate = gate = AnswerGate(store, commit, flush_timeout_ms=5000, replication=rule)
        if rule is not None:
            rule.add_listener(gate.note_replicated)
        self.server = server = HaServer(
            self.name,
            store,
            settings,
            rule,
            has_waiting_answers=lambda: gate.held_count > 0,
            refusal=f"{self.name} is a slave itself" if self.role is Role.SLAVE else None,
        )
        nursery.start_soon(commit.run)
        nursery.start_soon(gate.watch_deadlines)
        nursery.start_soon(server.run, [])
        nursery.start_soon(self._keep_checkpoint)
        self._network.listen(
            (self.name, HA_PORT), lambda transport: nursery.start_soon(server.serve, transport)
        )
        self.follower = self._start_follower(nursery) if self.role is Role.SLAVE else None

    def _start_follower(self, nursery: trio.Nursery) -> Follower:
        assert self.peer is not None
        lookup = MasterLookup()
        lookup.set_master(Master((self.peer.name, HA_PORT), (self.peer.name, PORT)))
        follower = Follower(self.open_store, lookup, self._open_transport, self._dial, lambda queues: None)
        nursery.start_soon(follower.run)
        nursery.start_soon(self._note_verification, follower)
        return follower

    async def _note_verification(self, follower: Follower) -> None:
        assert self.peer is not None
        while True:
            connected_s = follower.connected_since
            if follower.is_copying and connected_s is not None and connected_s > self.peer.started_s:
                if not self.is_verified:
                    self._trace(f"{self.name} copies")
                self.is_verified = True
                if self.open_store.max_physical_offset >= self._history.promised_end:
                    self.is_complete = True
            await trio.sleep(0.05)

    async def _open_transport(self, host: str, port: int) -> SimTransport:
        return await self._network.connect(self.name, host, port)

    @asynccontextmanager
    async def _dial(self, host: str, port: int) -> AsyncIterator[Connection]:
        """Ask the master's other port; the answer is made here."""
        await self._network.reach(self.name, host)
        peer = self.peer
        if peer is None or not peer.is_up or peer.store is None:
            raise ConnectionRefusedError("nobody listens")
        store = peer.store

        async def ask(request: object, sign: object = None) -> Any:
            if isinstance(request, OpenReplication):
                raise RequestError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "nothing is locked here")
            await self._network.reach(host, self.name)
            table = {
                "commitLogMinOffset": str(store.min_physical_offset),
                "commitLogMaxOffset": str(store.max_physical_offset),
            }
            return SimpleNamespace(data=SimpleNamespace(table=table))

        yield cast(Connection, SimpleNamespace(ask=ask))

    async def _run_blocking(self, work: Callable[[], Any]) -> Any:
        """Run what a thread would run; a slow disk takes its time before and after."""
        delay_s = self.disk_delay_s or self._randomness.random() * self._randomness.choice([0.002, 0.04])
        part = self._randomness.random()
        self._is_disk_waited_for = True
        try:
            await trio.sleep(delay_s * part)
        finally:
            self._is_disk_waited_for = False
        outcome = work()
        await trio.sleep(delay_s * (1 - part))
        return outcome

    async def _keep_checkpoint(self) -> None:
        while True:
            await trio.sleep(self._randomness.uniform(1, 6))
            await self._run_blocking(self.open_store.write_checkpoint)
            self.open_store.build_index(50)
            if self._randomness.random() < 0.5:
                self.files.write_back(self._randomness)

    def stop(self) -> None:
        """End the process cleanly."""
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    def kill(self, *, lose_power: bool) -> None:
        """End the process at once; with ``lose_power`` what was not flushed may be lost."""
        self._trace(f"{self.name} {'loses power' if lose_power else 'is killed'}")
        self._power_lost = lose_power
        self.is_up = False
        self.stop()

    async def wait_ended(self) -> None:
        await self._ended.wait()

    # -- requests --

    def start_request(self, work: Callable[[], None]) -> bool:
        """Run a request in the process; return False if there is none."""
        if not self.is_up or self._nursery is None:
            return False

        async def run() -> None:
            if self.is_up:
                work()

        self._nursery.start_soon(run)
        return True

    def send(self, topic: str, queue_id: int, body: bytes, reply: Reply) -> None:
        """Store a message as the handler of sends does."""
        if self.role is not Role.MASTER or self.is_fenced:
            reply(NOT_MASTER, -1)
            return
        gate = self.gate
        assert gate is not None
        try:
            gate.check_append()
            offset, start, size, _ = self.open_store.append(
                NewMessage(topic, queue_id, body, b"TAGS\x01t\x02")
            )
        except (StoreError, RequestError):
            reply(NOT_MASTER, -1)
            return
        connection = SimConnection(reply)
        answer: bytes | None = encode_response(1, 0, {"queueOffset": str(offset)})
        if gate.must_wait:
            answer = gate.hold(cast(Connection, connection), answer, start + size)
        if answer is not None:
            connection.write(answer)
        self.server.wake()

    def end_of(self, queue: tuple[str, int], offset: int) -> int:
        """Return the physical offset one past a message, for the judgement; 0 without one."""
        if self.store is None or offset < 0:
            return 0
        start = self.store.physical_offset_at(*queue, offset)
        message = self.store.message_at(start)
        return 0 if message is None else start + len(message)

    def read(self, topic: str, queue_id: int, offset: int) -> list[tuple[int, bytes]]:
        """Return messages of a queue from an offset on, with their offsets.

        None at a slave that has not yet compared its log with the master's: it may have to be cut.
        """
        if self.role is Role.SLAVE and not self.is_verified:
            return []
        return read_queue(self.open_store, topic, queue_id, offset)


def read_queue(store: MessageStore, topic: str, queue_id: int, offset: int) -> list[tuple[int, bytes]]:
    """Return messages of a queue from an offset on, with their offsets."""
    chunks = store.read(topic, queue_id, offset, 32).chunks
    return [(message.queue_offset, bytes(message.body)) for message in iter_messages(b"".join(chunks))]
