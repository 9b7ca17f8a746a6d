"""Late and lost answers of controllers, as a manager of roles uses them. The controller is played."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from codec.constants import ResponseCode
from gateway.broker.replication.broker_identity import BrokerIdentity
from gateway.broker.replication.fencing import Lease
from gateway.broker.replication.replicas_manager import LogState, MasterTerm, ReplicasManager, RoleHints
from gateway.config.replication import ControlledRole
from gateway.tests.cluster import inline
from gateway.tests.configs import broker_config
from remoting.bodies.ha import SyncStateSet
from remoting.errors import RemotingTimeout, RequestError
from remoting.requests.controller import (
    ControllerElectMaster,
    ControllerElectMasterReply,
    ControllerGetReplicaInfo,
    ControllerGetReplicaInfoReply,
    ControllerRegisterBroker,
    ControllerRegisterBrokerReply,
)
from remoting.tests.virtual import settle, virtual
from storage.files import MemoryFiles

OWN_ID, OTHER_ID = 1, 2


def term(reply_type: Any, epoch: int, master_id: int | None) -> Any:
    reply = reply_type(
        master_broker_id=master_id,
        master_address=None if master_id is None else f"10.0.1.{master_id}:10911",
        master_epoch=epoch,
    )
    reply.data = SyncStateSet(sync_state_set=[OWN_ID, OTHER_ID], sync_state_set_epoch=1)
    return reply


class PlayedConnection:
    local = ("10.0.1.1", 40_000)


class PlayedController:
    """The links to one controller, whose answers the test decides. A question waits while its gate is closed."""

    def __init__(self) -> None:
        self.epoch = 0
        self.master_id: int | None = None
        self.registered: Any = None
        self.election: ControllerElectMasterReply | Exception | None = None
        self.gates: dict[type, trio.Event] = {}
        self.asked: list[type] = []
        self.connection = PlayedConnection()
        self.heartbeat_sent_s: float | None = 0.0
        self.is_open, self.name, self.trouble = True, "played", ""

    @property
    def leader(self) -> "PlayedController":
        return self

    async def run(self, events: object) -> None:
        await trio.sleep_forever()

    def wake(self) -> None:
        self.heartbeat_sent_s = trio.current_time()

    async def wait_for_leader(self, timeout_s: float = 3.0) -> "PlayedController":
        return self

    async def ask_leader(self, request: Any, timeout_s: float = 3.0) -> Any:
        return await self.ask(self, request, timeout_s)

    async def ask(self, link: object, request: Any, timeout_s: float) -> Any:
        self.asked.append(type(request))
        answer = self._answer(request)  # as of now, however late it comes
        await self.gates.get(type(request), OPEN).wait()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _answer(self, request: Any) -> Any:
        if isinstance(request, ControllerGetReplicaInfo):
            return term(ControllerGetReplicaInfoReply, self.epoch, self.master_id)
        if isinstance(request, ControllerRegisterBroker):
            return term(ControllerRegisterBrokerReply, self.epoch, self.master_id)
        assert isinstance(request, ControllerElectMaster)
        return self.election


OPEN = trio.Event()
OPEN.set()


class PlayedBroker:
    """A broker that takes every role, at once or when ``may_lead`` or ``may_follow`` is set."""

    def __init__(self) -> None:
        self.config = broker_config(broker_name="broker-a", broker_ip="10.0.1.1", listen_port=10911)
        self.log_state = LogState(0, 0, 0)
        self.sync_reports = None
        self.roles: list[str] = []
        self.may_lead = self.may_follow = OPEN
        self.states: list[str] = []

    async def lead(self, role: ControlledRole) -> None:
        await self.may_lead.wait()
        self.roles.append(f"leads in {role.master_epoch}")

    async def follow(self, role: ControlledRole, master_address: str) -> None:
        await self.may_follow.wait()
        self.roles.append(f"follows in {role.master_epoch}")

    def note_state(self, reason: str) -> None:
        self.states.append(reason)

    def note_membership(self, *, is_member: bool) -> bool:
        return is_member


class Play:
    """A manager with a played controller and a played broker."""

    def __init__(self) -> None:
        files = MemoryFiles()
        identity = BrokerIdentity(files, "/store", "DefaultCluster", "broker-a")
        identity.write(OWN_ID)
        self.controller, self.broker = PlayedController(), PlayedBroker()
        self.lease = Lease(10, trio.current_time)
        broker: Any = self.broker
        links: Any = self.controller
        self.manager = ReplicasManager(
            broker,
            links,
            identity,
            self.lease,
            RoleHints(),
            inline,
            lambda: round(1000 * trio.current_time()),
        )

    async def confirm(self) -> None:
        """Ask who is master, as after an answered heartbeat."""
        self.controller.wake()
        link: Any = self.controller
        await self.manager.heartbeat_answered(link)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.manager.run)
            await settle()
            yield
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def a_master() -> AsyncIterator[Play]:
    """Play a broker that leads in epoch 1."""
    play = Play()
    play.controller.election = term(ControllerElectMasterReply, 1, OWN_ID)
    async with play.running():
        play.controller.epoch, play.controller.master_id = 1, OWN_ID
        await play.confirm()
        assert play.broker.roles == ["leads in 1"]
        assert play.lease.is_valid
        yield play


@asynccontextmanager
async def a_broker_that_becomes_master() -> AsyncIterator[Play]:
    """Play a broker that is elected in epoch 1, and leads once it may."""
    play = Play()
    play.controller.election = term(ControllerElectMasterReply, 1, OWN_ID)
    play.controller.epoch, play.controller.master_id = 1, None
    play.broker.may_lead = trio.Event()
    async with play.running():
        play.controller.master_id = OWN_ID
        await play.confirm()
        assert play.lease.is_valid, "for the requests that wait"
        assert play.broker.roles == []
        yield play


@virtual
async def test_a_master_stores_nothing_while_another_replica_is_being_elected() -> None:
    async with a_master() as play, trio.open_nursery() as nursery:
        gate = play.controller.gates[ControllerElectMaster] = trio.Event()
        play.controller.election = term(ControllerElectMasterReply, 2, OTHER_ID)
        # The controller says first who is master, and that answer comes after the election has been asked for.
        late = play.controller.gates[ControllerGetReplicaInfo] = trio.Event()
        nursery.start_soon(play.confirm)
        await settle()
        nursery.start_soon(play.manager.have_elected, OTHER_ID)
        await settle()
        assert not play.lease.is_valid
        late.set()
        await settle()
        assert not play.lease.is_valid
        gate.set()
        await settle()
        assert play.broker.roles == ["leads in 1", "follows in 2"]
        assert not play.lease.is_valid


@virtual
async def test_a_master_whose_election_of_another_is_refused_goes_on_at_once() -> None:
    async with a_master() as play:
        play.controller.election = RequestError(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "not in sync")
        with pytest.raises(RequestError, match="not in sync"):
            await play.manager.have_elected(OTHER_ID)
        assert play.lease.is_valid


@virtual
async def test_a_master_that_gets_no_answer_to_an_election_waits_for_the_next_confirmation() -> None:
    async with a_master() as play:
        gate = play.controller.gates[ControllerElectMaster] = trio.Event()
        play.controller.election = RemotingTimeout("no answer")

        async def confirm_meanwhile() -> None:
            await settle()
            await play.confirm()
            assert play.lease.is_valid, "but the broker rests"
            gate.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(confirm_meanwhile)
            with pytest.raises(RemotingTimeout):
                await play.manager.have_elected(OTHER_ID)
            assert not play.lease.is_valid
        await play.confirm()
        assert play.lease.is_valid


@virtual
async def test_an_answer_from_before_the_end_of_a_connection_does_not_end_the_suspension() -> None:
    async with a_master() as play, trio.open_nursery() as nursery:
        late = play.controller.gates[ControllerGetReplicaInfo] = trio.Event()
        nursery.start_soon(play.confirm)
        await settle()
        play.manager.leader_lost()
        late.set()
        await settle()
        assert not play.lease.is_valid
        await play.confirm()
        assert play.lease.is_valid


@virtual
async def test_a_broker_that_is_deposed_while_it_becomes_master_has_no_lease() -> None:
    async with a_broker_that_becomes_master() as play:
        play.controller.epoch, play.controller.master_id = 2, OTHER_ID
        await play.confirm()
        assert not play.lease.is_valid
        play.broker.may_lead.set()
        await settle()
        assert play.broker.roles == ["leads in 1", "follows in 2"]


@virtual
async def test_a_master_without_lease_that_is_elected_again_stores_only_in_its_new_epoch() -> None:
    """Another one may have stored in an epoch between, which this log does not have."""
    async with a_master() as play:
        await trio.sleep(20)
        assert not play.lease.is_valid
        play.broker.may_lead = trio.Event()
        play.controller.epoch = 3
        await play.confirm()
        await settle()
        await play.confirm()
        assert not play.lease.is_valid
        # So that only the confirmation of before can renew the lease.
        play.controller.gates[ControllerGetReplicaInfo] = trio.Event()
        play.broker.may_lead.set()
        await settle()
        assert play.broker.roles == ["leads in 1", "leads in 3"]
        assert play.lease.is_valid, "for the requests that wait"


@virtual
async def test_a_master_with_a_lease_that_is_elected_again_goes_on() -> None:
    async with a_master() as play:
        play.broker.may_lead = trio.Event()
        play.controller.epoch = 3
        await play.confirm()
        assert play.lease.is_valid


@virtual
async def test_a_broker_that_becomes_master_has_no_lease_of_a_later_epoch() -> None:
    async with a_broker_that_becomes_master() as play:
        await trio.sleep(20)
        play.controller.epoch = 3
        await play.confirm()
        assert not play.lease.is_valid
        play.broker.may_lead.set()
        await settle()
        assert play.broker.roles == ["leads in 1", "leads in 3"]
        assert play.lease.is_valid


@virtual
async def test_a_master_that_becomes_a_slave_has_no_lease_of_a_later_epoch() -> None:
    async with a_master() as play:
        play.broker.may_follow = trio.Event()
        play.controller.epoch, play.controller.master_id = 2, OTHER_ID
        await play.confirm()
        play.controller.epoch, play.controller.master_id = 3, OWN_ID
        play.controller.wake()
        play.manager._hints.note()
        await settle()
        assert not play.lease.is_valid
        play.broker.may_follow.set()
        await settle()
        assert play.broker.roles == ["leads in 1", "follows in 2", "leads in 3"]
        assert play.lease.is_valid


@virtual
async def test_an_answer_about_an_earlier_epoch_renews_nothing() -> None:
    async with a_master() as play, trio.open_nursery() as nursery:
        late = play.controller.gates[ControllerGetReplicaInfo] = trio.Event()
        nursery.start_soon(play.confirm)
        await settle()
        play.controller.election = term(ControllerElectMasterReply, 2, OTHER_ID)
        await play.manager.have_elected(OTHER_ID)
        late.set()
        await settle()
        assert play.broker.roles == ["leads in 1", "follows in 2"]
        assert not play.lease.is_valid


@virtual
async def test_an_answer_about_an_earlier_epoch_ends_no_lease() -> None:
    play = Play()
    play.controller.epoch, play.controller.master_id = 1, OTHER_ID
    play.broker.may_lead = trio.Event()
    async with play.running(), trio.open_nursery() as nursery:
        assert play.broker.roles == ["follows in 1"]
        late = play.controller.gates[ControllerGetReplicaInfo] = trio.Event()
        await trio.sleep(6)
        assert play.controller.asked[-1] is ControllerGetReplicaInfo
        del play.controller.gates[ControllerGetReplicaInfo]
        play.controller.epoch, play.controller.master_id = 2, OWN_ID
        play.manager._obey(MasterTerm(2, OWN_ID, "", frozenset({OWN_ID}), 1))
        nursery.start_soon(play.confirm)
        await settle()
        await play.confirm()
        assert play.lease.is_valid
        late.set()
        await settle()
        assert play.lease.is_valid
        play.broker.may_lead.set()
        await settle()
        assert play.broker.roles == ["follows in 1", "leads in 2"]


@virtual
async def test_a_manager_that_starts_again_takes_the_role_that_it_was_taking() -> None:
    play = Play()
    play.controller.election = term(ControllerElectMasterReply, 1, OWN_ID)
    play.broker.may_lead = trio.Event()
    async with play.running():
        assert play.broker.roles == []
    play.broker.may_lead.set()
    play.controller.epoch, play.controller.master_id = 1, OWN_ID
    async with play.running():
        await trio.sleep(5)
        assert play.broker.roles == ["leads in 1"]
