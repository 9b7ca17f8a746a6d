"""The in-sync rule, alone, against a plain model, and in a broker whose slaves the test plays."""

import random
from dataclasses import replace

import pytest
import trio

from codec.constants import ResponseCode
from gateway.broker.replication.in_sync import InSyncRule, requires_replicas
from gateway.config.replication import ReplicationSettings
from gateway.tests.cluster import bodies, message, pull, settle, simulated
from remoting.errors import RequestError

NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE
SETTINGS = ReplicationSettings(
    broker_role="SYNC_MASTER", slave_fallbehind_max_bytes=100, max_gap_not_in_sync_bytes=100
)
ADAPTING = replace(SETTINGS, enable_slave_acting_master=True, enable_auto_in_sync_replicas=True)


class Master:
    """The end of a log, and the positions that the rule announced."""

    def __init__(self, settings=SETTINGS, **changes):
        self.end = 0
        self.announced = []
        self.rule = InSyncRule(replace(settings, **changes), lambda: self.end)
        self.rule.add_listener(self.announced.append)


def refused(rule):
    try:
        rule.check_append()
    except RequestError as error:
        return (error.code, error.remark) == (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")
    return False


# -- unset: one slave ---------------------------------------------------------------------------------------------


def test_without_a_slave_nobody_waits():
    master = Master()
    assert master.rule.status_now() == NOT_AVAILABLE
    slave = master.rule.join("10.0.0.2", 0)
    assert master.rule.status_now() is None
    master.rule.leave(slave)
    assert master.rule.status_now() == NOT_AVAILABLE


@pytest.mark.parametrize(("end", "status"), [(99, None), (100, NOT_AVAILABLE), (5000, NOT_AVAILABLE)])
def test_a_slave_that_is_too_far_behind_is_not_waited_for(end, status):
    master = Master()
    slave = master.rule.join("10.0.0.2", 0)
    master.end = end
    assert master.rule.status_now() == status
    master.rule.acknowledge(slave, end)
    assert master.rule.status_now() is None
    assert master.announced[-1] == end


def test_the_slave_that_is_least_behind_decides():
    master = Master()
    far, near = master.rule.join("10.0.0.2", 0), master.rule.join("10.0.0.3", 150)
    master.end = 200
    assert master.rule.status_now() is None
    master.rule.leave(near)
    assert master.rule.status_now() == NOT_AVAILABLE
    master.rule.acknowledge(far, 101)
    assert master.rule.status_now() is None


def test_what_a_slave_had_when_it_came_is_not_acknowledged():
    master = Master()
    master.end = 50
    slave = master.rule.join("10.0.0.2", 50)
    assert (master.announced, master.rule.status_now()) == ([0], None)
    master.rule.acknowledge(slave, 50)
    assert master.announced[-1] == 50


# -- how slaves count ---------------------------------------------------------------------------------------------


def test_a_slave_counts_once_and_with_its_newest_connection():
    master = Master(in_sync_replicas=3)
    older = master.rule.join("10.0.0.2", 0)
    newer = master.rule.join("10.0.0.2", 0)
    for connection in (older, newer):
        master.rule.acknowledge(connection, 40)
    assert master.rule.replicated_position == 0, "one slave is not two"
    other = master.rule.join("10.0.0.3", 0)
    master.rule.acknowledge(other, 30)
    assert master.rule.replicated_position == 30
    master.rule.acknowledge(older, 90)
    master.rule.leave(older)
    assert (master.rule.replicated_position, master.rule.in_sync_count) == (30, 3)
    master.rule.leave(newer)
    master.rule.leave(newer)
    assert (master.rule.replicated_position, master.rule.in_sync_count) == (0, 2)


def test_a_slave_with_two_addresses_counts_once_if_one_is_registered():
    master = Master(in_sync_replicas=3)
    first, second = master.rule.join("10.0.0.2:5", 0), master.rule.join("10.7.0.2:6", 0)
    master.rule.acknowledge(first, 40)
    master.rule.acknowledge(second, 50)
    assert master.rule.replicated_position == 40, "who is registered is not known yet"
    master.rule.alive_replicas = 2
    assert (master.rule.replicated_position, master.rule.in_sync_count) == (0, 2)
    third = master.rule.join("10.0.0.3:7", 0)
    master.rule.alive_replicas = 3
    assert (master.rule.replicated_position, master.rule.in_sync_count) == (0, 3), (
        "one of the three is a double"
    )
    master.rule.acknowledge(third, 30)
    assert master.rule.replicated_position == 30
    master.rule.leave(second)
    assert master.rule.replicated_position == 30


def test_one_required_slave_is_any_even_if_a_double_is_connected():
    master = Master(in_sync_replicas=2)
    master.rule.alive_replicas = 2
    master.rule.join("10.0.0.2:5", 0)
    master.rule.acknowledge(master.rule.join("10.7.0.2:6", 0), 50)
    assert master.rule.replicated_position == 50


def test_slaves_that_say_who_they_are_need_no_registration():
    master = Master(in_sync_replicas=3)
    master.rule.alive_replicas = 1
    master.rule.acknowledge(master.rule.join("id 1", 0, is_known=True), 40)
    master.rule.acknowledge(master.rule.join("id 2", 0, is_known=True), 30)
    assert master.rule.replicated_position == 30
    for address in ("10.0.0.2:5", "10.7.0.2:6"):
        master.rule.acknowledge(master.rule.join(address, 0), 90)
    assert master.rule.replicated_position == 40, "the two are of one slave, perhaps"


@pytest.mark.parametrize("required", [1, 2, 3, 5])
def test_an_explicit_number_counts_the_master_and_waits_also_without_slaves(required):
    master = Master(in_sync_replicas=required)
    master.end = 1000
    assert master.rule.status_now() == (ResponseCode.SUCCESS if required == 1 else None)
    for number, position in enumerate((700, 900, 800, 600)):
        master.rule.acknowledge(master.rule.join(f"10.0.0.{number}", 0), position)
    assert master.announced[-1] == {1: 1000, 2: 900, 3: 800, 5: 600}[required]
    assert not refused(master.rule)


def test_which_settings_need_no_slave():
    assert requires_replicas(SETTINGS)
    assert requires_replicas(replace(SETTINGS, in_sync_replicas=2))
    assert not requires_replicas(replace(SETTINGS, in_sync_replicas=1))
    assert not requires_replicas(replace(SETTINGS, in_sync_replicas=1, min_in_sync_replicas=2))
    assert requires_replicas(replace(ADAPTING, in_sync_replicas=1, min_in_sync_replicas=2))


# -- a slave that may act as master -------------------------------------------------------------------------------


@pytest.mark.parametrize("acting", [False, True])
def test_too_few_in_sync_refuse_only_with_a_slave_that_may_act_as_master(acting):
    master = Master(in_sync_replicas=2, enable_slave_acting_master=acting)
    assert refused(master.rule) == acting
    slave = master.rule.join("10.0.0.2", 0)
    assert not refused(master.rule)
    master.end = 100
    assert refused(master.rule) == acting
    master.rule.acknowledge(slave, 1)
    assert not refused(master.rule)
    master.rule.alive_replicas = 1
    assert refused(master.rule) == acting


def test_the_required_number_adapts_to_those_in_sync():
    master = Master(ADAPTING, in_sync_replicas=3)
    master.end = 60
    assert (refused(master.rule), master.rule.status_now()) == (False, ResponseCode.SUCCESS)
    slave = master.rule.join("10.0.0.2", 0)
    assert (master.rule.status_now(), master.rule.required_copies, master.announced[-1]) == (None, 2, 0)
    master.rule.join("10.0.0.3", 0)
    assert (master.rule.required_copies, master.announced[-1]) == (3, 0)
    master.rule.acknowledge(slave, 200)
    master.end = 200
    assert (master.rule.required_copies, master.rule.replicated_position) == (2, 200)
    strict = Master(ADAPTING, in_sync_replicas=3, min_in_sync_replicas=2)
    assert refused(strict.rule)
    strict.rule.join("10.0.0.2", 0)
    assert (refused(strict.rule), strict.rule.required_copies) == (False, 2)


def test_unset_a_message_is_stored_without_a_slave():
    master = Master(enable_slave_acting_master=True)
    assert (refused(master.rule), master.rule.status_now()) == (False, NOT_AVAILABLE)


# -- the model ----------------------------------------------------------------------------------------------------


class Model:
    """The connections as a list of events; everything is counted anew for each answer."""

    def __init__(self, settings):
        self.settings = settings
        self.end = 0
        self.events = []  # (slave, connection number, position, is acknowledged), in their order
        self.left = set()

    def slaves(self):
        """Return (position, acknowledged) of each slave that is connected."""
        newest = {slave: number for slave, number, _, _ in self.events}
        result = []
        for number in newest.values():
            if number not in self.left:
                of_connection = [event for event in self.events if event[1] == number]
                acknowledged = [position for _, _, position, is_ack in of_connection if is_ack]
                result.append((of_connection[-1][2], acknowledged[-1] if acknowledged else 0))
        return result

    def in_sync(self):
        return 1 + sum(1 for position, _ in self.slaves() if self.end - position < 100)

    def required(self):
        settings = self.settings
        required = settings.in_sync_replicas or 2
        if settings.enable_slave_acting_master and settings.enable_auto_in_sync_replicas:
            required = max(settings.min_in_sync_replicas, min(required, self.in_sync()))
        return required

    def replicated(self):
        """Return the greatest position that enough replicas have, by trying all of them."""
        positions = sorted({0, self.end, *(acknowledged for _, acknowledged in self.slaves())})
        return max(
            (
                position
                for position in positions
                if position == 0
                or 1 + sum(1 for _, acknowledged in self.slaves() if acknowledged >= position)
                >= self.required()
            ),
        )

    def status(self):
        if not self.settings.in_sync_replicas:
            gaps = [self.end - position for position, _ in self.slaves()]
            if not gaps or min(gaps) >= 100:
                return NOT_AVAILABLE
        return 0 if self.required() == 1 else None

    def is_refused(self):
        settings = self.settings
        required = settings.in_sync_replicas or 1
        if settings.enable_auto_in_sync_replicas:
            required = max(settings.min_in_sync_replicas, min(required, self.in_sync()))
        return settings.enable_slave_acting_master and required > self.in_sync()


@pytest.mark.parametrize("seed", range(60))
def test_against_a_plain_model(seed):
    random_ = random.Random(seed)
    settings = replace(
        SETTINGS,
        in_sync_replicas=random_.choice((0, 1, 2, 3)),
        min_in_sync_replicas=random_.choice((1, 2)),
        enable_auto_in_sync_replicas=random_.random() < 0.5,
        enable_slave_acting_master=random_.random() < 0.5,
    )
    master, model = Master(settings), Model(settings)
    connections = []
    for _ in range(200):
        step = random_.random()
        if step < 0.4:
            master.end += random_.choice((1, 20, 90))
            model.end = master.end
        elif step < 0.55 or not connections:
            slave, position = f"10.0.0.{random_.randrange(4)}", random_.randint(0, master.end)
            connections.append((slave, master.rule.join(slave, position)))
            model.events.append((slave, len(connections) - 1, position, False))
        elif step < 0.9:
            number = random_.randrange(max(0, len(connections) - 5), len(connections))
            slave, connection = connections[number]
            if number not in model.left:
                position = random_.randint(max(connection.position - 5, master.end - 150, 0), master.end)
                master.rule.acknowledge(connection, position)
                # An older connection of a slave stays replaced.
                if max(n for s, n, _, _ in model.events if s == slave) == number:
                    model.events.append((slave, number, position, True))
        else:
            number = random_.randrange(len(connections))
            master.rule.leave(connections[number][1])
            model.left.add(number)
        assert master.rule.in_sync_count == model.in_sync()
        assert master.rule.replicated_position == model.replicated()
        assert master.rule.status_now() == model.status()
        assert refused(master.rule) == model.is_refused()


# -- in a broker --------------------------------------------------------------------------------------------------


async def started(cluster, **settings):
    node = await cluster.add_broker(replication=replace(SETTINGS, **settings))
    return node, node.broker.replication.in_sync, cluster.dial(node.address)


class Send:
    """A send under way."""

    def __init__(self, cluster, connection, **fields):
        self.outcome = None
        cluster.nursery.start_soon(self._run, cluster, connection, message(**fields))

    async def _run(self, cluster, connection, request):
        start_ms = cluster.clock.now_ms()
        try:
            reply = await connection.ask(request, timeout_s=60)
            self.outcome = cluster.clock.now_ms() - start_ms, reply.code
        except RequestError as error:
            self.outcome = cluster.clock.now_ms() - start_ms, error.code


@simulated
async def test_a_send_of_a_broker_waits_for_its_slave(cluster):
    node, rule, client = await started(cluster, slave_fallbehind_max_bytes=1 << 20)
    send = Send(cluster, client)
    await settle()
    assert send.outcome == (0, NOT_AVAILABLE)
    slave = rule.join("10.0.0.2", node.broker.store.max_physical_offset)
    first, second = Send(cluster, client), Send(cluster, client, properties={"WAIT": "false"})
    await settle()
    assert (first.outcome, second.outcome) == (None, (0, 0))
    assert len(bodies(await cluster.dial(node.address).ask(pull()))) == 3, "readers do not wait for slaves"
    await trio.sleep(1)
    rule.acknowledge(slave, node.broker.store.max_physical_offset)
    await settle()
    assert first.outcome == (1000, 0)
    late = Send(cluster, client)
    await trio.sleep(5)
    assert late.outcome == (3000, ResponseCode.FLUSH_SLAVE_TIMEOUT)
    assert node.broker.answer_gate.held_count == 0


@simulated
async def test_a_send_is_refused_before_it_is_stored(cluster):
    node, rule, client = await started(cluster, in_sync_replicas=2, enable_slave_acting_master=True)
    send, careless = Send(cluster, client), Send(cluster, client, properties={"WAIT": "false"})
    await settle()
    assert (send.outcome, careless.outcome) == ((0, ResponseCode.SYSTEM_ERROR), (0, 0))
    assert node.broker.store.max_offset("orders", 0) == 1
    rule.join("10.0.0.2", node.broker.store.max_physical_offset)
    send = Send(cluster, client)
    await trio.sleep(4)
    assert send.outcome == (3000, ResponseCode.FLUSH_SLAVE_TIMEOUT)


@pytest.mark.parametrize("changes", [{"broker_role": "ASYNC_MASTER"}, {"in_sync_replicas": 1}])
@simulated
async def test_a_broker_that_needs_no_slave_never_waits(cluster, changes):
    node, _, client = await started(cluster, **changes)
    assert not node.broker.answer_gate.must_wait
    send = Send(cluster, client)
    await settle()
    assert send.outcome == (0, 0)
