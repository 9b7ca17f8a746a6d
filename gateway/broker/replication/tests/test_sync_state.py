"""The rule of a master under a controller, alone and with a controller that delays, refuses and loses requests."""

import random
from dataclasses import replace

import pytest

from codec.constants import ResponseCode
from gateway.broker.replication.sync_state import (
    FIRST_CHECK_S,
    MAX_JOINING_S,
    MAX_PAUSE_S,
    MIN_PAUSE_S,
    OPEN_QUESTION_S,
    SyncStateRule,
    requires_sync_state,
)
from gateway.broker.replication.tests.test_in_sync import refused
from gateway.config.replication import ReplicationSettings

SETTINGS = ReplicationSettings(
    enable_controller_mode=True, all_ack_in_sync_state_set=True, ha_max_time_slave_not_catchup_ms=15_000
)
NOT_ALIVE = ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
ME = 1


class Master:
    """A log's end, a clock, and what the rule announced."""

    def __init__(self, members=(ME,), settings=SETTINGS, *, end=0, confirmed=0, epoch_start=0, **changes):
        self.end = end
        self.now_s = 100.0
        self.positions = []
        self.changes = 0
        self.rule = SyncStateRule(
            replace(settings, **changes),
            ME,
            lambda: self.end,
            members,
            1,
            epoch_start=epoch_start,
            confirmed=confirmed,
            now_s=lambda: self.now_s,
        )
        self.rule.add_listener(self.positions.append)
        self.rule.add_change_listener(self.note_change)

    def note_change(self):
        self.changes += 1

    def accept(self, members):
        self.rule.accepted(members, self.rule.epoch + 1)


# -- what is confirmed --------------------------------------------------------------------------------------------


def test_a_master_that_is_alone_confirms_what_it_stores():
    master = Master(end=50)
    assert (master.rule.confirm_offset, master.rule.status_now()) == (50, ResponseCode.SUCCESS)
    master.end = 80
    assert master.rule.confirm_offset == 80
    assert master.rule.replicated_position == 80


def test_the_slowest_member_decides():
    master = Master({1, 2, 3})
    two, three = master.rule.join("2", 0), master.rule.join("3", 0)
    master.end = 100
    assert master.rule.status_now() is None
    master.rule.acknowledge(two, 100)
    assert master.positions[-1] == 0
    master.rule.acknowledge(three, 60)
    assert master.positions[-1] == 60
    assert master.rule.confirm_offset == 60


def test_an_id_outside_of_the_set_is_not_waited_for():
    master = Master({1, 2}, end=50)
    two, three = master.rule.join("2", 50), master.rule.join("3", 0)
    master.end = 100
    master.rule.acknowledge(two, 100)
    master.rule.acknowledge(three, 10)
    assert master.rule.confirm_offset == 100


def test_the_confirm_offset_stands_still_while_a_member_has_no_connection():
    master = Master({1, 2, 3})
    two, three = master.rule.join("2", 0), master.rule.join("3", 0)
    master.end = 100
    master.rule.acknowledge(two, 70)
    master.rule.acknowledge(three, 60)
    master.rule.leave(three)
    master.rule.leave(three)
    master.rule.acknowledge(two, 100)
    assert master.rule.confirm_offset == 60
    three = master.rule.join("3", 60)
    master.rule.acknowledge(three, 90)
    assert master.rule.confirm_offset == 90


def test_the_confirm_offset_never_falls():
    master = Master({1, 2}, end=100, confirmed=80)
    two = master.rule.join("2", 100)
    assert master.rule.confirm_offset == 100
    master.rule.leave(two)
    again = master.rule.join("2", 20)
    assert master.rule.confirm_offset == 100
    master.end = 120
    master.rule.acknowledge(again, 110)
    assert master.rule.confirm_offset == 110


def test_what_was_confirmed_alone_stays_confirmed_when_another_is_required():
    master = Master(end=100)
    master.rule.join("2", 100)
    master.accept({1, 2})
    master.end = 150
    assert master.rule.confirm_offset == 100
    assert master.rule.status_now() is None


def test_an_older_connection_of_a_replica_counts_no_more():
    master = Master({1, 2}, end=100)
    older = master.rule.join("2", 0)
    newer = master.rule.join("2", 30)
    master.rule.acknowledge(older, 100)
    master.rule.leave(older)
    assert master.rule.confirm_offset == 30
    master.rule.acknowledge(newer, 60)
    assert master.rule.confirm_offset == 60


def test_without_all_ack_everything_is_confirmed():
    master = Master({1, 2}, end=100, all_ack_in_sync_state_set=False)
    assert master.rule.confirm_offset == 100
    master.rule.join("2", 10)
    assert master.rule.confirm_offset == 100


# -- answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("in_sync_replicas", "members", "status", "position"),
    [
        (1, {1, 2, 3}, ResponseCode.SUCCESS, 100),
        (2, {1}, None, 90),
        (3, {1, 2}, None, 40),
        (4, {1, 2, 3}, None, 0),
        (0, {1}, None, 40),  # unset: all who join a master that is alone
        (0, {1, 2}, None, 90),
    ],
)
def test_without_all_ack_a_number_of_replicas_is_waited_for(in_sync_replicas, members, status, position):
    master = Master(members, all_ack_in_sync_state_set=False, in_sync_replicas=in_sync_replicas)
    two, three = master.rule.join("2", 0), master.rule.join("3", 0)
    master.end = 100
    master.rule.acknowledge(two, 90)
    master.rule.acknowledge(three, 40)
    assert master.rule.status_now() == status
    assert master.rule.replicated_position == position


def test_without_a_number_a_master_that_is_alone_waits_for_nobody():
    master = Master({1}, end=100, all_ack_in_sync_state_set=False)
    assert (master.rule.status_now(), master.rule.replicated_position) == (ResponseCode.SUCCESS, 100)


def test_without_a_number_a_replica_that_joins_a_lonely_master_is_waited_for():
    """The controller may have it in the set already when the master dies, and elect it."""
    master = Master(end=100, all_ack_in_sync_state_set=False)
    assert master.rule.status_now() == ResponseCode.SUCCESS
    two = master.rule.join("2", 90)
    master.rule.acknowledge(two, 100)
    assert master.rule.wanted_set() == {1, 2}
    master.end = 120
    assert master.rule.status_now() is None
    assert master.rule.replicated_position == 100
    master.rule.acknowledge(two, 120)
    assert master.positions[-1] == 120
    master.rule.refused({1, 2}, NOT_ALIVE)
    master.end = 130
    assert (master.rule.status_now(), master.rule.replicated_position) == (ResponseCode.SUCCESS, 130)


def test_without_a_number_all_who_join_a_lonely_master_are_waited_for():
    """Any of them may be accepted first."""
    master = Master(end=100, all_ack_in_sync_state_set=False)
    replicas = [master.rule.join(name, 100) for name in ("2", "3")]
    master.end = 120
    master.rule.acknowledge(replicas[0], 120)
    assert master.positions[-1] == 100
    master.rule.acknowledge(replicas[1], 110)
    assert master.positions[-1] == 110
    master.accept({1, 2})
    assert master.positions[-1] == 120, "one of the set has it"


def test_without_a_number_only_replicas_of_the_set_count():
    """Nobody else can be elected."""
    master = Master({1, 2}, all_ack_in_sync_state_set=False)
    two, three = master.rule.join("2", 0), master.rule.join("3", 0)
    master.end = 100
    master.rule.acknowledge(three, 100)
    assert (master.rule.status_now(), master.rule.replicated_position) == (None, 0)
    master.rule.acknowledge(two, 80)
    assert master.rule.replicated_position == 80


def test_a_set_smaller_than_the_minimum_refuses_messages():
    master = Master({1, 2}, min_in_sync_replicas=2)
    assert not refused(master.rule)
    master.accept({1})
    assert refused(master.rule)
    two = master.rule.join("2", 0)
    assert refused(master.rule)
    assert master.rule.wanted_set() == {1, 2}
    assert not refused(master.rule)  # as in the official broker, where the set asked for counts
    master.rule.leave(two)
    assert refused(master.rule), "the master would keep the only copy"
    master.rule.join("2", 0)
    assert not refused(master.rule)
    master.rule.refused({1, 2}, NOT_ALIVE)
    assert refused(master.rule)


def test_answers_need_the_rule_unless_nothing_is_waited_for():
    assert requires_sync_state(SETTINGS)
    off = replace(SETTINGS, all_ack_in_sync_state_set=False)
    assert requires_sync_state(off)
    assert not requires_sync_state(replace(off, in_sync_replicas=1))
    assert requires_sync_state(replace(off, in_sync_replicas=1, min_in_sync_replicas=2))


# -- leaving ------------------------------------------------------------------------------------------------------


def test_a_member_whose_connection_closes_leaves_at_once():
    master = Master({1, 2, 3})
    master.now_s += FIRST_CHECK_S
    two, _ = master.rule.join("2", 0), master.rule.join("3", 0)
    assert master.rule.wanted_set() is None
    before = master.changes
    master.rule.leave(two)
    assert master.changes == before + 1
    assert master.rule.wanted_set() == {1, 3}
    master.end = 10
    assert master.rule.status_now() is None
    assert master.rule.required == {1, 2, 3}
    master.accept({1, 3})
    assert master.rule.required == {1, 3}


def test_the_members_of_a_new_master_have_time_to_connect():
    master = Master({1, 2, 3})
    master.rule.join("2", 0)
    assert master.rule.wanted_set() is None
    master.now_s += FIRST_CHECK_S
    assert master.rule.wanted_set() == {1, 2}


def test_a_member_that_does_not_keep_up_leaves():
    master = Master({1, 2, 3})
    two, three = master.rule.join("2", 0), master.rule.join("3", 0)
    for second in range(20):
        master.now_s += 1
        master.end += 100
        master.rule.acknowledge(two, master.end - 100)  # always what was the end at its report before
        master.rule.acknowledge(three, 10)
        expected = None if second < 15 else {1, 2}
        assert (second, master.rule.wanted_set()) == (second, expected)
    assert master.rule.caught_up(2)
    assert not master.rule.caught_up(3)


def test_a_member_that_falls_silent_leaves():
    master = Master({1, 2}, end=50)
    two = master.rule.join("2", 50)
    master.now_s += 10
    master.rule.acknowledge(two, 50)
    master.now_s += 15
    assert master.rule.wanted_set() is None
    master.now_s += 1
    assert master.rule.wanted_set() == {1}


def test_a_member_that_lost_what_was_confirmed_leaves_unless_it_gets_it_soon():
    master = Master({1, 2}, end=50)
    two = master.rule.join("2", 50)
    master.now_s += 10
    master.rule.leave(two)
    again = master.rule.join("2", 10)
    assert master.rule.wanted_set() is None
    master.now_s += FIRST_CHECK_S
    assert master.rule.wanted_set() == {1}
    master.rule.acknowledge(again, 50)
    assert master.rule.wanted_set() is None


def test_a_refused_removal_is_followed_by_one_of_all_others():
    master = Master({1, 2, 3})
    two, _ = master.rule.join("2", 0), master.rule.join("3", 0)
    master.now_s += FIRST_CHECK_S
    master.rule.leave(two)
    assert master.rule.wanted_set() == {1, 3}
    master.rule.refused({1, 3}, NOT_ALIVE)  # 3 is connected here, but not to the controller
    assert master.rule.required == {1, 2, 3}
    assert master.rule.wanted_set() == {1}
    master.accept({1})
    assert master.rule.required == {1}


# -- joining ------------------------------------------------------------------------------------------------------


def test_a_replica_that_has_everything_is_asked_for():
    master = Master(end=50)
    three = master.rule.join("3", 20)
    assert (master.rule.wanted_set(), master.changes) == (None, 0)
    master.rule.acknowledge(three, 50)
    assert master.changes == 1
    assert master.rule.wanted_set() == {1, 3}
    assert master.rule.required == {1, 3}
    master.accept({1, 3})
    assert master.rule.members == {1, 3}
    assert master.rule.wanted_set() is None


def test_a_replica_before_the_start_of_the_epoch_is_not_asked_for():
    master = Master({1, 2}, end=100, epoch_start=90)
    master.rule.join("2", 40)
    three = master.rule.join("3", 80)
    master.rule.acknowledge(three, 80)
    assert master.rule.wanted_set() is None
    master.rule.acknowledge(three, 100)
    assert master.rule.wanted_set() == {1, 3} | {2}


def test_under_load_the_master_waits_a_moment_for_a_replica_that_is_near():
    master = Master(end=1000)
    two = master.rule.join("2", 0)
    master.end = 1100
    master.rule.acknowledge(two, 1000)  # what was the end at its report before
    assert master.rule.required == {1, 2}
    assert master.rule.confirm_offset == 1100  # confirmed when it was alone
    assert master.rule.wanted_set() is None
    master.end = 1200
    assert master.rule.status_now() is None
    master.rule.acknowledge(two, 1150)
    assert master.rule.confirm_offset == 1150
    assert master.rule.wanted_set() == {1, 2}


def test_a_replica_that_does_not_come_closer_is_not_waited_for_long():
    master = Master(end=1000)
    two = master.rule.join("2", 0)
    master.end = 2000
    master.rule.acknowledge(two, 1000)
    assert master.rule.status_now() is None
    master.now_s += MAX_JOINING_S
    assert master.rule.wanted_set() is None
    assert master.rule.required == {1}
    assert master.positions[-1] == 2000


def test_a_joining_replica_that_leaves_is_forgotten():
    master = Master(end=1000)
    two = master.rule.join("2", 1000)
    master.end = 2000
    master.rule.leave(two)
    assert (master.rule.required, master.positions[-1]) == ({1}, 2000)
    assert master.rule.wanted_set() is None


# -- refusals and requests without answer ---------------------------------------------------------------------------


def test_a_refused_replica_holds_up_no_send():
    master = Master(end=10)
    three = master.rule.join("3", 10)
    pause_s, refusals = MIN_PAUSE_S, 0
    for _ in range(300):
        master.now_s += 1
        master.end += 10
        master.rule.acknowledge(three, master.end)
        wanted = master.rule.wanted_set()
        if wanted is not None:
            assert wanted == {1, 3}
            master.rule.refused(wanted, NOT_ALIVE)
            refusals += 1
            pause_s = min(MAX_PAUSE_S, pause_s * 2)
        master.end += 10
        assert master.rule.required == {1}
        assert master.rule.status_now() == ResponseCode.SUCCESS
        assert master.rule.confirm_offset == master.end
    assert 5 <= refusals <= 10
    # Once it is accepted, it begins anew.
    master.accept({1, 3})
    assert master.rule.required == {1, 3}


def test_a_refused_replica_does_not_keep_another_one_out():
    master = Master(end=10)
    two, three = master.rule.join("2", 10), master.rule.join("3", 10)
    asked = []
    for _ in range(12):
        master.now_s += 1
        master.rule.acknowledge(two, 10)
        master.rule.acknowledge(three, 10)
        wanted = master.rule.wanted_set()
        if wanted is not None:
            asked.append(wanted)
            if 2 in wanted - master.rule.members:
                master.rule.refused(wanted, ResponseCode.CONTROLLER_INVALID_REPLICAS)
            else:
                master.accept(wanted)
    assert {1, 3} in asked
    assert master.rule.members == {1, 3}


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,  # equal: it was accepted already
        ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        ResponseCode.CONTROLLER_INVALID_MASTER,
        ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
        ResponseCode.CONTROLLER_NOT_LEADER,
        ResponseCode.SYSTEM_ERROR,
    ],
)
def test_a_refusal_that_may_mean_another_set_releases_nobody(code):
    master = Master(end=10)
    master.rule.join("2", 10)
    assert master.rule.wanted_set() == {1, 2}
    master.rule.refused({1, 2}, code)
    master.end = 20
    assert (master.rule.required, master.rule.status_now()) == ({1, 2}, None)
    assert master.rule.wanted_set() == {1, 2}
    master.rule.accepted({1, 2}, 2)
    assert master.rule.required == {1, 2}


def test_a_request_without_answer_may_have_been_accepted():
    master = Master(end=10)
    two = master.rule.join("2", 10)
    assert master.rule.wanted_set() == {1, 2}
    master.rule.leave(two)
    master.end = 20
    assert master.rule.wanted_set() is None
    assert (master.rule.required, master.rule.confirm_offset) == ({1, 2}, 10)
    # The controller still names the set without it: the request may be under way.
    master.rule.accepted({1}, 1)
    assert master.rule.confirm_offset == 10
    master.now_s += OPEN_QUESTION_S
    master.rule.accepted({1}, 1)
    assert (master.rule.required, master.rule.confirm_offset) == ({1}, 20)


def test_a_newer_set_settles_a_request_without_answer():
    master = Master(end=10)
    two = master.rule.join("2", 10)
    assert master.rule.wanted_set() == {1, 2}
    assert master.rule.wanted_set() == {1, 2}
    master.rule.accepted({1, 2}, 2)
    master.rule.leave(two)
    master.end = 20
    master.rule.accepted({1}, 3)
    assert (master.rule.required, master.positions[-1]) == ({1}, 20)


def test_an_older_set_is_ignored():
    master = Master({1, 2})
    master.rule.accepted({1, 3}, 5)
    master.rule.accepted({1, 2}, 5)
    master.rule.accepted({1, 2}, 4)
    assert (master.rule.members, master.rule.epoch) == ({1, 3}, 5)


# -- against a model ------------------------------------------------------------------------------------------------


class Controller:
    """Accepts and refuses as the official one; requests and answers may be late or lost."""

    def __init__(self, random_source):
        self.members, self.epoch = frozenset({ME}), 1
        self.unknown = {3} if random_source.random() < 0.5 else set()
        self.under_way = []  # requests with the time at which they arrive

    def handle(self, asked, epoch):
        if asked == self.members:
            return ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
        if epoch != self.epoch:
            return ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
        if asked & self.unknown:
            return NOT_ALIVE
        self.members, self.epoch = asked, epoch + 1
        return ResponseCode.SUCCESS


class World:
    """A master, three replicas whose logs only grow, and a controller. Checks the law after each step."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.master = Master()
        self.controller = Controller(self.random)
        self.log_ends = {2: 0, 3: 0, 4: 0}
        self.connections = {}
        self.confirmed = 0

    def check(self):
        confirm_offset = self.master.rule.confirm_offset
        assert confirm_offset >= self.confirmed
        self.confirmed = confirm_offset
        for broker_id in self.controller.members - {ME}:
            assert self.log_ends[broker_id] >= confirm_offset, (
                "a replica that may be elected lacks confirmed bytes"
            )
        assert self.controller.members <= self.master.rule.required

    def step(self):
        kind = self.random.choice(
            ("append", "copy", "copy", "copy", "connect", "close", "time", "ask", "poll")
        )
        getattr(self, kind)()
        self.deliver()
        self.check()

    def append(self):
        self.master.end += self.random.randint(1, 30)

    def copy(self):
        for broker_id, connection in self.connections.items():
            if self.random.random() < 0.7:
                missing = self.master.end - self.log_ends[broker_id]
                self.log_ends[broker_id] += self.random.choice((missing, missing, missing // 2, 0))
                self.master.rule.acknowledge(connection, self.log_ends[broker_id])

    def connect(self):
        broker_id = self.random.choice(list(self.log_ends))
        # A replica of this project first compares the end of its log.
        position = self.random.choice((self.log_ends[broker_id], max(0, self.log_ends[broker_id] - 20)))
        self.connections[broker_id] = self.master.rule.join(str(broker_id), position)

    def close(self):
        if self.connections:
            broker_id = self.random.choice(list(self.connections))
            self.master.rule.leave(self.connections.pop(broker_id))

    def time(self):
        self.master.now_s += self.random.choice((0.1, 0.5, 2))

    def ask(self):
        rule = self.master.rule
        wanted = rule.wanted_set()
        if wanted is None:
            return
        fate = self.random.random()
        if fate < 0.15:
            return  # lost
        if fate < 0.3:  # arrives late, after the master has given up waiting for the answer
            arrival_s = self.master.now_s + self.random.uniform(0, OPEN_QUESTION_S - 2.5)
            self.controller.under_way.append((arrival_s, wanted, rule.epoch))
            return
        code = self.controller.handle(wanted, rule.epoch)
        if fate < 0.45:
            return  # its answer is lost
        if code == ResponseCode.SUCCESS:
            rule.accepted(self.controller.members, self.controller.epoch)
        else:
            rule.refused(wanted, code)

    def poll(self):
        self.master.rule.accepted(self.controller.members, self.controller.epoch)

    def deliver(self):
        late, self.controller.under_way = self.controller.under_way, []
        for arrival_s, asked, epoch in late:
            if arrival_s <= self.master.now_s:
                self.controller.handle(asked, epoch)
            else:
                self.controller.under_way.append((arrival_s, asked, epoch))

    def settle(self):
        """Let everything work, and return the seconds until what is appended is confirmed within one step."""
        for broker_id in list(self.log_ends):
            if broker_id not in self.connections:
                self.connections[broker_id] = self.master.rule.join(str(broker_id), self.log_ends[broker_id])
        for second in range(120):
            self.master.now_s += 1
            self.deliver()
            self.master.end += 10
            for broker_id, connection in self.connections.items():
                self.log_ends[broker_id] = self.master.end
                self.master.rule.acknowledge(connection, self.master.end)
            wanted = self.master.rule.wanted_set()
            if wanted is not None:
                code = self.controller.handle(wanted, self.master.rule.epoch)
                if code == ResponseCode.SUCCESS:
                    self.master.rule.accepted(self.controller.members, self.controller.epoch)
                else:
                    self.master.rule.refused(wanted, code)
            self.poll()
            self.check()
            expected = {1, 2, 3, 4} - self.controller.unknown
            if self.controller.members == expected and self.master.rule.confirm_offset == self.master.end:
                return second
        raise AssertionError("replicas that work do not get into the set")


@pytest.mark.parametrize("seed", range(200))
def test_no_replica_that_can_be_elected_lacks_what_was_confirmed(seed):
    world = World(seed)
    for _ in range(300):
        world.step()
    assert world.settle() <= 90
