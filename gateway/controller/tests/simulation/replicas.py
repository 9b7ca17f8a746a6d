"""Brokers as small models that keep the protocol of controllers: their ids, roles, leases, logs and replicas in sync.

A model has what the laws are about and nothing else. Its log is a list of records, and its disk keeps everything.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import trio

from codec.constants import ResponseCode
from gateway.controller.tests.simulation.controllers import (
    ControllerConnection,
    SimController,
    Unanswered,
    World,
    is_not_leader,
)
from gateway.controller.tests.simulation.laws import LawBroken, Laws, Record
from remoting.bodies.ha import SyncStateSet
from remoting.declare import Request
from remoting.errors import RequestError
from remoting.requests.controller import (
    ControllerAlterSyncStateSet,
    ControllerApplyBrokerId,
    ControllerElectMaster,
    ControllerGetMetadataInfo,
    ControllerGetNextBrokerId,
    ControllerGetReplicaInfo,
    ControllerRegisterBroker,
)
from remoting.requests.namesrv import MASTER_LEASE_SHARE, BrokerHeartbeat

CLUSTER: Final = "cluster"
NAME: Final = "broker"
PORT: Final = 10911
HEARTBEAT_S: Final = 1.0
TIMEOUT_S: Final = 5.0
"""Time after which a controller takes a silent broker for dead; 10 s by default."""
LEASE_S: Final = TIMEOUT_S * MASTER_LEASE_SHARE
LOOK_FOR_LEADER_S: Final = 0.5
CHECK_SET_S: Final = 0.7
MAX_LAG_S: Final = 2.0
"""Time after which a replica that is behind leaves the set."""
SEND_TIMEOUT_S: Final = 2.0
COPY_RECORDS: Final = 8
"""Records in one piece of the log."""
OUTDATED: Final = (
    ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
    ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
    ResponseCode.CONTROLLER_INVALID_MASTER,
)
"""Refusals of reports about a set that is not the stored one any more."""


class ReplicaWorld(World, Protocol):
    """The further parts that brokers share."""

    laws: Laws
    replicas: "list[SimReplica]"


class Refused(Exception):
    """A message was not accepted, or not acknowledged in time."""


@dataclass(slots=True)
class Disk:
    """The contents of a broker's disk. ``application`` is the id that it applies for, and its check code."""

    name: str
    broker_id: int | None = None
    application: tuple[int, str] | None = None
    log: list[Record] = field(default_factory=list)


@dataclass(slots=True)
class Follower:
    """A slave as its master sees it: the end of what it has, and when it last had everything."""

    end: int
    in_step_s: float


class SimReplica:
    """One broker, through all its processes."""

    def __init__(self, name: str, world: ReplicaWorld) -> None:
        self.name = name
        self.address = f"{name}:{PORT}"
        self.clock = world.network.new_clock()
        self.disk = Disk(f"{name}#0")
        self.is_up = False
        self._world = world
        self._disks = 0
        self._nursery: trio.Nursery | None = None
        self._begin_process()

    def _begin_process(self) -> None:
        self.process = object()
        self.epoch = 0
        self.is_master = False
        self.master_address = ""
        self.sync_set: frozenset[int] = frozenset()
        self.sync_set_epoch = 0
        self._added: set[int] = set()  # by reports that were perhaps carried out, or will be
        self._confirmed = 0
        self._followers: dict[int, Follower] = {}
        self._leader: SimController | None = None
        self._lease_end_s = -math.inf
        self._lessor: ControllerConnection | None = None
        self._connections: dict[SimController, ControllerConnection] = {}
        self._progress = trio.Event()
        self._changed = trio.Event()

    @property
    def log(self) -> list[Record]:
        return self.disk.log

    @property
    def broker_id(self) -> int:
        assert self.disk.broker_id is not None
        return self.disk.broker_id

    @property
    def is_writable(self) -> bool:
        """True while messages are accepted."""
        return (
            self.is_up
            and self.is_master
            and not self._world.network.is_paused(self.name)
            and self.clock.monotonic() < self._lease_end_s
        )

    async def run_process(self) -> None:
        """Run one process until it is killed."""
        self._begin_process()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.is_up = True
            nursery.start_soon(self._keep_leader)
            await self._register()
            for controller in self._world.controllers:
                nursery.start_soon(self._report, controller)
            nursery.start_soon(self._keep_set)
            nursery.start_soon(self._follow)

    def kill(self) -> None:
        """End the process at once."""
        self.is_up = False
        self.process = object()
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()
        for connection in [*self._connections.values()]:
            connection.close()

    def wipe(self) -> None:
        """Begin anew with an empty disk."""
        self._disks += 1
        self.disk = Disk(f"{self.name}#{self._disks}")

    async def _sleep(self, duration_s: float) -> None:
        await trio.sleep(duration_s * self._world.network.randomness.uniform(0.8, 1.2))
        await self._world.network.wait_running(self.name)

    # -- controllers --------------------------------------------------------------------------------------------------

    async def _ask(
        self, controller: SimController, request: Request[Any]
    ) -> tuple[ControllerConnection, Any]:
        """Return the reply of a controller, and its connection. Raises RequestError, Unanswered."""
        connection = self._connections.get(controller)
        if connection is None:
            with trio.move_on_after(1):
                connection = await controller.connect(self.name, self._note_end)
            if (
                connection is None or not connection.is_open
            ):  # it may have ended before its end could be noted
                raise Unanswered
            if controller in self._connections:  # another task was faster
                connection.close()
                connection = self._connections[controller]
            self._connections[controller] = connection
        try:
            return connection, await connection.ask(request)
        except Unanswered:
            if self._world.network.randomness.random() < 0.3:
                connection.close()
            raise

    def _note_end(self, connection: ControllerConnection) -> None:
        if self._connections.get(connection.controller) is connection:
            del self._connections[connection.controller]
        if connection is self._lessor:
            # The controller takes this broker for dead, and may elect another master at once.
            self._lease_end_s = -math.inf

    async def _ask_leader(self, request: Request[Any]) -> Any:
        """Return the reply of the leading controller. Raises RequestError for its refusal, Unanswered."""
        leader = self._leader
        if leader is None:
            raise Unanswered
        try:
            return (await self._ask(leader, request))[1]
        except RequestError as refusal:
            if not is_not_leader(refusal):
                raise
            self._leader = None
            raise Unanswered from refusal

    async def _keep_leader(self) -> None:
        """Find out which controller leads."""
        while True:
            controllers = [*self._world.controllers]
            self._world.network.randomness.shuffle(controllers)
            for controller in controllers:
                if self._leader is not None and self._world.network.randomness.random() < 0.7:
                    break
                try:
                    _, reply = await self._ask(controller, ControllerGetMetadataInfo())
                except Unanswered:
                    continue
                for leader in controllers:
                    if leader.name == reply.controller_leader_id:
                        self._leader = leader
            await self._sleep(LOOK_FOR_LEADER_S)

    async def _register(self) -> None:
        while True:
            try:
                if self.disk.broker_id is None:
                    await self._apply_for_id()
                await self._ask_leader(
                    ControllerRegisterBroker(
                        cluster_name=CLUSTER,
                        broker_name=NAME,
                        broker_id=self.disk.broker_id,
                        broker_address=self.address,
                    )
                )
                return
            except RequestError as refusal:
                if refusal.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
                    # An operator has removed this replica: it begins as another one.
                    log = self.disk.log
                    self.wipe()
                    self.disk.log = log
                else:
                    self.disk.application = None
            except Unanswered:
                pass
            await self._sleep(0.3)

    async def _apply_for_id(self) -> None:
        disk = self.disk
        if disk.application is None:
            reply = await self._ask_leader(ControllerGetNextBrokerId(cluster_name=CLUSTER, broker_name=NAME))
            disk.application = reply.next_broker_id, f"{self.address};{self.clock.now_ms()}"
        broker_id, check_code = disk.application
        await self._ask_leader(
            ControllerApplyBrokerId(
                cluster_name=CLUSTER,
                broker_name=NAME,
                applied_broker_id=broker_id,
                register_check_code=check_code,
            )
        )
        disk.broker_id = broker_id
        self._world.laws.note_id(disk.name, broker_id)

    async def _report(self, controller: SimController) -> None:
        """Send heartbeats to one controller; if it leads, learn from it who is master, and renew the lease."""
        while True:
            changed = self._changed
            try:
                await self._report_once(controller)
            except Unanswered:
                pass
            except RequestError as refusal:
                if is_not_leader(refusal) and self._leader is controller:
                    self._leader = None
            with trio.move_on_after(HEARTBEAT_S * self._world.network.randomness.uniform(0.8, 1.2)):
                await changed.wait()
            await self._world.network.wait_running(self.name)

    async def _report_once(self, controller: SimController) -> None:
        sent_s = self.clock.monotonic()
        heartbeat = BrokerHeartbeat(
            cluster_name=CLUSTER, broker_addr=self.address, broker_name=NAME, broker_id=self.broker_id,
            epoch=self.log[-1].epoch if self.log else 0, max_offset=len(self.log),
            confirm_offset=self._confirmed, heartbeat_timeout_mills=int(TIMEOUT_S * 1000),
        )  # fmt: skip
        heard_by, _ = await self._ask(controller, heartbeat)
        if controller is not self._leader:
            return
        answered_by, info = await self._ask(controller, ControllerGetReplicaInfo(broker_name=NAME))
        if info.master_broker_id is None:
            # That is not a role, as the epoch may be the one of a master that was started again.
            self._lease_end_s = -math.inf
            await self._ask_for_election()
            return
        data = info.data or SyncStateSet()
        self._note_state(
            info.master_broker_id, info.master_address, info.master_epoch or 0, data.sync_state_set,
            data.sync_state_set_epoch,
        )  # fmt: skip
        is_named = info.master_broker_id == self.broker_id and info.master_epoch == self.epoch
        if self.is_master and is_named and answered_by is heard_by and sent_s + LEASE_S > self._lease_end_s:
            self._lease_end_s, self._lessor = sent_s + LEASE_S, heard_by
            if not heard_by.is_open:
                self._lease_end_s = -math.inf

    async def _ask_for_election(self) -> None:
        request = ControllerElectMaster(cluster_name=CLUSTER, broker_name=NAME, broker_id=self.broker_id)
        try:
            reply = await self._ask_leader(request)
        except RequestError:
            return
        members = reply.data.sync_state_set if reply.data is not None else ()
        self._note_state(
            reply.master_broker_id, reply.master_address, reply.master_epoch or 0, members,
            reply.sync_state_set_epoch or 0,
        )  # fmt: skip

    def note_role(
        self, master_id: int | None, address: str | None, epoch: int, members: Iterable[int], set_epoch: int
    ) -> None:
        """Take a controller's notification."""
        if self.is_up and self.disk.broker_id is not None:
            self._note_state(master_id, address, epoch, members, set_epoch)

    def _note_state(
        self, master_id: int | None, address: str | None, epoch: int, members: Iterable[int], set_epoch: int
    ) -> None:
        """Obey what is newer."""
        if epoch > self.epoch:
            self._change_role(master_id, address or "", epoch)
        if epoch == self.epoch and self.is_master and set_epoch > self.sync_set_epoch:
            self._take_set(frozenset(members), set_epoch)

    def _change_role(self, master_id: int | None, address: str, epoch: int) -> None:
        self.epoch = epoch
        self._lease_end_s = -math.inf
        self.is_master = master_id == self.broker_id
        self.master_address = address
        self.sync_set_epoch = 0
        self._added.clear()
        self._followers.clear()
        if self.is_master:
            self._world.trace(f"{self.name} (id {self.broker_id}) is master in epoch {epoch}")
            self.sync_set = frozenset((self.broker_id,))
            self._confirmed = len(self.log)
            self._world.laws.note_master(self)
        self._wake()

    def _wake(self) -> None:
        self._note_progress()
        self._changed.set()
        self._changed = trio.Event()

    # -- replicas in sync ---------------------------------------------------------------------------------------------

    def _take_set(self, members: frozenset[int], set_epoch: int) -> None:
        """Take over a newer set. Reports that named an older one are refused from now on."""
        self.sync_set, self.sync_set_epoch = members, set_epoch
        self._added.clear()
        self._confirm()

    def _confirm(self) -> None:
        """Move the confirmed end: all replicas in sync have what is before it, and those that may be by now."""
        ends = [
            len(self.log) if member == self.broker_id else self._end_of(member)
            for member in self.sync_set | self._added
        ]
        if min(ends) > self._confirmed:
            self._confirmed = min(ends)
            self._note_progress()

    def _note_progress(self) -> None:
        self._progress.set()
        self._progress = trio.Event()

    def _end_of(self, member: int) -> int:
        follower = self._followers.get(member)
        return 0 if follower is None else follower.end

    def acknowledge(self, member: int, end: int) -> None:
        """Note how much of the log a slave has."""
        now_s = self.clock.monotonic()
        follower = self._followers.setdefault(member, Follower(end, now_s))
        follower.end = max(end, follower.end)
        if follower.end >= self._confirmed:
            follower.in_step_s = now_s
        self._confirm()

    def _wanted_set(self) -> frozenset[int]:
        now_s = self.clock.monotonic()
        in_step = {
            member for member, follower in self._followers.items() if now_s - follower.in_step_s < MAX_LAG_S
        }
        caught_up = {
            member
            for member in in_step
            if member in self.sync_set or self._followers[member].end >= self._confirmed
        }
        return frozenset(caught_up | {self.broker_id})

    async def _keep_set(self) -> None:
        """Report the replicas in sync when they are others."""
        while True:
            await self._sleep(CHECK_SET_S)
            if not self.is_master or not self.sync_set_epoch:
                continue
            wanted = self._wanted_set()
            # A report without an answer is settled by the answer to any later one.
            if wanted == self.sync_set and not self._added:
                continue
            await self._report_set(wanted)

    async def _report_set(self, wanted: frozenset[int]) -> None:
        epoch, set_epoch = self.epoch, self.sync_set_epoch
        self._added |= wanted - self.sync_set
        request = ControllerAlterSyncStateSet(
            broker_name=NAME, master_broker_id=self.broker_id, master_epoch=epoch,
            data=SyncStateSet(sync_state_set=sorted(wanted), sync_state_set_epoch=set_epoch),
        )  # fmt: skip
        leader = self._leader
        try:
            reply = await self._ask_leader(request)
        except Unanswered:
            # What still waits in this connection must not arrive after a later report.
            if leader is not None and leader in self._connections:
                self._connections[leader].close()
            return
        except RequestError as refusal:
            # Otherwise a newer set is stored, perhaps one with what was added, and will be read.
            if refusal.code not in OUTDATED and (self.epoch, self.sync_set_epoch) == (epoch, set_epoch):
                self._added.clear()
                self._confirm()
            return
        members = frozenset(reply.data.sync_state_set)
        self._world.laws.note_accepted_set(reply.new_sync_state_set_epoch, members)
        if self.epoch == epoch and reply.new_sync_state_set_epoch > self.sync_set_epoch:
            self._take_set(members, reply.new_sync_state_set_epoch)

    # -- the log ------------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Copy the log of the present master."""
        while True:
            await self._sleep(0.25)
            master = next(
                (peer for peer in self._world.replicas if peer.address == self.master_address), None
            )
            if self.is_master or master is None or master is self:
                continue
            with trio.move_on_after(5):
                await self._copy(master)

    async def _copy(self, master: "SimReplica") -> None:
        """Copy over one connection, until something changes."""
        deliver = self._world.network.deliver
        epoch, master_process = self.epoch, master.process

        def is_current() -> bool:
            return (
                self.epoch == epoch == master.epoch and master.process is master_process and master.is_master
            )

        await deliver(self.name, master.name)
        if not is_current():
            return
        position = common_records(self.log, master.log)
        while is_current():
            piece = master.log[position : position + COPY_RECORDS]
            await deliver(master.name, self.name)
            if self.epoch != epoch:
                return
            # The log is cut before anything follows.
            self.log[position:] = piece
            position += len(piece)
            await deliver(self.name, master.name)
            if not is_current():
                return
            master.acknowledge(self.broker_id, position)
            if not piece:
                with trio.move_on_after(0.3):
                    await master._progress.wait()

    async def send(self, body: bytes) -> None:
        """Accept a message; return when it is acknowledged. Raises Refused."""
        if not self.is_writable:
            raise Refused
        world, epoch, process, index = self._world, self.epoch, self.process, len(self.log)
        world.laws.note_accepting(self, world.replicas, trio.current_time())
        record = Record(epoch, body)
        self.log.append(record)
        self._note_progress()
        self._confirm()
        with trio.move_on_after(SEND_TIMEOUT_S):
            while self.process is process and self.epoch == epoch:
                if self._confirmed > index:
                    world.laws.note_acknowledged(index, record)
                    return
                await self._progress.wait()
        raise Refused


def common_records(log: list[Record], other: list[Record]) -> int:
    """Return the number of records at the begin of both logs. Raises LawBroken if later ones are equal."""
    end = min(len(log), len(other))
    for index in range(end):
        if log[index] != other[index]:
            if any(log[later] == other[later] for later in range(index, end)):
                raise LawBroken(f"two logs differ at {index}, and are equal after that")
            return index
    return end
