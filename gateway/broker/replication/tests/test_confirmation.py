"""Messages of brokers under a controller are readable once all replicas in sync have them: in simulated clusters."""

import random
from contextlib import contextmanager

import pytest
import trio

from codec.constants import ResponseCode
from codec.native import native_module
from codec.topics import SCHEDULE_TOPIC
from gateway.broker.assembly.build import BrokerBuilder
from gateway.broker.messages.stored_messages import find_stored
from gateway.broker.replication.confirmation import Confirmation
from gateway.broker.replication.sync_state import SyncStateRule
from gateway.config.replication import SYNC_MASTER, ControlledRole, ReplicationSettings, Role
from gateway.tests.cluster import SMALL, SimClock, bodies, inline, message, pull, simulated
from gateway.tests.configs import broker_config
from gateway.tests.controlled import controlled
from gateway.tests.transacting import COMMIT, Producer
from remoting.requests.offsets import GetMaxOffset
from remoting.requests.query import ViewMessageById
from storage.append import NewMessage
from storage.confirmed_store import ConfirmedStore
from storage.crash_files import CrashFiles
from storage.errors import StoreFull
from storage.store import MessageStore
from storage.tests.support import FakeClock
from storage.tests.test_confirmed_store import opened

SETTINGS = ReplicationSettings(enable_controller_mode=True, all_ack_in_sync_state_set=True)


# -- rule and store -------------------------------------------------------------------------------------------------


class Master:
    """A store, its rule with a slave, and what was announced."""

    def __init__(self, members=(1, 2)):
        self.store = opened(clock=FakeClock())
        self.rule = SyncStateRule(
            SETTINGS, 1, lambda: self.store.max_physical_offset, members, 1, now_s=lambda: 100.0
        )
        self.grown, self.positions = [], []
        self.confirmation = Confirmation(self.store, self.rule)
        self.confirmation.add_listener(lambda queues: self.grown.append(sorted(queues)))
        self.confirmation.add_position_listener(self.positions.append)

    def append(self, topic="a"):
        return sum(self.store.append(NewMessage(topic, 0, b"x" * 50, b""))[1:3])


def test_an_acknowledged_message_is_readable_before_its_answer_leaves():
    master = Master()
    slave = master.rule.join("2", 0)
    first_end, second_end = master.append(), master.append("b")
    assert master.grown == []
    master.rule.acknowledge(slave, second_end - 1)
    assert (master.grown, master.positions[-1]) == ([[("a", 0)]], first_end)
    master.rule.acknowledge(slave, second_end)
    assert (master.grown[-1], master.positions[-1]) == ([("b", 0)], second_end)


def test_a_master_that_is_alone_confirms_at_once_until_a_slave_joins():
    master = Master((1,))
    master.append()
    assert master.store.max_offset("a", 0) == 1
    slave = master.rule.join("2", master.store.max_physical_offset)
    master.append()
    assert master.store.max_offset("a", 0) == 1
    master.rule.leave(slave)
    assert master.store.max_offset("a", 0) == 2
    master.append()
    assert master.store.max_offset("a", 0) == 3


def test_queues_of_messages_that_an_append_makes_readable_are_told():
    """Those who wait are asleep since they looked at the queue before."""
    master = Master((1,))
    master.append()
    master.append("b")
    assert master.grown == []
    master.confirmation.advance()
    assert master.grown == [[("a", 0), ("b", 0)]]
    master.confirmation.advance()
    assert len(master.grown) == 1


@simulated
async def test_queues_are_told_although_the_disk_has_no_room_for_a_later_entry(cluster, monkeypatch):
    master = Master()
    slave = master.rule.join("2", 0)
    end = [master.append(topic) for topic in "abc"][-1]
    append_entry, full_topic = master.store._dispatch._append_entry, b"b"

    def fail(message):
        if message.topic == full_topic:
            raise StoreFull("full")
        return append_entry(message)

    monkeypatch.setattr(master.store._dispatch, "_append_entry", fail)
    master.rule.acknowledge(slave, end)
    assert master.grown == [[("a", 0)]]
    full_topic = b"c"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(master.confirmation.run)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert master.grown == [[("a", 0)], [("b", 0)]]


def test_answers_wait_while_the_disk_has_no_room_for_entries(monkeypatch):
    master = Master()
    slave = master.rule.join("2", 0)
    end = master.append()

    def fail(*arguments):
        raise StoreFull("full")

    with monkeypatch.context() as patch:
        patch.setattr(master.store, "dispatch", fail)
        master.rule.acknowledge(slave, end)
        assert master.positions[-1] == 0
    master.confirmation.advance()
    assert (master.positions[-1], master.store.max_offset("a", 0)) == (end, 1)


@simulated
async def test_a_long_backlog_is_made_readable_in_slices(cluster):
    master = Master()
    slave = master.rule.join("2", 0)
    for _ in range(1000):
        end = master.append()
    master.rule.acknowledge(slave, end)
    assert 0 < master.store.max_offset("a", 0) < 1000
    assert master.positions[-1] < end
    async with trio.open_nursery() as nursery:
        nursery.start_soon(master.confirmation.run)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert (master.store.max_offset("a", 0), master.positions[-1]) == (1000, end)


class Peer:
    """Stands for the connection of a producer."""

    def __init__(self):
        self.outstanding_requests, self.writes = 0, []

    def write(self, data):
        self.writes.append(data)


@simulated
async def test_an_answer_does_not_leave_before_the_entries_of_older_messages_are_built(cluster):
    """Its producer may end a transaction, or read, at once."""
    broker = started(CrashFiles(), {2, 3})
    slave = broker.replication.sync_state.join("3", broker.store.max_physical_offset)
    for _ in range(700):
        append_to(broker)
    assert broker.store.readable_until == 0
    broker.replication.sync_state.leave(slave)
    broker.replication.sync_state.accepted({2}, 2)
    assert broker.replication.sync_state.status_now() == ResponseCode.SUCCESS
    end, peer = append_to(broker), Peer()
    assert broker.store.readable_until < end
    assert broker.answer_gate.hold(peer, b"answer", end) is None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.replication.confirmation.run)
        while not peer.writes:
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert (peer.writes, peer.outstanding_requests) == ([b"answer"], 0)
    assert broker.store.readable_until == end
    end = append_to(broker)
    assert broker.answer_gate.hold(peer, b"answer", end) == b"answer"


# -- a master that is started again ----------------------------------------------------------------------------------


def started(files, members, role=SYNC_MASTER, **changes):
    """Build the replica 2 on its store."""
    config = broker_config(
        **SMALL,
        store_path_root_dir="/b",
        broker_role=role,
        broker_id=0 if role == SYNC_MASTER else 2,
        enable_controller_mode=True,
        controlled=ControlledRole(2, 1, frozenset(members), 1),
        **{"all_ack_in_sync_state_set": True, **changes},
    )
    builder = BrokerBuilder(
        memory=False, clock=SimClock(), run_blocking=inline, port=lambda: 10911, files=files
    )
    return builder.build(config)


def append_to(broker, topic="t"):
    return sum(broker.store.append(NewMessage(topic, 0, b"x" * 100, b""))[1:3])


@simulated
async def test_a_master_that_comes_back_waits_for_the_others_in_its_set(cluster):
    files = CrashFiles()
    broker = started(files, {2})
    append_to(broker)
    slave = broker.replication.sync_state.join("3", broker.store.max_physical_offset)
    append_to(broker)
    half = broker.store.append(NewMessage("t", 0, b"half", b"", sys_flag=4))
    assert broker.store.max_offset("t", 0) == 1
    files = files.crash(random.Random(1), lose_unflushed=False)
    broker = started(files, {2, 3})
    assert (broker.store.max_offset("t", 0), broker.store.next_queue_offset("t", 0)) == (1, 2)
    assert find_stored(broker.store, half[1]) is None
    append_to(broker)
    rule = broker.replication.sync_state
    assert rule.status_now() is None
    slave = rule.join("3", 0)
    assert broker.store.max_offset("t", 0) == 1
    rule.acknowledge(slave, half[1] + half[2])
    assert broker.store.max_offset("t", 0) == 2
    assert find_stored(broker.store, half[1]) is not None
    rule.acknowledge(slave, broker.store.max_physical_offset)
    assert broker.store.max_offset("t", 0) == 3


@simulated
async def test_offsets_of_consumers_stay_that_are_beyond_what_is_confirmed_again(cluster):
    """The power cut took the entries, not the messages, which had been read before."""
    files = CrashFiles()
    broker = started(files, {2})
    append_to(broker)
    append_to(broker)
    broker.store.flush()
    broker.offsets.commit_offset("g", "t", 0, 2)
    broker.offsets.persist()
    files = files.crash(random.Random(3), lose_unflushed=True)
    broker = started(files, {2, 3})
    assert broker.store.next_queue_offset("t", 0) == 2
    assert broker.offsets.query_offset("g", "t", 0) == 2


@simulated
async def test_without_all_ack_the_store_is_the_usual_one(cluster):
    broker = started(CrashFiles(), {2, 3}, all_ack_in_sync_state_set=False)
    assert type(broker.store) is MessageStore
    assert broker.replication.confirmation is None
    assert broker.replication.end_batch == broker.replication.server.wake
    append_to(broker)
    assert broker.store.max_offset("t", 0) == 1


# -- brokers --------------------------------------------------------------------------------------------------------


def master_of(nodes):
    (master,) = [node for node in nodes if node.broker.config.role is Role.MASTER]
    return master


def slaves_of(nodes):
    return [node for node in nodes if node.broker.config.role is Role.SLAVE]


async def max_offset(client):
    return (await client.ask(GetMaxOffset(topic="orders", queue_id=0))).offset


@simulated
async def test_a_message_that_a_slave_lacks_is_not_readable(cluster):
    group, nodes = await controlled(cluster)
    master = master_of(nodes)
    assert isinstance(master.broker.store, ConfirmedStore)
    client = cluster.dial(master.address)
    await client.ask(message(body=b"first"))
    assert await max_offset(client) == 1
    master.broker.replication.server.wake = lambda: None
    for session in list(master.broker.replication.server._serving):
        session.send_next = lambda **options: None  # the slaves get nothing any more
    with trio.fail_after(10):
        reply = await client.ask(message(body=b"second"), 10)
    assert reply.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert await max_offset(client) == 1
    assert bodies(await client.ask(pull())) == [b"first"]
    assert master.broker.store.next_queue_offset("orders", 0) == 2


@simulated
async def test_slaves_read_up_to_what_their_master_confirms(cluster):
    group, nodes = await controlled(cluster, slave_read_enable=True)
    client = cluster.dial(master_of(nodes).address)
    for number in range(4):
        await client.ask(message(body=b"%d" % number))
        await trio.sleep(0.1)
    for node in slaves_of(nodes):
        store = node.broker.store
        assert isinstance(store, ConfirmedStore)
        assert store.max_offset("orders", 0) == 4
        assert store.readable_until == node.broker.replication.slave.follower.confirm_offset
        assert store.max_physical_offset == master_of(nodes).broker.store.readable_until


@simulated
async def test_a_waiting_pull_is_answered_when_its_message_is_confirmed(cluster):
    group, nodes = await controlled(cluster)
    master = master_of(nodes)
    consumer, producer = cluster.dial(master.address), cluster.dial(master.address)
    await producer.ask(message(body=b"0"))
    replies = []

    async def wait():
        replies.append(await consumer.ask(pull(offset=1, wait_ms=20_000), 30))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(0.5)
        await producer.ask(message(body=b"1"))
        await trio.sleep(0.5)
        assert [bodies(reply) for reply in replies] == [[b"1"]]


@simulated
async def test_delayed_messages_are_delivered_in_time(cluster):
    group, nodes = await controlled(cluster)
    client = cluster.dial(master_of(nodes).address)
    await client.ask(message(body=b"late", properties={"DELAY": "1"}))
    assert master_of(nodes).broker.store.max_offset(SCHEDULE_TOPIC, 0) == 1
    await trio.sleep(1.5)
    master_of(nodes).service.end_batch()  # what the HA server does ten times a second, without sockets nobody
    await trio.sleep(0.1)
    assert bodies(await client.ask(pull())) == [b"late"]


@contextmanager
def slaves_get_nothing(server):
    """Have a master's HA server send nothing to its slaves within the block, and all of it at its end."""
    senders = (server, *server._serving)
    for sender in senders:
        sender.wake = sender.send_next = lambda **options: None
    yield
    for sender in senders:
        del sender.wake, sender.send_next
    server.wake()


@simulated
async def test_producers_are_asked_about_half_messages_that_are_confirmed(cluster):
    """The decision about a copy that is not confirmed would be refused, at each check, until it is given up."""
    group, nodes = await controlled(cluster)
    master = master_of(nodes)
    producer = await Producer(cluster, master, decide=COMMIT).beat()
    await producer.half(queue_id=0)
    await trio.sleep(8)
    with slaves_get_nothing(master.broker.replication.server):
        for _ in master.broker.transaction_checks.run_round():
            pass
        await trio.sleep(1)
        assert producer.questions == []
    await trio.sleep(1)
    assert len(producer.questions) == 1
    assert bodies(await cluster.dial(master.address).ask(pull())) == [b"hello"]
    assert master.broker.transaction_checks.check_backs == 1


class MostAsked(trio.abc.Instrument):
    """Notes the largest number of questions to producers within one step of a task."""

    def __init__(self, checks):
        self.checks = checks
        self.before = self.most = 0

    def before_task_step(self, task):
        self.before = self.checks.check_backs

    def after_task_step(self, task):
        self.most = max(self.most, self.checks.check_backs - self.before)


@simulated
async def test_many_half_messages_that_are_confirmed_at_once_hold_nobody_up(cluster):
    """A slave was slow while a round of checks wrote the copies."""
    group, nodes = await controlled(cluster)
    master = master_of(nodes)
    producer = await Producer(cluster, master, decide=None).beat()
    for number in range(600):
        await producer.half(queue_id=0, key=f"U{number}")
    await trio.sleep(8)
    checks = master.broker.transaction_checks
    most_asked = MostAsked(checks)
    with slaves_get_nothing(master.broker.replication.server):
        for _ in checks.run_round():
            pass
        trio.lowlevel.add_instrument(most_asked)
    await trio.sleep(1)
    trio.lowlevel.remove_instrument(most_asked)
    assert checks.check_backs == 600
    assert most_asked.most <= 256


@simulated
async def test_what_an_elected_slave_has_is_readable(cluster):
    """Its master may have died before it could say that all have the message."""
    group, nodes = await controlled(cluster)
    master, old_slaves = master_of(nodes), slaves_of(nodes)
    await cluster.dial(master.address).ask(message(body=b"first"))
    await trio.sleep(1)
    for node in old_slaves:
        node.broker.replication.slave.follower._log.dispatch = lambda limit, end: []
    await cluster.dial(master.address).ask(message(body=b"second"))
    await trio.sleep(0.5)
    for node in old_slaves:
        assert node.broker.store.max_offset("orders", 0) == 1
    await master.crash()
    with trio.fail_after(60):
        while not any(node.broker.config.role is Role.MASTER for node in old_slaves):
            await trio.sleep(0.1)
    await trio.sleep(1)
    new = master_of(old_slaves)
    assert bodies(await cluster.dial(new.address).ask(pull())) == [b"first", b"second"]


@simulated
async def test_a_checkpoint_covers_what_is_confirmed_after_the_last_append(cluster):
    group, nodes = await controlled(cluster, brokers=1)
    (node,) = nodes
    store = node.broker.store
    assert isinstance(store, ConfirmedStore)
    await cluster.dial(node.address).ask(message(body=b"first"))
    store.confirms_at_once = False
    store.append(NewMessage("orders", 0, b"second", b""))
    await node.service._write_checkpoint()
    first_end = store.readable_until
    assert store._checkpoint.confirm_offset == first_end < store.max_physical_offset
    store.dispatch(10)
    await node.service._write_checkpoint()
    assert store._checkpoint.confirm_offset == store.max_physical_offset
    writes = []
    store.write_checkpoint = lambda: writes.append(1)
    await node.service._write_checkpoint()
    assert writes == []


@pytest.mark.parametrize("offset_of", ["confirmed", "unconfirmed"])
@simulated
async def test_a_message_that_is_not_confirmed_is_not_found_by_its_id(cluster, offset_of):
    group, nodes = await controlled(cluster)
    master = master_of(nodes)
    client = cluster.dial(master.address)
    await client.ask(message(body=b"first"))
    second = master.broker.store.max_physical_offset
    master.broker.store.append(NewMessage("orders", 0, b"second", b""))
    if offset_of == "confirmed":
        await client.ask(ViewMessageById(offset=0))
    else:
        with pytest.raises(Exception, match=r"not exist|no message|can not find"):
            await client.ask(ViewMessageById(offset=second))


@pytest.mark.skipif(native_module() is None, reason="needs the C extension")
@pytest.mark.parametrize("brokers", [1, 3])
@simulated
async def test_sends_that_c_takes_are_readable_once_they_are_confirmed(cluster, brokers):
    group, nodes = await controlled(cluster, brokers=brokers)
    master = master_of(nodes)
    store, client = master.broker.store, cluster.dial(master.address)
    await client.ask(message(body=b"0"))
    gate, answers = master.broker.answer_gate, []
    hold = gate.hold

    def note_answer(*arguments):
        answers.append(hold(*arguments))
        return answers[-1]

    gate.hold = note_answer
    for number in range(1, 40):
        reply = await client.ask(message(body=b"%d" % number, key=f"K{number}"))
        assert reply.queue_offset == number
        assert store.max_offset("orders", 0) == number + 1
    assert master.service.native_sends.frames == 39
    assert len(answers) == 39
    # Answers that need not wait are not held: each would cost an object and another system call.
    assert [answer is not None for answer in answers] == [brokers == 1] * 39
    replies = bodies(await client.ask(pull(max_msg_nums=50)))
    assert replies == [b"%d" % number for number in range(len(replies))]
    assert len(replies) >= 32
