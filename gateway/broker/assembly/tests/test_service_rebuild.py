"""A broker whose parts are replaced while clients are connected: changes of role, and those that fail."""

import gc
import logging
import weakref
from contextlib import suppress
from functools import partial

import pytest
import trio

from codec.constants import ResponseCode
from gateway.broker.assembly.service import MAX_CHANGES, PartsReplaced
from gateway.broker.consumers.consumer_offsets import ConsumerOffsets
from gateway.broker.limits.request_pause import MAX_HOLD_S
from gateway.config.replication import ASYNC_MASTER, SLAVE, Role
from gateway.tests.cluster import NAMESRV, bodies, message, pull, settle, simulated
from gateway.tests.configs import change_config
from gateway.tests.popping import pop_request
from remoting.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from remoting.errors import RequestError
from remoting.requests.client import GetConsumerListByGroup, HeartBeat
from remoting.requests.offsets import GetMaxOffset, QueryConsumerOffset
from storage.errors import StoreFull
from storage.files import MemoryFiles


def same(config):
    return config


def with_id(broker_id):
    """Return the change to a master, for id 0, or to a slave."""
    role = SLAVE if broker_id else ASYNC_MASTER
    return partial(change_config, broker_id=broker_id, broker_role=role)


@simulated
async def test_clients_stay_connected_while_the_parts_are_replaced(cluster):
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    await client.ask(message(body=b"before"))
    await client.ask(pull(commit=1))
    before = node.broker
    await node.service.rebuild(same)
    assert node.broker is not before
    assert (await client.ask(message(body=b"after"))).queue_offset == 1
    assert bodies(await client.ask(pull())) == [b"before", b"after"]
    stored = await client.ask(QueryConsumerOffset(consumer_group="GID", topic="orders", queue_id=0))
    assert stored.offset == 1
    assert not client.closed
    assert not node.service.tasks.failing


@simulated
async def test_the_step_in_between_finds_the_store_closed(cluster):
    node = await cluster.add_broker()
    await cluster.dial(node.address).ask(message())
    files, abort = node.broker.store.files, node.broker.store.config.abort_path
    found = []
    await node.service.rebuild(same, lambda: found.append((files.size(abort), node.service.is_open)))
    assert found == [(None, False)], "closed cleanly"
    assert node.service.is_open
    assert files.size(abort) is not None


class Load:
    """Clients that send and pull all the time, and note what they were told."""

    def __init__(self, cluster, node):
        self.cluster = cluster
        self.node = node
        self.stored = []
        self.seen = {}
        self.is_over = False

    async def send(self, queue_id):
        client = self.cluster.dial(self.node.address)
        number = 0
        while not self.is_over:
            body = b"%d of %d" % (number, queue_id)
            answer = await client.ask(message(body=body, queue_id=queue_id), 3)
            self.stored.append((queue_id, answer.queue_offset, body))
            number += 1
            await trio.sleep(0.01)

    async def pull(self, queue_id):
        client = self.cluster.dial(self.node.address)
        offset = 0
        while not self.is_over:
            answer = await client.ask(pull(offset=offset, queue_id=queue_id, wait_ms=1000), 5)
            for number, body in enumerate(bodies(answer)):
                self.seen[queue_id, offset + number] = body
            offset = answer.next_begin_offset


@simulated
async def test_nothing_fails_and_nothing_is_lost_under_load(cluster):
    node = await cluster.add_broker(flush_disk_type="SYNC_FLUSH")
    await cluster.dial(node.address).ask(message(queue_id=3))
    slow_down(node, 0.3)
    load = Load(cluster, node)
    async with trio.open_nursery() as nursery:
        for queue_id in range(3):
            nursery.start_soon(load.send, queue_id)
            nursery.start_soon(load.pull, queue_id)
        for _ in range(5):
            await trio.sleep(0.5)
            await node.service.rebuild(same)
        await trio.sleep(0.5)
        load.is_over = True
    assert len(load.stored) > 100
    assert {(queue_id, offset): body for queue_id, offset, body in load.stored} == load.seen


def slow_down(node, seconds):
    """Let everything that a rebuild leaves to a thread take a while."""

    async def slow(work):
        await trio.sleep(seconds)
        return work()

    node.service._builder._run_blocking = slow


@simulated
async def test_held_requests_keep_their_order(cluster):
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    await client.ask(message(topic="other"))
    await client.ask(message(body=b"first"))
    slow_down(node, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.service.rebuild, same)
        await trio.sleep(0.1)
        for number in range(20):
            client.send_command(message(body=b"%d" % number).to_command(), lambda answer: None)
        await settle()
        assert node.service._pause.held_count == 20
    assert bodies(await client.ask(pull()))[1:] == [b"%d" % number for number in range(20)]


@simulated
async def test_requests_are_not_held_for_ever(cluster):
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    await client.ask(message())
    slow_down(node, 2 * MAX_HOLD_S)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.service.rebuild, same)
        await trio.sleep(0.1)
        start = trio.current_time()
        for waits_s in (MAX_HOLD_S - 0.1, 0):
            with pytest.raises(RequestError, match="the broker changes its role") as refused:
                await client.ask(message(), 10)
            assert refused.value.code == ResponseCode.SYSTEM_BUSY
            assert trio.current_time() - start == pytest.approx(waits_s, abs=0.05)
            start = trio.current_time()
    await client.ask(message())


@simulated
async def test_waiting_requests_are_answered_and_wait_again(cluster):
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    await client.ask(message())
    answers = []

    async def ask(request):
        answers.append((await client.ask_command(request.to_command(), 30)).code)

    cluster.nursery.start_soon(ask, pull(offset=1, wait_ms=15_000))
    cluster.nursery.start_soon(
        ask, pop_request(queue_id=1, poll_time=15_000, born_time=cluster.clock.now_ms())
    )
    await settle()
    assert not answers
    await node.service.rebuild(same)
    await settle()
    assert sorted(answers) == [ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT]
    cluster.nursery.start_soon(ask, pull(offset=1, wait_ms=15_000))
    await settle()
    assert len(node.broker.long_polls) == 1
    await client.ask(message())
    await settle()
    assert answers[2:] == [ResponseCode.SUCCESS]


@simulated
async def test_members_of_groups_stay_known(cluster):
    node = await cluster.add_broker()
    client, other = cluster.dial(node.address), cluster.dial(node.address)
    await client.ask(message())
    consumer = ConsumerData(
        group_name="GID", consume_type="CONSUME_PASSIVELY", message_model="CLUSTERING",
        subscription_data_set=[SubscriptionData(topic="orders", sub_version=1)],
    )  # fmt: skip
    await client.ask(HeartBeat(data=HeartbeatData(client_id="c", consumer_data_set=[consumer])))
    await node.service.rebuild(same)
    ids = await other.ask(GetConsumerListByGroup(consumer_group="GID"))
    assert ids.data.consumer_id_list == ["c"]
    assert bodies(await client.ask(pull(sys_flag=0, subscription=None))) == [b"hello"]
    client.close()
    await settle()
    assert not node.broker.clients.consumers


def registered(cluster):
    return cluster.nodes[NAMESRV].service.routes.cluster_info("").broker_addr_table


@simulated
async def test_the_broker_registers_by_its_new_id(cluster):
    await cluster.namesrv()
    node = await cluster.add_broker()
    assert list(registered(cluster)["broker-a"].broker_addrs) == [0]
    await node.service.rebuild(with_id(1))
    await settle()
    assert list(registered(cluster)["broker-a"].broker_addrs) == [1]
    await node.service.rebuild(with_id(0))
    await settle()
    assert list(registered(cluster)["broker-a"].broker_addrs) == [0]


@simulated
async def test_a_namesrv_of_the_same_process_learns_of_the_new_id(cluster):
    local = await cluster.namesrv()
    node = await cluster.add_broker(local=local)
    await node.service.rebuild(with_id(2))
    assert list(registered(cluster)["broker-a"].broker_addrs) == [2]


@simulated
async def test_a_slave_delivers_nothing_and_a_promoted_one_does(cluster):
    node = await cluster.add_broker(message_delay_level="1s 2s")
    client = cluster.dial(node.address)
    await client.ask(message(topic="other"))
    await client.ask(message(body=b"late", properties={"DELAY": "1"}))
    await client.ask(message(body=b"timed", queue_id=1, properties={"TIMER_DELAY_SEC": "1"}))
    await node.service.rebuild(with_id(1))
    assert node.broker.config.role is Role.SLAVE
    end = node.broker.store.max_physical_offset
    await trio.sleep(10)
    assert node.broker.store.max_physical_offset == end
    await node.service.rebuild(with_id(0))
    await trio.sleep(3)
    assert bodies(await client.ask(pull())) == [b"late"]
    assert bodies(await client.ask(pull(queue_id=1))) == [b"timed"]
    assert not node.service.tasks.failing


def fail():
    raise StoreFull("no room for anything")


@simulated
async def test_a_broker_whose_store_cannot_be_opened_again_is_fenced(cluster, caplog):
    await cluster.namesrv()
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    await client.ask(message(body=b"stored"))
    await client.ask(pull(commit=1))
    with pytest.raises(StoreFull, match="no room for anything"):
        await node.service.rebuild(same, fail)
    assert not node.service.is_open
    assert [health.last_error for health in node.service.tasks.failing] == [
        "StoreFull: no room for anything"
    ], "which /readyz shows"
    assert "broker is fenced" in caplog.text
    for request in (message(), pull(), GetMaxOffset(topic="orders", queue_id=0)):
        with pytest.raises(RequestError, match=r"is fenced.*no room for anything") as refused:
            await client.ask(request)
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
    await settle()
    assert "broker-a" not in registered(cluster)
    await trio.sleep(100)
    assert "broker-a" not in registered(cluster), "also after a period of registrations"

    await node.service.rebuild(same)
    assert bodies(await client.ask(pull())) == [b"stored"]
    assert not node.service.tasks.failing
    await settle()
    assert list(registered(cluster)["broker-a"].broker_addrs) == [0]


@simulated
async def test_what_a_failed_change_held_is_freed_at_once(cluster, caplog):
    """Not by the garbage collector: the frames of its exception may hold files that a full disk needs the room of."""
    node = await cluster.add_broker()
    caplog.set_level(logging.CRITICAL)  # records of the log hold exceptions, too
    errors = []

    class NotedError(StoreFull):
        def __init__(self):
            super().__init__("no room")
            errors.append(weakref.ref(self))

    def fail_noted():
        raise NotedError

    gc.disable()
    try:
        with suppress(StoreFull):
            await node.service.rebuild(same, fail_noted)
        await settle()
        assert [error() for error in errors] == [None]
    finally:
        gc.enable()


@simulated
async def test_requests_that_are_held_when_a_change_fails_are_refused(cluster):
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    await client.ask(message())
    slow_down(node, 1)
    refusals = []

    async def send():
        with pytest.raises(RequestError) as refused:
            await client.ask(message(), 5)
        refusals.append(refused.value.remark or "")

    cluster.nursery.start_soon(swallow_failure, node, fail)
    await trio.sleep(0.1)
    cluster.nursery.start_soon(send)
    await trio.sleep(2)
    assert ["no room for anything" in refusal for refusal in refusals] == [True]


async def swallow_failure(node, between):
    with pytest.raises(StoreFull):
        await node.service.rebuild(same, between)


@simulated
async def test_a_fenced_broker_stops_cleanly(cluster):
    files = MemoryFiles()
    node = await cluster.add_broker(files=files)
    await cluster.dial(node.address).ask(message())
    with pytest.raises(StoreFull):
        await node.service.rebuild(same, fail)
    await node.stop()
    assert files.size("/broker-a/abort") is None


@simulated
async def test_a_change_that_fails_before_the_store_is_closed_changes_nothing(cluster, caplog):
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    await client.ask(message())
    before = node.broker

    def impossible(config):
        raise ValueError("brokerId=0 is no slave")

    with pytest.raises(ValueError, match="is no slave"):
        await node.service.rebuild(impossible)
    assert node.broker is before
    await client.ask(message(properties={"DELAY": "1"}))
    assert "the broker keeps its role" in caplog.text


@simulated
async def test_progress_that_cannot_be_written_is_written_by_the_next_attempt(cluster, monkeypatch):
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    await client.ask(message())
    await client.ask(pull(commit=1))
    persist = ConsumerOffsets.persist
    monkeypatch.setattr(ConsumerOffsets, "persist", lambda offsets: fail())
    for _ in range(2):
        with pytest.raises(StoreFull, match="no room"):
            await node.service.rebuild(same)
        assert not node.service.is_open
    monkeypatch.setattr(ConsumerOffsets, "persist", persist)
    await node.service.rebuild(same)
    stored = await client.ask(QueryConsumerOffset(consumer_group="GID", topic="orders", queue_id=0))
    assert stored.offset == 1


@simulated
async def test_tables_that_cannot_be_read_leave_no_open_store(cluster, monkeypatch):
    files = MemoryFiles()
    node = await cluster.add_broker(files=files)
    await cluster.dial(node.address).ask(message())
    path = "/broker-a/config/topics.json"

    def damage():
        for name in (path, path + ".bak"):
            files.write_small(name, b"{")

    with pytest.raises(ValueError, match=r"topics\.json cannot be read"):
        await node.service.rebuild(same, damage)
    files.delete(path)
    files.delete(path + ".bak")
    await node.service.rebuild(same)
    assert bodies(await cluster.dial(node.address).ask(pull())) == [b"hello"]


@simulated
async def test_a_change_waits_while_many_others_are_outstanding(cluster):
    node = await cluster.add_broker()
    for _ in range(MAX_CHANGES + 1):  # one of them begins at once
        node.service.order_rebuild(same, lambda: None)
    await node.service.rebuild(with_id(1))
    assert node.broker.config.role is Role.SLAVE


@pytest.mark.parametrize("error", [StoreFull("no room"), OSError("bad disk")])
@simulated
async def test_a_slave_tries_a_change_again_that_it_needs(cluster, error):
    """Such as a cut of its log: it would stay fenced although there is room again."""
    node = await cluster.add_broker(broker_role=SLAVE, broker_id=1)
    attempts_s, outcomes = [], []

    def cut():
        attempts_s.append(trio.current_time())
        if len(attempts_s) < 4:
            raise error

    start = trio.current_time()
    node.service.order_rebuild(same, cut, outcomes.append)
    await trio.sleep(0.5)
    assert not node.service.is_open
    await trio.sleep(10)
    assert node.service.is_open
    assert outcomes == [error, error, error, None]
    assert [round(attempt_s - start) for attempt_s in attempts_s] == [0, 1, 3, 7]
    assert not node.service.tasks.failing
    await trio.sleep(60)
    assert len(attempts_s) == 4


@simulated
async def test_another_change_replaces_one_that_is_tried_again(cluster):
    node = await cluster.add_broker(broker_role=SLAVE, broker_id=1)
    node.service.order_rebuild(same, fail)
    await trio.sleep(5)
    await node.service.rebuild(with_id(0))
    assert node.broker.config.role is Role.MASTER
    before = node.broker
    await trio.sleep(60)
    assert node.broker is before


@simulated
async def test_a_change_that_is_tried_again_outlives_a_failed_change_by_an_operator(cluster):
    """A slave whose cut has no room stays one that will cut, although its promotion failed as well."""
    node = await cluster.add_broker(broker_role=SLAVE, broker_id=1)
    has_room, attempts = [], []

    def cut():
        attempts.append(None)
        if not has_room:
            raise StoreFull("no room")

    node.service.order_rebuild(same, cut)
    await trio.sleep(5)
    with pytest.raises(StoreFull):
        await node.service.rebuild(with_id(0), fail)
    before = len(attempts)
    has_room.append(True)
    await trio.sleep(60)
    assert len(attempts) == before + 1
    assert node.service.is_open
    assert node.broker.config.role is Role.SLAVE


@simulated
async def test_a_change_that_can_never_succeed_is_not_tried_again(cluster):
    node = await cluster.add_broker(broker_role=SLAVE, broker_id=1)
    attempts = []

    def damage():
        attempts.append(None)
        raise ValueError("topics.json cannot be read")

    node.service.order_rebuild(same, damage)
    await trio.sleep(100)
    assert len(attempts) == 1
    assert not node.service.is_open


@simulated
async def test_a_change_for_parts_that_were_replaced_meanwhile_is_dropped(cluster):
    """A slave that was promoted meanwhile would cut the log that counts."""
    node = await cluster.add_broker(broker_role=SLAVE, broker_id=1)
    cuts, outcomes = [], []

    def order_cut():
        node.service.order_rebuild(same, lambda: cuts.append(None), outcomes.append)

    await node.service.rebuild(with_id(0), order_cut)
    await trio.sleep(10)
    assert node.broker.config.role is Role.MASTER
    assert cuts == []
    assert [type(outcome) for outcome in outcomes] == [PartsReplaced]
    assert not node.service.tasks.failing


@simulated
async def test_a_master_does_not_rest_while_its_parts_are_replaced(cluster, monkeypatch):
    """Its tasks may have ended already, and nobody would say so again."""
    node = await cluster.add_broker()
    build_again = node.service._build_again

    async def build_slowly(change):
        await trio.sleep(1)
        return await build_again(change)

    monkeypatch.setattr(node.service, "_build_again", build_slowly)
    client = cluster.dial(node.address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.service.rebuild, same)
        await trio.sleep(0.5)
        with trio.fail_after(10), pytest.raises(RequestError, match="broker-a gets another role meanwhile"):
            await node.service.rest(frozenset())
    await client.ask(message())
    await node.service.rest(frozenset())
    node.service.resume()
    await client.ask(message())


@simulated
async def test_a_change_of_the_parts_ends_a_rest_that_has_begun(cluster, monkeypatch):
    """One of the tasks of a master ends slowly, and the change comes before it has."""
    node = await cluster.add_broker()
    start_tasks = node.service._start_tasks_of_master

    async def end_slowly():
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)

    def start_with_a_slow_one(nursery):
        start_tasks(nursery)
        nursery.start_soon(end_slowly)

    monkeypatch.setattr(node.service, "_start_tasks_of_master", start_with_a_slow_one)
    await node.service.rebuild(same)
    await settle()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.service.rebuild, same)
        with trio.fail_after(10), pytest.raises(RequestError, match="gets another role meanwhile"):
            await node.service.rest(frozenset())
    await cluster.dial(node.address).ask(message())


@simulated
async def test_a_fenced_broker_stays_fenced_when_a_change_fails_before_its_store_is_closed(cluster):
    await cluster.namesrv()
    node = await cluster.add_broker(message_delay_level="2s")
    client = cluster.dial(node.address)
    await client.ask(message(properties={"DELAY": "1"}))
    await node.service.rest(frozenset())
    await node.service.fence("another broker may be the master")
    end = node.broker.store.max_physical_offset

    def impossible(config):
        raise ValueError("brokerId=0 is no slave")

    with pytest.raises(ValueError, match="is no slave"):
        await node.service.rebuild(impossible)
    await trio.sleep(35)
    with pytest.raises(RequestError, match="is fenced: another broker may be the master"):
        await client.ask(message())
    assert node.broker.store.max_physical_offset == end, "nor does it deliver delayed messages"
    assert "broker-a" not in registered(cluster)
    await node.service.rebuild(same)
    await client.ask(message())
    await settle()
    assert "broker-a" in registered(cluster)
