"""Controllers in virtual time: deaths of masters, of controllers and of the store, and what stays true meanwhile."""

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from codec.command import Command
from codec.constants import ResponseCode
from gateway.config.controller import ControllerConfig
from gateway.controller import rules
from gateway.controller.broker_set import BrokerSet
from gateway.controller.controller import Controller
from gateway.controller.liveness import DEFAULT_TIMEOUT_S, Heartbeat, ReplicaKey
from gateway.controller.notifications import Notifications
from gateway.controller.store import ControllerMember, Entry
from gateway.controller.tests.memory_store import MemoryStore
from remoting.bodies.ha import SyncStateSet
from remoting.errors import RequestError
from remoting.requests.controller import (
    CleanBrokerData,
    ControllerAlterSyncStateSet,
    ControllerApplyBrokerId,
    ControllerElectMaster,
    ControllerRegisterBroker,
)
from remoting.requests.namesrv import MASTER_LEASE_SHARE

NAME = "a"


class TrioClock:
    """The clock of the event loop."""

    def monotonic(self) -> float:
        return trio.current_time()

    def now_ms(self) -> int:
        return int(trio.current_time() * 1000)


class Group:
    """Controllers with one store, and brokers that send heartbeats to all of them."""

    def __init__(self, *member_ids: str, config: ControllerConfig | None = None) -> None:
        self.store = MemoryStore()
        self.config = config or ControllerConfig()
        self.notified: list[tuple[str, int]] = []
        self.alive: set[int] = set()
        self.controllers: dict[str, Controller] = {}
        self.scopes: dict[str, trio.CancelScope] = {}
        self.member_ids = member_ids

    async def _deliver(self, address: str, command: Command) -> None:
        self.notified.append((address, int(command.ext["masterBrokerId"])))

    async def run_member(self, member_id: str) -> None:
        controller = Controller(
            self.config,
            self.store.of(member_id),
            ControllerMember(member_id, f"{member_id}:9878"),
            "",
            TrioClock(),
            Notifications(None, self._deliver),
        )
        self.controllers[member_id] = controller
        with trio.CancelScope() as self.scopes[member_id]:
            await controller.run()

    async def send_heartbeats(self) -> None:
        while True:
            for controller in self.controllers.values():
                for broker_id in self.alive:
                    heartbeat = Heartbeat(f"h:{broker_id}", timeout_s=10)
                    controller.record_heartbeat(ReplicaKey("C", NAME, broker_id), heartbeat, None)
            await trio.sleep(1)

    @property
    def leaders(self) -> list[Controller]:
        return [item for item in self.controllers.values() if item.leadership.term is not None]

    @property
    def leader(self) -> Controller:
        (leader,) = self.leaders
        return leader

    @property
    def broker_set(self) -> BrokerSet:
        return self.store.entries[NAME].broker_set

    async def register(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            request = ControllerApplyBrokerId(
                cluster_name="C",
                broker_name=NAME,
                applied_broker_id=broker_id,
                register_check_code=f"h:{broker_id};1",
            )
            await self.leader.change(NAME, partial(rules.apply_broker_id, request=request))
        self.alive |= set(broker_ids)
        await trio.sleep(1.5)

    async def begin(self, *broker_ids: int) -> None:
        """Make the first broker master, and all of them in sync."""
        await self.register(*broker_ids)
        await self.leader.elect(elect(broker_ids[0]))
        if len(broker_ids) > 1:
            await self.alter(*broker_ids)

    async def alter(self, *broker_ids: int) -> None:
        current = self.broker_set
        request = ControllerAlterSyncStateSet(
            broker_name=NAME,
            master_broker_id=current.master_id,
            master_epoch=current.master_epoch,
            data=SyncStateSet(sync_state_set=list(broker_ids), sync_state_set_epoch=current.sync_set_epoch),
        )
        leader = self.leader
        decide = partial(rules.alter_sync_set, request=request, liveness=leader.liveness)
        assert (await leader.change(NAME, decide)).answer.code == 0


def elect(broker_id: int) -> ControllerElectMaster:
    return ControllerElectMaster(cluster_name="C", broker_name=NAME, broker_id=broker_id)


def play(group: Group, story: Callable[[Group], Awaitable[None]]) -> None:
    """Run controllers and brokers, and a story about them."""

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            for member_id in group.member_ids:
                nursery.start_soon(group.run_member, member_id)
            await trio.sleep(0.1)
            nursery.start_soon(group.send_heartbeats)
            with trio.fail_after(600):
                await story(group)
            nursery.cancel_scope.cancel()

    trio.run(run, clock=MockClock(autojump_threshold=0))
    fences = [fence for fence, _ in group.store.writes]
    assert fences == sorted(fences), "a controller wrote after another one had begun to lead"
    masters: dict[int, int | None] = {}
    for _, broker_set in group.store.writes:
        if broker_set is not None:
            assert masters.setdefault(broker_set.master_epoch, broker_set.master_id) == broker_set.master_id


def test_a_silent_master_is_replaced_when_its_time_is_over() -> None:
    async def story(group: Group) -> None:
        await group.begin(1, 2, 3)
        group.notified.clear()
        died_at_s = trio.current_time()
        group.alive.remove(1)
        while group.broker_set.master_id == 1:
            await trio.sleep(0.05)
        assert 9 <= trio.current_time() - died_at_s <= 11
        assert group.broker_set.master_id == 2
        await trio.sleep(0.1)
        assert sorted(group.notified) == [("h:2", 2), ("h:3", 2)]

    play(Group("n0"), story)


def test_a_master_that_is_heard_during_the_election_of_another_one_gets_no_confirmation() -> None:
    """The store takes long to write the election, and heartbeats of the former master come again meanwhile."""

    async def story(group: Group) -> None:
        await group.begin(1, 2)
        group.store.write_delay_s = 3.0
        group.alive.remove(1)
        await trio.sleep(11)
        group.alive.add(1)
        asked_s, masters = trio.current_time(), []
        assert group.broker_set.master_id == 1
        for _ in range(4):
            # A heartbeat and a question: by both together the former master would renew its lease.
            group.leader.record_heartbeat(ReplicaKey("C", NAME, 1), Heartbeat("h:1", timeout_s=10), None)
            broker_set = await group.leader.settled_broker_set(NAME)
            assert broker_set is not None
            masters.append(broker_set.master_id)
            await trio.sleep(0.1)
        assert masters == [2] * 4
        assert trio.current_time() < asked_s + 4

    play(Group("n0"), story)


def test_a_change_that_leaves_the_master_holds_up_no_confirmation() -> None:
    async def story(group: Group) -> None:
        await group.begin(1, 2)
        group.store.write_delay_s = 3.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.alter, 1)
            await trio.sleep(0.1)
            with trio.fail_after(0.1):
                broker_set = await group.leader.settled_broker_set(NAME)
            assert broker_set is not None
            assert (broker_set.master_id, broker_set.sync_set) == (1, {1, 2})

    play(Group("n0"), story)


def test_a_controller_that_restarts_leaves_the_master_alone() -> None:
    async def story(group: Group) -> None:
        await group.begin(1, 2)
        before = group.broker_set
        group.scopes["n0"].cancel()
        await trio.sleep(0.01)
        async with trio.open_nursery() as nursery:
            # The slave is heard of first.
            group.alive = {2}
            nursery.start_soon(group.run_member, "n0")
            await trio.sleep(8)
            group.alive = {1, 2}
            await trio.sleep(60)
            assert group.broker_set == before
            nursery.cancel_scope.cancel()

    play(Group("n0"), story)


def test_the_master_is_lost_with_the_last_replica_in_sync_and_found_when_that_returns() -> None:
    async def story(group: Group) -> None:
        await group.begin(1, 2)
        await group.register(3)
        group.alive = {3}
        await trio.sleep(20)
        assert (group.broker_set.master_id, group.broker_set.master_epoch) == (None, 2)
        await trio.sleep(60)
        assert group.broker_set.master_epoch == 2
        group.alive = {2, 3}
        await trio.sleep(2)
        assert (group.broker_set.master_id, group.broker_set.master_epoch) == (2, 3)
        assert group.leader.counts.unclean_elections == 0

    play(Group("n0"), story)


def test_unclean_elections_happen_only_if_they_are_on_and_are_counted() -> None:
    async def story(group: Group) -> None:
        await group.begin(1)
        await group.register(2)
        group.alive = {2}
        await trio.sleep(20)
        assert group.broker_set.master_id == 2
        assert group.leader.counts.unclean_elections == 1

    play(Group("n0", config=ControllerConfig(enable_elect_unclean_master=True)), story)


def test_one_of_several_controllers_leads_and_another_takes_over() -> None:
    async def story(group: Group) -> None:
        await group.begin(1, 2)
        first = group.leader
        assert all(item.leadership.leader == first.leadership.leader for item in group.controllers.values())
        for item in group.controllers.values():
            if item is not first:
                with pytest.raises(RequestError) as refusal:
                    item.broker_set(NAME)
                assert refusal.value.code == ResponseCode.CONTROLLER_NOT_LEADER
        (member_id,) = [key for key, item in group.controllers.items() if item is first]
        # It dies without a word, together with the master.
        group.store.unavailable.add(member_id)
        del group.controllers[member_id]
        group.alive.remove(1)
        await trio.sleep(6)
        assert group.leader is not first
        await trio.sleep(6)
        assert group.broker_set.master_id == 2

    play(Group("n0", "n1", "n2"), story)


def test_a_new_leader_waits_for_the_lease_of_a_master_that_it_does_not_hear() -> None:
    """The former leader heard the master until it died itself: only the master's way to the new one is cut."""

    async def story(group: Group) -> None:
        await group.begin(1, 2)
        first = group.leader
        (second,) = [item for item in group.controllers.values() if item is not first]
        (member_id,) = [key for key, item in group.controllers.items() if item is first]
        master = ReplicaKey("C", NAME, 1)
        del group.controllers[next(key for key in group.controllers if key != member_id)]
        await trio.sleep(9)
        second.record_heartbeat(ReplicaKey("C", NAME, 2), Heartbeat("h:2", timeout_s=600), None)
        await trio.sleep(5)
        assert first.liveness.is_alive(master)
        assert not second.liveness.is_alive(master)
        group.scopes[member_id].cancel()
        while second.leadership.term is None:
            await trio.sleep(0.05)
        await trio.sleep(MASTER_LEASE_SHARE * DEFAULT_TIMEOUT_S - 0.1)
        assert group.broker_set.master_id == 1
        await trio.sleep(0.5)
        assert group.broker_set.master_id == 2

    play(Group("n0", "n1"), story)


def test_a_controller_that_is_cut_off_stops_leading_before_another_begins() -> None:
    async def story(group: Group) -> None:
        await group.begin(1)
        first = group.leader
        (member_id,) = [key for key, item in group.controllers.items() if item is first]
        group.store.unavailable.add(member_id)
        for _ in range(200):
            await trio.sleep(0.05)
            assert len(group.leaders) <= 1
        assert group.leader is not first
        with pytest.raises(RequestError):
            await first.elect(elect(1))
        group.store.unavailable.clear()
        await trio.sleep(2)
        assert first.leadership.leader == group.leader.leadership.leader

    play(Group("n0", "n1"), story)


def test_a_write_without_an_answer_is_read_again() -> None:
    async def story(group: Group) -> None:
        await group.register(1)
        group.store.loses_answers = True
        with pytest.raises(RequestError, match="the controller cannot store the change") as refusal:
            await group.leader.elect(elect(1))
        assert refusal.value.code == ResponseCode.SYSTEM_ERROR
        group.store.loses_answers = False
        await trio.sleep(2)
        assert group.leader.leadership.terms == 2
        answer = await group.leader.elect(elect(1))
        assert (answer.code, answer.master_epoch) == (ResponseCode.CONTROLLER_MASTER_STILL_EXIST, 1)

    play(Group("n0"), story)


def test_a_disconnected_caller_does_not_stop_a_write() -> None:
    async def story(group: Group) -> None:
        await group.register(1)
        with trio.move_on_after(0.0005):
            await group.leader.elect(elect(1))
        assert group.broker_set.master_id == 1
        assert group.leader.broker_set(NAME) == group.broker_set

    play(Group("n0"), story)


def test_requests_at_the_same_time_are_decided_one_after_the_other() -> None:
    async def story(group: Group) -> None:
        await group.register(1, 2, 3)
        answers = []

        async def ask(broker_id: int) -> None:
            answers.append(await group.leader.elect(elect(broker_id)))

        async with trio.open_nursery() as nursery:
            for broker_id in (1, 2, 3):
                nursery.start_soon(ask, broker_id)
        assert len({answer.master_broker_id for answer in answers}) == 1
        assert sorted(answer.code for answer in answers) == [0, 2011, 2011]

    play(Group("n0"), story)


def test_a_pause_of_the_process_elects_nobody() -> None:
    class JumpingClock(TrioClock):
        jump_s = 0.0

        def monotonic(self) -> float:
            return trio.current_time() + self.jump_s

    async def story(group: Group) -> None:
        await group.begin(1, 2)
        before = group.broker_set
        clock = JumpingClock()
        group.leader.clock = clock
        group.leader.liveness._monotonic = clock.monotonic
        clock.jump_s = 60
        await group.leader.elect_missing_masters()
        await trio.sleep(5)
        assert group.broker_set == before

    play(Group("n0"), story)


def fill_with_strangers(controller: Controller) -> None:
    while not controller.liveness.is_full:
        key = ReplicaKey("C", f"stranger-{len(controller.liveness.alive_keys())}", 1)
        controller.record_heartbeat(key, Heartbeat("h:9", timeout_s=600), None)


def test_a_registered_replica_is_heard_although_strangers_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.controller.liveness.MAX_LIVE_BROKERS", 5)

    async def story(group: Group) -> None:
        await group.begin(1, 2)
        group.alive.clear()
        await trio.sleep(20)
        fill_with_strangers(group.leader)
        for key in (ReplicaKey("C", NAME, 3), ReplicaKey("X", NAME, 2), ReplicaKey("C", "b", 2)):
            with pytest.raises(RequestError, match="brokers come already"):
                group.leader.record_heartbeat(key, Heartbeat("h:2"), None)
        group.alive = {2}
        await trio.sleep(2)
        assert group.broker_set.master_id == 2

    play(Group("n0"), story)


def test_a_full_controller_that_begins_to_lead_waits_for_the_registered_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.controller.liveness.MAX_LIVE_BROKERS", 5)

    async def story(group: Group) -> None:
        await group.begin(1, 2)
        before = group.broker_set
        first = group.leader
        (second,) = [item for item in group.controllers.values() if item is not first]
        (member_id,) = [key for key, item in group.controllers.items() if item is first]
        await trio.sleep(20)
        second.liveness.remove_silent()
        for broker_id in (1, 2):
            del second.liveness._brokers[ReplicaKey("C", NAME, broker_id)]
        fill_with_strangers(second)
        # This one does not know yet who is registered, and refuses the heartbeats that come.
        group.alive.clear()
        group.scopes[member_id].cancel()
        del group.controllers[member_id]
        while not group.leaders:
            await trio.sleep(0.1)
        await trio.sleep(3)
        group.alive = {1, 2}
        await trio.sleep(20)
        assert group.leader is second
        assert group.broker_set == before

    play(Group("n0", "n1"), story)


@pytest.mark.parametrize("bound", ["MAX_BROKER_SET_BYTES", "MAX_STATE_BYTES"])
def test_registrations_end_at_the_bound_of_bytes_and_elections_do_not(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(group: Group) -> None:
        await group.begin(1, 2)
        monkeypatch.setattr(f"gateway.controller.controller.{bound}", len(group.broker_set.to_json()))
        group.scopes["n0"].cancel()
        await trio.sleep(0.01)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.run_member, "n0")
            await trio.sleep(1)
            before = group.broker_set
            with pytest.raises(RequestError, match=r"more than [0-9,]+ bytes") as refusal:
                await group.register(3)
            assert refusal.value.code == ResponseCode.CONTROLLER_INVALID_REQUEST
            longer = ControllerRegisterBroker(
                cluster_name="C", broker_name=NAME, broker_id=2, broker_address="longer-host:2"
            )
            decide = partial(rules.register_broker, request=longer, liveness=group.leader.liveness)
            with pytest.raises(RequestError, match=r"more than [0-9,]+ bytes"):
                await group.leader.change(NAME, decide)
            assert group.broker_set == before
            # Epochs get longer, and other replicas are in sync: that is never refused.
            monkeypatch.setattr(f"gateway.controller.controller.{bound}", 1)
            group.alive = {2}
            await trio.sleep(30)
            assert group.broker_set.master_id == 2
            clean = CleanBrokerData(cluster_name="C", broker_name=NAME, broker_controller_ids_to_clean="1")
            decide_removal = partial(rules.clean_brokers, request=clean, liveness=group.leader.liveness)
            await group.leader.change(NAME, decide_removal)
            assert list(group.broker_set.replicas) == [2]
            nursery.cancel_scope.cancel()

    play(Group("n0"), story)


def test_removed_replicas_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(group: Group) -> None:
        await group.register(1, 2)
        monkeypatch.setattr(
            "gateway.controller.controller.MAX_STATE_BYTES", len(group.broker_set.to_json()) + 10
        )
        with pytest.raises(RequestError, match=r"more than [0-9,]+ bytes"):
            await group.register(3)
        clean = CleanBrokerData(cluster_name="C", broker_name=NAME, is_clean_living_broker=True)
        decide = partial(rules.clean_brokers, request=clean, liveness=group.leader.liveness)
        await group.leader.change(NAME, decide)
        assert NAME not in group.store.entries
        await group.register(1, 2)

    play(Group("n0"), story)


def test_other_tasks_run_while_many_broker_sets_are_looked_at() -> None:
    async def story(group: Group) -> None:
        sets = {f"n{number}": BrokerSet("C", f"n{number}") for number in range(2_000)}
        group.leader._take_over({name: Entry(broker_set, 1, 100) for name, broker_set in sets.items()})
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count_turns)
            await trio.lowlevel.checkpoint()
            before = turns
            await group.leader.elect_missing_masters()
            assert 15 <= turns - before <= 60
            nursery.cancel_scope.cancel()

    play(Group("n0"), story)


def test_heartbeats_that_count_for_a_moment_do_not_keep_the_controller_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = {"remove_silent": 0, "elect_missing_masters": 0}
    remove_silent, elect_missing_masters = Controller.remove_silent, Controller.elect_missing_masters

    def count_removals(controller: Controller) -> None:
        counts["remove_silent"] += 1
        remove_silent(controller)

    async def count_scans(controller: Controller) -> None:
        counts["elect_missing_masters"] += 1
        await elect_missing_masters(controller)

    monkeypatch.setattr(Controller, "remove_silent", count_removals)
    monkeypatch.setattr(Controller, "elect_missing_masters", count_scans)

    async def story(group: Group) -> None:
        await group.begin(1)
        counts.update(dict.fromkeys(counts, 0))
        for _ in range(1_000):
            key = ReplicaKey("C", "stranger", 1)
            group.leader.record_heartbeat(key, Heartbeat("h:9", timeout_s=0.001), None)
            await trio.sleep(0.002)
        assert 0 < counts["remove_silent"] <= 21
        assert 0 < counts["elect_missing_masters"] <= 21

    play(Group("n0"), story)
