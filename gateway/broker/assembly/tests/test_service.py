import contextlib

import pytest
import trio

from gateway.broker.consumers.broadcast_offsets import BroadcastOffsets
from gateway.broker.consumers.client_registry import ClientRegistry
from gateway.broker.consumers.consumer_offsets import ConsumerOffsets
from gateway.broker.delayed.delay_service import DelayService
from gateway.broker.delayed.timer_delivery import TimerDelivery
from gateway.broker.messages.group_commit import GroupCommit
from gateway.broker.pop.deadlines import Deadlines
from gateway.broker.statistics.traffic_rates import TrafficRates
from gateway.broker.topics.topic_table import SAVE_INTERVAL_S
from gateway.broker.transactions.end_transaction import OpMessageWriter
from gateway.broker.transactions.transaction_checks import TransactionChecks
from gateway.broker.waiting.long_poll import LongPolls
from gateway.tests.cluster import EPOCH_MS, bodies, message, pull, settle, simulated
from remoting.bodies.heartbeat import ConsumerData, HeartbeatData
from remoting.bodies.pop import SetMessageRequestModeRequestBody
from remoting.errors import RemotingTimeout, RequestError
from remoting.requests.client import HeartBeat
from remoting.requests.pop import GetAllMessageRequestMode, SetMessageRequestMode
from storage.append import NewMessage
from storage.crash_files import CrashFiles
from storage.files import MemoryFiles
from storage.store import MessageStore


def beat(group="GID"):
    consumer = ConsumerData(group_name=group, consume_type="CONSUME_PASSIVELY", message_model="CLUSTERING")
    return HeartBeat(data=HeartbeatData(client_id="c", consumer_data_set=[consumer]))


@simulated
async def test_a_closed_connection_leaves_its_groups_and_its_waiting_pulls(cluster):
    node = await cluster.add_broker()
    client, other = cluster.dial(node.address), cluster.dial(node.address)
    await other.ask(message())
    await client.ask(beat())
    cluster.nursery.start_soon(swallow, client.ask, pull(offset=1, wait_ms=15_000), 20)
    await settle()
    assert (len(node.broker.long_polls), "GID" in node.broker.clients.consumers) == (1, True)
    client.close()
    await settle()
    assert (len(node.broker.long_polls), "GID" in node.broker.clients.consumers) == (0, False)


async def swallow(function, *args):
    with pytest.raises(Exception, match="closed"):
        await function(*args)


@simulated
async def test_clients_without_heartbeats_are_dropped(cluster):
    node = await cluster.add_broker(channel_expired_timeout_ms=30_000)
    client = cluster.dial(node.address)
    await client.ask(beat())
    await trio.sleep(25)
    assert not client.closed
    await trio.sleep(20)
    assert client.closed
    assert not node.broker.clients.consumers


@simulated
async def test_offsets_are_written_while_the_broker_runs(cluster):
    files = MemoryFiles()
    node = await cluster.add_broker(files=files, flush_consumer_offset_interval_ms=2000)
    client = cluster.dial(node.address)
    await client.ask(message())
    await client.ask(pull(commit=1))
    path = "/broker-a/config/consumerOffset.json"
    assert files.read_small(path) is None
    await trio.sleep(2.1)
    assert b'"orders@GID":{0:1}' in (files.read_small(path) or b"")


@simulated
async def test_a_created_topic_is_written_at_once_and_further_ones_together(cluster):
    files = MemoryFiles()
    node = await cluster.add_broker(files=files)
    client = cluster.dial(node.address)

    def written():
        return files.read_small("/broker-a/config/topics.json") or b""

    await trio.sleep(10)
    await client.ask(message(topic="one"))
    await trio.sleep(0.01)
    assert b'"one"' in written()
    for topic in ("two", "three"):
        await client.ask(message(topic=topic))
    await trio.sleep(0.01)
    assert b'"two"' not in written()
    await trio.sleep(SAVE_INTERVAL_S)
    assert b'"two"' in written()
    assert b'"three"' in written()


@simulated
async def test_tables_are_settled_while_the_broker_runs(cluster, caplog):
    files = CrashFiles()
    node = await cluster.add_broker(files=files)
    client = cluster.dial(node.address)
    for topic in ("one", "two", "three"):
        await client.ask(message(topic=topic))  # makes the topic
        await trio.sleep(SAVE_INTERVAL_S)
    path = "/broker-a/config/topics.json"
    assert path in files.unflushed_small
    flush_small = files.flush_small
    files.flush_small = refuse
    await trio.sleep(1.1)
    assert "configuration file not written" in caplog.text
    files.flush_small = flush_small
    await trio.sleep(7)
    assert path not in files.unflushed_small
    assert b'"three"' in files.small[path]


def set_mode(share):
    body = SetMessageRequestModeRequestBody(
        topic="orders", consumer_group="GID", mode="POP", pop_share_queue_num=share
    )
    return SetMessageRequestMode(data=body)


@simulated
async def test_request_modes_are_settled_while_the_broker_runs(cluster):
    files = CrashFiles()
    node = await cluster.add_broker(files=files)
    client = cluster.dial(node.address)
    await client.ask(message())
    for share in (1, 2):
        await client.ask(set_mode(share))
    path = "/broker-a/config/messageRequestMode.json"
    assert path in files.unflushed_small
    await trio.sleep(7)
    assert path not in files.unflushed_small


@simulated
async def test_request_modes_that_cannot_be_written_are_refused(cluster, caplog):
    files = CrashFiles()
    node = await cluster.add_broker(files=files)
    client = cluster.dial(node.address)
    await client.ask(message())
    write_small = files.write_small
    files.write_small = refuse
    with pytest.raises(RequestError, match="the change was not stored and is undone"):
        await client.ask(set_mode(1))
    assert "configuration file not written" in caplog.text
    assert (await client.ask(GetAllMessageRequestMode())).data.message_request_mode_map == {}
    files.write_small = write_small
    await client.ask(set_mode(1))
    assert files.read_small("/broker-a/config/messageRequestMode.json")


def refuse(path, data=b"", backup=None):
    raise OSError("no room after all")


@simulated
async def test_the_index_grows_while_nothing_is_sent(cluster):
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    await client.ask(message(properties={"KEYS": "k1"}))
    assert node.broker.store.index.unindexed_bytes > 0
    await trio.sleep(2)
    assert node.broker.store.index.unindexed_bytes == 0


def record_checkpoints(cluster, store):
    """Return a list that gets the time of each checkpoint from now on, in ms."""
    times = []
    write_checkpoint = store.write_checkpoint

    def record():
        times.append(cluster.clock.now_ms() - EPOCH_MS)
        return write_checkpoint()

    store.write_checkpoint = record
    return times


@simulated
async def test_checkpoints_are_written_only_when_something_was_stored(cluster):
    node = await cluster.add_broker()
    store = node.broker.store
    checkpoint_times = record_checkpoints(cluster, store)
    await trio.sleep(5)
    assert not checkpoint_times
    await cluster.dial(node.address).ask(message())
    await trio.sleep(5)
    assert len(checkpoint_times) == 1


@simulated
async def test_a_checkpoint_is_written_once_after_messages_have_expired(cluster):
    """The file of queue ends goes with it: the log does not tell any more how far the queues had come."""
    node = await cluster.add_broker()
    store = node.broker.store
    await cluster.dial(node.address).ask(message())
    await trio.sleep(5)
    checkpoint_times = record_checkpoints(cluster, store)
    store.commit_log.first_base += 1
    await trio.sleep(5)
    store.commit_log.first_base -= 1
    assert len(checkpoint_times) == 1


@simulated
async def test_old_files_are_removed(cluster):
    node = await cluster.add_broker(clean_resource_interval_ms=1000, delete_files_max=4)
    removed = [1, 1, 0, 1, 0] + [1] * 20
    asked = []

    def clean(manual, max_files):
        asked.append(max_files)
        return removed.pop(0)

    node.broker.store.delete_expired_log_files = clean
    await trio.sleep(2.5)
    assert asked == [1] * 5, "until there is no more"
    await trio.sleep(1)
    assert asked == [1] * 9, "or too much at once"


@simulated
async def test_a_background_task_that_fails_goes_on(cluster, caplog):
    node = await cluster.add_broker(clean_resource_interval_ms=1000)
    node.broker.store.delete_expired_log_files = lambda manual, max_files: 1 / 0
    await trio.sleep(2.5)
    assert caplog.text.count("background task failed") == 2
    assert (await cluster.dial(node.address).ask(message())).queue_offset == 0


@simulated
async def test_delivery_of_delayed_messages_survives_a_defect(cluster, caplog):
    node = await cluster.add_broker(message_delay_level="1s 2s")
    client = cluster.dial(node.address)
    await client.ask(message(body=b"plain"))
    await client.ask(message(body=b"late", properties={"DELAY": "1"}))
    deliver = node.broker.delay_service.deliver_due
    node.broker.delay_service.deliver_due = lambda now_ms: 1 / 0
    await trio.sleep(4.5)
    assert 3 <= caplog.text.count("background task failed") <= 5, "with pauses in between"
    node.broker.delay_service.deliver_due = deliver
    await trio.sleep(1.5)
    assert bodies(await client.ask(pull(offset=1))) == [b"late"]


@simulated
async def test_messages_put_by_the_broker_wake_with_the_next_batch(cluster):
    node = await cluster.add_broker(message_delay_level="1s")
    client = cluster.dial(node.address)
    await client.ask(message())
    node.broker.writer.write(NewMessage("orders", 0, b"inner", {"DELAY": "1"}))
    start = cluster.clock.now_ms()
    assert bodies(await client.ask(pull(offset=1, wait_ms=15_000), 20)) == [b"inner"]
    assert cluster.clock.now_ms() - start == 1000


@simulated
async def test_a_table_that_cannot_be_written_keeps_nothing_else_from_being_closed(cluster):
    files = MemoryFiles()
    node = await cluster.add_broker(files=files)
    client = cluster.dial(node.address)
    await client.ask(message())
    await client.ask(pull(commit=1))

    def fail():
        raise OSError("no room")

    offsets = node.broker.offsets.persist
    node.broker.topics.persist = fail
    with pytest.raises(OSError, match="no room"):
        node.service.close()
    assert files.size("/broker-a/abort"), (
        "the store was closed as after a kill: the next start reads the journal"
    )
    assert files.read_small("/broker-a/config/consumerOffset.json")
    node.service.close = offsets
    node.scope.cancel()
    await node.ended.wait()


@simulated
async def test_answers_of_two_brokers_of_one_process_do_not_mix(cluster):
    first, second = [await cluster.add_broker(name) for name in ("broker-a", "broker-b")]
    await cluster.dial(first.address).ask(message(body=b"first"))
    client = cluster.dial(second.address)
    await client.ask(message(body=b"second"))
    assert bodies(await client.ask(pull())) == [b"second"]


@simulated
async def test_one_task_at_a_time_writes_the_offsets(cluster):
    node = await cluster.add_broker(flush_consumer_offset_interval_ms=3_600_000)
    service, at_work, most = node.service, 0, 0

    async def slow(work):
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await trio.sleep(1)
        work()
        at_work -= 1

    node.broker.offsets.file.run_blocking = slow
    async with trio.open_nursery() as nursery:
        for offset in (1, 2):
            node.broker.offsets.commit_offset("g", "orders", 0, offset)
            nursery.start_soon(service._save_offsets)
            await trio.sleep(0.5)
    assert most == 1
    assert not node.broker.offsets.is_dirty


PLANTED = "planted defect"


class Defect:
    """Replaces a method by one that raises while the defect is present."""

    def __init__(self, monkeypatch, part, method):
        self.is_present = True
        original = getattr(part, method)

        def planted(*arguments, **keywords):
            if self.is_present:
                raise ZeroDivisionError(PLANTED)
            return original(*arguments, **keywords)

        monkeypatch.setattr(part, method, planted)


@pytest.mark.parametrize(
    ("part", "method"),
    [
        (LongPolls, "expire_due"),
        (GroupCommit, "_flush_once"),
        (DelayService, "next_due_ms"),
        (DelayService, "deliver_due"),
        (Deadlines, "next_due_ms"),
        (TransactionChecks, "run_round"),
        (OpMessageWriter, "flush"),
        (ConsumerOffsets, "save_changes"),
        (ClientRegistry, "close_expired"),
        (TrafficRates, "take_sample"),
        (BroadcastOffsets, "commit_and_expire"),
        (MessageStore, "build_index"),
        (MessageStore, "delete_expired_log_files"),
        (MessageStore, "write_checkpoint"),
        (TimerDelivery, "next_due_ms"),
        (TimerDelivery, "read_topic"),
        (TimerDelivery, "update_rates"),
        (TimerDelivery, "take_unsaved"),
    ],
)
@simulated
async def test_a_defect_in_a_background_task_is_shown_and_survived(
    cluster, monkeypatch, caplog, part, method
):
    defect = Defect(monkeypatch, part, method)
    node = await cluster.add_broker(transaction_check_interval_ms=1000, clean_resource_interval_ms=1000)
    client = cluster.dial(node.address)
    await client.ask(message())
    await client.ask(message(topic="delayed", properties={"DELAY": "1"}))
    cluster.nursery.start_soon(ask_in_vain, client, pull(offset=1, wait_ms=500))
    await trio.sleep(20)
    assert {health.last_error for health in node.service.tasks.failing} == {f"ZeroDivisionError: {PLANTED}"}
    defect.is_present = False
    await trio.sleep(200)
    client = cluster.dial(node.address)
    await client.ask(message())
    assert bodies(await client.ask(pull())) == [b"hello", b"hello"]
    assert not node.service.tasks.failing
    assert {record.exc_info[0] for record in caplog.records if record.exc_info} == {ZeroDivisionError}


async def ask_in_vain(client, request):
    with contextlib.suppress(RemotingTimeout):
        await client.ask(request, 30)
