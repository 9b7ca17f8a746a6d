"""The state machine: histories of requests and failures never break what an election promises.

`acceptance/test_controller_answers.py` compares codes and remarks with the official controller's.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from codec.constants import ResponseCode
from gateway.controller import rules
from gateway.controller.broker_set import BrokerSet
from gateway.controller.election import key_of
from gateway.controller.liveness import Heartbeat, Liveness, ReplicaKey
from remoting.bodies.ha import SyncStateSet
from remoting.errors import RequestError
from remoting.requests.controller import (
    CleanBrokerData,
    ControllerAlterSyncStateSet,
    ControllerApplyBrokerId,
    ControllerElectMaster,
    ControllerGetNextBrokerId,
    ControllerRegisterBroker,
)

IDS = st.integers(1, 4)


class Clock:
    """A clock that tests move."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


def elect(broker_id: int, *, designate: bool = False) -> ControllerElectMaster:
    return ControllerElectMaster(
        cluster_name="C", broker_name="a", broker_id=broker_id, designate_elect=designate
    )


def apply_id(broker_id: int) -> ControllerApplyBrokerId:
    return ControllerApplyBrokerId(
        cluster_name="C",
        broker_name="a",
        applied_broker_id=broker_id,
        register_check_code=f"h:{broker_id};1",
    )


def set_of(*broker_ids: int) -> BrokerSet:
    broker_set: BrokerSet | None = None
    for broker_id in broker_ids:
        broker_set = rules.apply_broker_id(broker_set, apply_id(broker_id)).broker_set
    assert broker_set is not None
    return broker_set


class Histories(RuleBasedStateMachine):
    """Everything that brokers, operators and time can do to one broker set."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.liveness = Liveness(self.clock.monotonic)
        self.broker_set: BrokerSet | None = None
        self.masters: dict[int, int | None] = {}
        """The master of each epoch since the set was created."""

    def take(self, decision: rules.Ruling) -> None:  # type: ignore[type-arg]
        before, after = self.broker_set, decision.broker_set
        self.broker_set = after
        if after is None:
            self.masters.clear()
        elif before is not None:
            assert after.master_epoch >= before.master_epoch
            assert after.sync_set_epoch >= before.sync_set_epoch
            assert after.sync_set == before.sync_set or after.sync_set_epoch > before.sync_set_epoch

    @initialize(is_running=st.booleans())
    def begin(self, is_running: bool) -> None:
        """Begin with nothing, or with a master and two other replicas, which are alive."""
        for broker_id in (1, 2, 3) if is_running else ():
            self.apply(broker_id)
            self.heartbeat(broker_id, 0, 0)
        if is_running:
            self.elect(1, designate=False, unclean=False)

    @rule(broker_id=IDS)
    def apply(self, broker_id: int) -> None:
        self.take(rules.apply_broker_id(self.broker_set, apply_id(broker_id)))

    @rule(broker_id=IDS)
    def register(self, broker_id: int) -> None:
        request = ControllerRegisterBroker(
            cluster_name="C", broker_name="a", broker_id=broker_id, broker_address=f"h:{broker_id}"
        )
        self.take(rules.register_broker(self.broker_set, request, self.liveness))

    @rule(broker_id=IDS, epoch=st.integers(0, 3), max_offset=st.integers(0, 3))
    def heartbeat(self, broker_id: int, epoch: int, max_offset: int) -> None:
        heartbeat = Heartbeat(f"h:{broker_id}", epoch=epoch, max_offset=max_offset)
        self.liveness.record(ReplicaKey("C", "a", broker_id), heartbeat)

    @rule(seconds=st.sampled_from((1, 6, 11)))
    def wait(self, seconds: int) -> None:
        self.clock.now_s += seconds

    @rule()
    def restart_controller(self) -> None:
        self.liveness = Liveness(self.clock.monotonic)

    @rule(broker_ids=st.frozensets(IDS), is_current=st.booleans())
    def alter(self, broker_ids: frozenset[int], is_current: bool) -> None:
        current = self.broker_set
        if current is None:
            return
        request = ControllerAlterSyncStateSet(
            broker_name="a",
            master_broker_id=current.master_id,
            master_epoch=current.master_epoch - (not is_current),
            data=SyncStateSet(sync_state_set=list(broker_ids), sync_state_set_epoch=current.sync_set_epoch),
        )
        decision = rules.alter_sync_set(current, request, self.liveness)
        if decision.answer.code == 0:
            assert is_current
            assert current.master_id in broker_ids
            assert all(self.liveness.is_alive(key_of(current, broker_id)) for broker_id in broker_ids)
        self.take(decision)

    @rule(
        broker_id=st.sampled_from((rules.NO_BROKER, 1, 2, 3, 4)),
        designate=st.booleans(),
        unclean=st.booleans(),
    )
    def elect(self, broker_id: int, designate: bool, unclean: bool) -> None:
        before = self.broker_set
        decision = rules.elect_master(
            before, elect(broker_id, designate=designate), self.liveness, may_be_unclean=unclean
        )
        after = decision.broker_set
        if before is not None and after is not before:
            assert after is not None
            assert after.master_epoch == before.master_epoch + 1
            assert after.master_epoch not in self.masters, "one epoch, one master"
            self.masters[after.master_epoch] = after.master_id
            if after.master_id is not None:
                assert decision.answer.code == 0
                assert after.sync_set == {after.master_id}
                if before.had_master:
                    assert self.liveness.is_alive(key_of(before, after.master_id))
                    assert unclean or after.master_id in before.sync_set, "elected out of sync"
                    for broker_id in before.sync_set:
                        assert not self.liveness.is_unheard(key_of(before, broker_id))
        self.take(decision)

    @rule(broker_id=IDS, living=st.booleans())
    def clean(self, broker_id: int, living: bool) -> None:
        request = CleanBrokerData(
            cluster_name="C",
            broker_name="a",
            broker_controller_ids_to_clean=str(broker_id),
            is_clean_living_broker=living,
        )
        before = self.broker_set
        decision = rules.clean_brokers(before, request, self.liveness)
        if before is not None and decision.broker_set is not None and before.master_id == broker_id:
            self.masters[decision.broker_set.master_epoch] = decision.broker_set.master_id
        self.take(decision)

    @invariant()
    def is_consistent(self) -> None:
        broker_set = self.broker_set
        if broker_set is None:
            return
        assert broker_set.replicas
        assert broker_set.sync_set <= broker_set.replicas.keys()
        assert broker_set.master_id is None or broker_set.master_id in broker_set.replicas
        assert broker_set.master_id is None or broker_set.master_id in broker_set.sync_set
        assert broker_set.next_broker_id not in broker_set.replicas
        assert BrokerSet.from_json(broker_set.to_json()) == broker_set


class TestHistories(Histories.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(
        max_examples=150, stateful_step_count=40, deadline=None, derandomize=True, database=None
    )


def two_in_sync(clock: Clock) -> tuple[BrokerSet, Liveness]:
    broker_set = set_of(1, 2, 3).with_master(1).with_sync_set((1, 2))
    liveness = Liveness(clock.monotonic)
    for broker_id in (1, 2, 3):
        liveness.record(key_of(broker_set, broker_id), Heartbeat("h:1"))
    return broker_set, liveness


def test_the_first_broker_that_asks_is_the_first_master() -> None:
    broker_set = set_of(1, 2)
    decision = rules.elect_master(broker_set, elect(2), Liveness(lambda: 0.0), may_be_unclean=False)
    assert decision.broker_set is not None
    assert (decision.broker_set.master_id, decision.broker_set.master_epoch) == (2, 1)
    assert decision.answer.data is not None
    group = decision.answer.data.broker_member_group
    assert group is not None
    assert group.broker_addrs == {1: "h:1", 2: "h:2"}


def test_no_election_before_a_replica_in_sync_had_the_time_for_a_heartbeat() -> None:
    clock = Clock()
    broker_set, _ = two_in_sync(clock)
    liveness = Liveness(clock.monotonic)
    liveness.record(key_of(broker_set, 2), Heartbeat("h:2"))
    assert not rules.needs_election(broker_set, liveness, may_be_unclean=True)
    for broker_id in (2, rules.NO_BROKER):
        decision = rules.elect_master(broker_set, elect(broker_id), liveness, may_be_unclean=True)
        assert decision.answer.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        assert decision.broker_set is broker_set
    clock.now_s = 10
    assert rules.needs_election(broker_set, liveness, may_be_unclean=False)
    decision = rules.elect_master(broker_set, elect(rules.NO_BROKER), liveness, may_be_unclean=False)
    assert decision.broker_set is not None
    assert decision.broker_set.master_id == 2


def register(broker_set: BrokerSet, broker_id: int, liveness: Liveness) -> rules.Ruling:  # type: ignore[type-arg]
    request = ControllerRegisterBroker(
        cluster_name="C", broker_name="a", broker_id=broker_id, broker_address=f"h:{broker_id}"
    )
    return rules.register_broker(broker_set, request, liveness)


def test_a_master_that_was_started_again_is_not_master_before_the_others_are_heard() -> None:
    """The power failed at the master, which lost the end of its log, and at the controller."""
    clock = Clock()
    broker_set, _ = two_in_sync(clock)
    liveness = Liveness(clock.monotonic)
    assert register(broker_set, 1, liveness).answer.master_epoch is None
    liveness.record(key_of(broker_set, 1), Heartbeat("h:1", epoch=1, max_offset=50))
    # Nobody is named as the master, or it would go on in its old epoch.
    info = rules.replica_info(broker_set, liveness)
    assert (info.master_broker_id, info.master_address, info.master_epoch) == (None, None, 1)
    for broker_id in (1, 3, rules.NO_BROKER):
        decision = rules.elect_master(broker_set, elect(broker_id), liveness, may_be_unclean=False)
        assert decision.answer.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        assert decision.broker_set is broker_set
    # It registers again, since nobody was elected.
    assert register(broker_set, 1, liveness).answer.master_epoch is None
    assert not rules.has_live_master(broker_set, liveness)
    liveness.record(key_of(broker_set, 2), Heartbeat("h:2", epoch=1, max_offset=60))
    assert rules.needs_election(broker_set, liveness, may_be_unclean=False)
    decision = rules.elect_master(broker_set, elect(1), liveness, may_be_unclean=False)
    assert decision.broker_set is not None
    assert (decision.broker_set.master_id, decision.broker_set.master_epoch) == (2, 2)


def test_a_master_that_was_started_again_leads_in_a_new_epoch_if_its_log_is_the_longest() -> None:
    clock = Clock()
    broker_set, liveness = two_in_sync(clock)
    clock.now_s = 10.5  # dead, and nobody was elected yet
    assert register(broker_set, 1, liveness).answer.master_epoch is None
    for broker_id, max_offset in ((1, 60), (2, 50)):
        liveness.record(key_of(broker_set, broker_id), Heartbeat("h:1", epoch=1, max_offset=max_offset))
    decision = rules.elect_master(broker_set, elect(1), liveness, may_be_unclean=False)
    elected = decision.broker_set
    assert elected is not None
    assert (decision.answer.code, decision.answer.master_epoch) == (0, 2)
    assert (elected.master_id, elected.master_epoch, elected.sync_set) == (1, 2, {1})
    # From then on it is a master like any other.
    info = rules.replica_info(elected, liveness)
    assert (info.master_broker_id, info.master_address, info.master_epoch) == (1, "h:1", 2)
    assert rules.has_live_master(elected, liveness)
    assert register(elected, 2, liveness).answer.master_epoch == 2
    decision = rules.elect_master(elected, elect(2), liveness, may_be_unclean=False)
    assert decision.answer.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST


def test_the_controller_notes_a_lost_master_once_and_elects_when_a_candidate_returns() -> None:
    clock = Clock()
    broker_set, liveness = two_in_sync(clock)
    clock.now_s = 20
    liveness.record(key_of(broker_set, 3), Heartbeat("h:3"))
    assert rules.needs_election(broker_set, liveness, may_be_unclean=False)
    decision = rules.elect_master(broker_set, elect(rules.NO_BROKER), liveness, may_be_unclean=False)
    lost = decision.broker_set
    assert lost is not None
    assert decision.answer.code == ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE
    assert (lost.master_id, lost.master_epoch, lost.sync_set) == (None, 2, frozenset((1, 2)))
    assert not rules.needs_election(lost, liveness, may_be_unclean=False)
    assert rules.needs_election(lost, liveness, may_be_unclean=True)
    liveness.record(key_of(broker_set, 2), Heartbeat("h:2"))
    assert rules.needs_election(lost, liveness, may_be_unclean=False)


@pytest.mark.parametrize("silent_s", [0, 20])
def test_an_election_that_names_nobody_takes_the_master_away_from_nobody(silent_s: int) -> None:
    clock = Clock()
    broker_set, liveness = two_in_sync(clock)
    clock.now_s = silent_s
    request = elect(rules.NO_BROKER, designate=True)
    decision = rules.elect_master(broker_set, request, liveness, may_be_unclean=False)
    # The code is the official one.
    assert decision.answer.code == ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE
    assert decision.broker_set is broker_set


def test_a_broker_set_without_live_brokers_needs_no_election() -> None:
    clock = Clock()
    broker_set, liveness = two_in_sync(clock)
    clock.now_s = 20
    assert not rules.needs_election(broker_set, liveness, may_be_unclean=True)
    assert not rules.needs_election(set_of(1), liveness, may_be_unclean=True)


def test_a_first_election_does_not_make_an_unknown_id_the_master() -> None:
    decision = rules.elect_master(set_of(1), elect(7), Liveness(lambda: 0.0), may_be_unclean=False)
    assert decision.answer.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED


def test_an_election_without_candidates_leaves_a_set_that_never_had_a_master_as_it_is() -> None:
    broker_set = set_of(1)
    decision = rules.elect_master(
        broker_set, elect(rules.NO_BROKER), Liveness(lambda: 0.0), may_be_unclean=False
    )
    assert decision.answer.code == ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE
    assert decision.broker_set is broker_set
    decision = rules.elect_master(broker_set, elect(1), Liveness(lambda: 0.0), may_be_unclean=False)
    assert decision.answer.code == 0


def test_removing_all_replicas_in_sync_keeps_the_epoch() -> None:
    clock = Clock()
    broker_set, liveness = two_in_sync(clock)
    clock.now_s = 20
    request = CleanBrokerData(cluster_name="C", broker_name="a", broker_controller_ids_to_clean="1;2")
    rest = rules.clean_brokers(broker_set, request, liveness).broker_set
    assert rest is not None
    assert (rest.master_epoch, rest.had_master, list(rest.replicas)) == (2, True, [3])


def test_a_broker_that_was_offered_the_id_of_a_removed_replica_gets_another_one() -> None:
    request = CleanBrokerData(cluster_name="C", broker_name="a", broker_controller_ids_to_clean="2")
    rest = rules.clean_brokers(set_of(1, 2), request, Liveness(Clock().monotonic)).broker_set
    assert rest is not None
    late = apply_id(2)
    late.register_check_code = "other:1;9"
    for application in (late, apply_id(2)):
        decision = rules.apply_broker_id(rest, application)
        assert decision.answer.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
        assert decision.broker_set is rest
    assert rules.next_broker_id(rest, ControllerGetNextBrokerId(broker_name="a")).next_broker_id == 3
    assert rules.apply_broker_id(rest, apply_id(3)).answer.code == 0


def test_what_a_stranger_can_store_is_bounded() -> None:
    broker_set = set_of(*range(1, rules.MAX_REPLICAS + 1))
    decision = rules.apply_broker_id(broker_set, apply_id(100))
    assert decision.answer.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    assert decision.broker_set is broker_set
    request = apply_id(1)
    request.register_check_code = "x" * (rules.MAX_FIELD_CHARS + 1)
    with pytest.raises(RequestError, match="registerCheckCode has more than 256"):
        rules.apply_broker_id(broker_set, request)


NOT_ADDRESSES = ("", "h", "h:", ":1", "h:0", "h:65536", "h:x", "a..b:1", "x" * 64 + ":1", "[]:1", "a\0b:1")


@pytest.mark.parametrize("address", NOT_ADDRESSES)
def test_an_address_at_which_no_broker_can_be_reached_is_refused(address: str) -> None:
    request = apply_id(1)
    request.register_check_code = f"{address};1"
    with pytest.raises(RequestError, match="registerCheckCode does not begin with host:port") as refusal:
        rules.apply_broker_id(None, request)
    assert refusal.value.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    registration = ControllerRegisterBroker(
        cluster_name="C", broker_name="a", broker_id=1, broker_address=address
    )
    with pytest.raises(RequestError, match="brokerAddress is not host:port") as refusal:
        rules.register_broker(set_of(1), registration, Liveness(lambda: 0.0))
    assert refusal.value.code == ResponseCode.CONTROLLER_INVALID_REQUEST


@pytest.mark.parametrize("address", ["h:1", "10.0.0.1:65535", "[::1]:10911", "broker_0.brokers.ns.svc:1"])
def test_an_address_is_a_host_name_or_a_number_with_a_port(address: str) -> None:
    registration = ControllerRegisterBroker(
        cluster_name="C", broker_name="a", broker_id=1, broker_address=address
    )
    changed = rules.register_broker(set_of(1), registration, Liveness(lambda: 0.0)).broker_set
    assert changed is not None
    assert changed.address_of(1) == address


def test_text_that_cannot_be_stored_is_refused() -> None:
    request = apply_id(1)
    request.broker_name = "\ud800"
    with pytest.raises(RequestError, match="brokerName is not valid Unicode") as refusal:
        rules.apply_broker_id(None, request)
    assert refusal.value.code == ResponseCode.CONTROLLER_INVALID_REQUEST


def test_a_missing_field_is_named() -> None:
    with pytest.raises(RequestError, match="registerCheckCode"):
        rules.apply_broker_id(
            None, ControllerApplyBrokerId(cluster_name="C", broker_name="a", applied_broker_id=1)
        )
