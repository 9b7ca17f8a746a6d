import json

import pytest
import trio

from codec.message import decode_message
from gateway.broker.messages.damaged_records import RecordKind
from gateway.broker.pop import reviver as reviver_module
from gateway.broker.pop.receipts import REVIVE_GROUP, SEEN_GROUP
from gateway.tests.cluster import EPOCH_MS, settle, simulated
from gateway.tests.popping import RETRY, REVIVE, Client, bodies, now
from remoting.errors import RequestError
from remoting.requests.pop import AckMessage
from storage.append import NewMessage
from storage.errors import CorruptionError
from storage.files import MemoryFiles


def stored(node, topic, queue_id=0):
    """Return every message of a queue."""
    store = node.broker.store
    offsets = range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id))
    return [decode_message(store.read(topic, queue_id, offset, 1).chunks[0]) for offset in offsets]


def records(node):
    """Return (tag, value) of every record of the revive topic."""
    found = [each for queue_id in range(8) for each in stored(node, REVIVE, queue_id)]
    return [(each.tags, json.loads(each.body)) for each in found]


@simulated
async def test_messages_come_again_in_the_millisecond_their_time_is_over(cluster):
    client = Client(cluster, await cluster.add_broker())
    await client.send(b"a", b"b", b"c", tags="T", key="K")
    first = await client.pop(invisible_time=10_000)
    started = now(cluster)
    await client.ack(first[1])
    again = await client.pop(poll_time=60_000, exp="T")
    assert now(cluster) == started + 10_000
    assert (bodies(again), {each.times for each in again}) == ([b"a", b"c"], {1})
    message = again[0].message
    assert (message.topic, message.tags, message.unique_key) == ("orders", "T", "K")
    assert message.properties["1ST_POP_TIME"] == str(EPOCH_MS + started)
    assert message.properties["ORIGIN_GROUP"] == "GID"
    assert again[0].topic == RETRY


@simulated
async def test_a_deadline_that_never_comes_delays_no_other(cluster):
    node = await cluster.add_broker()
    client = Client(cluster, node)
    node.broker.pop.deadlines.schedule(10**400, lambda: None)
    await trio.sleep(20)
    await client.send(b"a")
    await client.pop(invisible_time=10_000)
    started = now(cluster)
    assert bodies(await client.pop(poll_time=60_000)) == [b"a"]
    assert now(cluster) == started + 10_000


@simulated
async def test_a_retried_message_keeps_its_first_pop_and_topic(cluster):
    node = await cluster.add_broker()
    client = Client(cluster, node)
    await client.send(b"a")
    first_pop = None
    for times in range(4):
        (each,) = await client.pop(poll_time=60_000, invisible_time=1_000)
        first_pop = first_pop or each.receipt.split(" ")[1]
        assert (each.times, each.message.properties.get("1ST_POP_TIME", first_pop)) == (times, first_pop)
    assert [topic for topic in node.broker.topics.table if topic.startswith("%RETRY%")] == [RETRY]
    await client.ack(each)
    assert await client.pop(poll_time=5_000) == []


@simulated
async def test_acked_messages_leave_nothing_behind(cluster):
    node = await cluster.add_broker()
    client = Client(cluster, node)
    await client.send(*(b"%d" % number for number in range(40)))
    popped = await client.pop() + await client.pop()
    assert len(popped) == 40
    assert len(node.broker.pop.state.reviver) == 2
    for each in popped:
        await client.ack(each)
    assert (
        len(node.broker.pop.state.reviver),
        len(node.broker.pop.deadlines),
        node.broker.pop.state.reviver._outstanding_counts,
    ) == (
        0,
        0,
        {},
    )
    assert stored(node, RETRY) == []


@simulated
async def test_an_ack_that_comes_too_late_changes_nothing(cluster):
    node = await cluster.add_broker()
    client = Client(cluster, node)
    await client.send(b"a")
    (first,) = await client.pop(invisible_time=1_000)
    await trio.sleep(2)
    count = len(records(node))
    await client.ack(first)
    assert len(records(node)) == count
    assert bodies(await client.pop()) == [b"a"]


@simulated
async def test_batches_of_acks_of_several_pops(cluster):
    client = Client(cluster, await cluster.add_broker())
    await client.send(*(b"%d" % number for number in range(6)))
    popped = await client.pop(max_msg_nums=3) + await client.pop(max_msg_nums=3)
    await client.batch_ack(*(each for each in popped if each.body not in (b"2", b"3")))
    assert bodies(await client.pop(poll_time=60_000)) == [b"2", b"3"]


@simulated
async def test_a_changed_time_replaces_the_first(cluster):
    node = await cluster.add_broker()
    client = Client(cluster, node)
    await client.send(b"a", b"b")
    later, sooner = await client.pop(invisible_time=10_000)
    await trio.sleep(1)
    reply = await client.change(later, 60_000)
    assert (reply.invisible_time, reply.pop_time) == (60_000, cluster.clock.now_ms())
    await client.change(sooner, 2_000)
    (again,) = await client.pop(poll_time=60_000)
    assert (again.body, now(cluster)) == (b"b", 3_000)
    await client.ack(again)
    assert await client.pop(poll_time=50_000) == []
    assert node.broker.pop.state.reviver.count_outstanding("orders", "GID", 0) == 1
    assert bodies(await client.pop(poll_time=60_000)) == [b"a"]
    assert node.broker.pop.state.reviver.count_outstanding("orders", "GID", 0) == 0
    assert now(cluster) == 61_000


@simulated
async def test_a_time_changed_in_the_same_millisecond_loses_no_other_message(cluster):
    client = Client(cluster, await cluster.add_broker())
    await client.send(b"a", b"b", b"c")
    first, *_ = await client.pop(invisible_time=5_000)
    reply = await client.change(first, 20_000)
    assert reply.pop_time == cluster.clock.now_ms() + 1
    assert bodies(await client.pop(poll_time=60_000, invisible_time=90_000)) == [b"b", b"c"]
    assert bodies(await client.pop(poll_time=60_000)) == [b"a"]


@simulated
async def test_what_was_out_is_out_after_a_crash_and_what_was_acked_is_acked(cluster):
    files = MemoryFiles()
    node = await cluster.add_broker(files=files)
    client = Client(cluster, node)
    await client.send(*(b"%d" % number for number in range(6)))
    popped = await client.pop(max_msg_nums=4, invisible_time=10_000)
    await client.ack(popped[0])
    await client.batch_ack(popped[1], popped[2])
    await client.change(popped[3], 30_000)
    await node.crash()
    again = Client(cluster, await cluster.add_broker(host="10.0.1.9", files=files))
    rest = await again.pop()
    assert bodies(rest) == [b"4", b"5"]
    await again.ack(*rest)
    assert bodies(await again.pop(poll_time=90_000)) == [b"3"]
    assert now(cluster) == 30_000


@simulated
async def test_a_crash_after_messages_came_again_brings_none_twice(cluster):
    files = MemoryFiles()
    node = await cluster.add_broker(files=files, flush_consumer_offset_interval_ms=600_000)
    client = Client(cluster, node)
    await client.send(b"a", b"b")
    await client.pop(invisible_time=1_000)
    assert bodies(await client.pop(poll_time=60_000, invisible_time=300_000)) == [b"a", b"b"]
    await node.crash()
    node = await cluster.add_broker(host="10.0.1.9", files=files)
    assert len(node.broker.pop.state.reviver) == 1
    assert await Client(cluster, node).pop(poll_time=100_000) == []
    assert len(stored(node, RETRY)) == 2


@simulated
async def test_a_reset_that_was_saved_holds_after_a_crash(cluster):
    files = MemoryFiles()
    node = await cluster.add_broker(files=files)
    client = Client(cluster, node)
    await client.send(b"a", b"b", b"c")
    await client.ack(*(await client.pop(invisible_time=300_000))[1:])
    node.broker.offsets.commit_offset("GID", "orders", 0, 1)
    await trio.sleep(6)
    await node.crash()
    again = Client(cluster, await cluster.add_broker(host="10.0.1.9", files=files))
    assert bodies(await again.pop()) == [b"b", b"c"]


@simulated
async def test_an_orderly_stop_keeps_what_is_out(cluster):
    files = MemoryFiles()
    node = await cluster.add_broker(files=files)
    client = Client(cluster, node)
    await client.send(b"a", b"b")
    acked, _ = await client.pop(invisible_time=10_000)
    await client.ack(acked)
    await node.stop()
    again = Client(cluster, await cluster.add_broker(host="10.0.1.9", files=files))
    assert bodies(await again.pop(poll_time=60_000)) == [b"b"]
    assert now(cluster) == 10_000


@simulated
async def test_the_revive_offset_is_that_of_the_last_record_done_with(cluster):
    node = await cluster.add_broker(revive_queue_num=1)
    client = Client(cluster, node)
    await client.send(b"a", b"b")
    first = await client.pop(max_msg_nums=1, invisible_time=20_000)
    second = await client.pop(max_msg_nums=1, invisible_time=300_000)
    await client.ack(*second)  # records: 0 and 1 of the pops, 2 of the ack
    offsets = node.broker.offsets
    await trio.sleep(6)
    assert offsets.query_offset(REVIVE_GROUP, REVIVE, 0) == -1
    await trio.sleep(20)
    assert offsets.query_offset(REVIVE_GROUP, REVIVE, 0) == 3
    assert first


@simulated
async def test_a_checkpoint_far_behind_is_written_again(cluster, monkeypatch):
    monkeypatch.setattr(reviver_module, "MAX_RECORDS_BEHIND", 5)
    files = MemoryFiles()
    node = await cluster.add_broker(revive_queue_num=1, files=files)
    client = Client(cluster, node)
    await client.send(b"early", b"acked", *(b"%d" % number for number in range(20)))
    early = await client.pop(max_msg_nums=2, invisible_time=100_000)
    await client.ack(early[1])
    for _ in range(10):
        await client.ack(*await client.pop(max_msg_nums=2))
    await trio.sleep(6)
    assert node.broker.offsets.query_offset(REVIVE_GROUP, REVIVE, 0) > 10
    await node.crash()
    again = Client(cluster, await cluster.add_broker(host="10.0.1.9", files=files, revive_queue_num=1))
    assert bodies(await again.pop(poll_time=200_000)) == [b"early"]
    assert now(cluster) == 100_000


@simulated
async def test_records_that_a_timer_brings_wait_for_acks_that_do_the_same(cluster):
    node = await cluster.add_broker()
    client = Client(cluster, node)
    await client.send(b"a", b"b")
    node.broker.offsets.commit_offset("GID", "orders", 0, 2)
    value = {
        "bn": "broker-a",
        "c": "GID",
        "d": [0, 1],
        "it": 5_000,
        "n": 2,
        "pt": EPOCH_MS,
        "q": 0,
        "so": 0,
        "t": "orders",
    }
    put, now_ms = node.broker.writer, cluster.clock.now_ms

    def record(tag, content):
        properties = {"TAGS": tag, "TIMER_OUT_MS": str(now_ms())}
        put.append(NewMessage(REVIVE, 3, json.dumps(content).encode(), properties))
        node.broker.long_polls.answer_marked()

    await trio.sleep(4)
    record("ck", value)
    await trio.sleep(1.5)
    record("ack", {**value, "ao": 1})
    assert bodies(await client.pop(poll_time=60_000)) == [b"a"]
    assert now(cluster) == 8_000


@simulated
async def test_acks_of_a_pop_that_is_with_a_timer_go_there_too(cluster):
    node = await cluster.add_broker()
    client = Client(cluster, node)
    await client.send(b"a")
    receipt = f"0 {EPOCH_MS} 5000 3 0 broker-a 0 0"
    await client.connection.ask(
        AckMessage(consumer_group="GID", topic="orders", queue_id=0, extra_info=receipt, offset=0)
    )
    assert records(node) == []
    await trio.sleep(6)
    assert [tag for tag, _ in records(node)] == ["ack"]


@simulated
async def test_what_is_no_record_is_passed_over(cluster):
    files = MemoryFiles()
    node = await cluster.add_broker(files=files)
    client = Client(cluster, node)
    for tag, body in (("ck", b"{"), ("ck", b"[]"), ("odd", b"{}"), (None, b""), ("ack", b"{}")):
        properties = {"TAGS": tag} if tag else {}
        node.broker.writer.append(NewMessage(REVIVE, 0, body, properties))
    await client.send(b"a")
    await client.pop(invisible_time=1_000)
    await node.crash()
    again = Client(cluster, await cluster.add_broker(host="10.0.1.9", files=files))
    assert bodies(await again.pop(poll_time=60_000)) == [b"a"]


def checkpoint(**fields):
    """Return the body of a pop record about message 0 of queue 0, with some fields replaced."""
    value = {
        "bn": "broker-a", "c": "GID", "d": [0], "it": 1_000, "n": 1, "pt": EPOCH_MS, "q": 0, "so": 0, "t": "orders",
    }  # fmt: skip
    return json.dumps(value | fields).encode()


def put_records(node, *records):
    """Store records of (tag, body) in revive queue 0 and tell the broker of them, as a timer does."""
    for tag, body in records:
        node.broker.writer.append(NewMessage(REVIVE, 0, body, {"TAGS": tag}))
    node.broker.long_polls.answer_marked()


UNUSABLE = [
    ("ck", checkpoint(n=10**18, d=None)),
    ("ck", checkpoint().replace(b"1000", b"1" * 400)),
    ("ck", checkpoint().replace(b"1000", b"1" * 5_000)),
    ("ck", checkpoint(so=(1 << 62))),
    ("ck", checkpoint(t="x" * 32_000)),
    ("ck", checkpoint(c=None)),
    ("ck", checkpoint(t="gone")),
    ("ck", checkpoint(pad="x" * 70_000)),
    ("ck", b"[" * 90_000),
    ("ack", checkpoint(ao=10**400)),
    ("bAck", checkpoint(aol=list(range(5_000)))),
    ("odd", checkpoint()),
]


@simulated
async def test_records_that_cannot_be_used_stop_no_others_also_after_a_restart(cluster):
    files = MemoryFiles()
    node = await cluster.add_broker(files=files)
    client = Client(cluster, node)
    await client.send(b"a")
    node.broker.offsets.commit_offset("GID", "orders", 0, 1)
    put_records(node, *UNUSABLE, ("ck", checkpoint()))
    node.broker.offsets.persist()
    assert node.broker.damaged.count(RecordKind.POP_RECORD) == len(UNUSABLE)
    assert len(node.broker.pop.state.reviver) == 1
    await node.crash()
    node = await cluster.add_broker(host="10.0.1.9", files=files)
    assert node.broker.damaged.count(RecordKind.POP_RECORD) == len(UNUSABLE)
    assert bodies(await Client(cluster, node).pop(poll_time=60_000)) == [b"a"]


@simulated
async def test_a_record_that_cannot_be_used_is_counted_once(cluster):
    node = await cluster.add_broker()
    for _ in range(2):
        put_records(node, ("ck", b"{"))
    assert node.broker.damaged.count(RecordKind.POP_RECORD) == 2


@simulated
async def test_a_checkpoint_that_is_never_due_holds_none_back(cluster):
    files = MemoryFiles()
    node = await cluster.add_broker(files=files)
    client = Client(cluster, node)
    await client.send(b"a", b"b")
    node.broker.offsets.commit_offset("GID", "orders", 0, 2)
    put_records(node, ("ck", checkpoint(it=(1 << 63) - 1)), ("ck", checkpoint(so=1)))
    assert bodies(await client.pop(poll_time=60_000, invisible_time=10**9)) == [b"b"]
    await node.crash()
    node = await cluster.add_broker(host="10.0.1.9", files=files)
    assert len(node.broker.pop.state.reviver) == 2


@simulated
async def test_a_forged_checkpoint_moves_no_group_past_its_messages(cluster):
    node = await cluster.add_broker()
    client = Client(cluster, node)
    await client.send(b"a", b"b")
    put_records(node, ("ck", checkpoint(so=5)), ("ck", checkpoint(d=[1 << 30])))
    assert bodies(await client.pop()) == [b"a", b"b"]


@simulated
async def test_offsets_of_the_broker_that_cannot_be_are_corrected(cluster):
    files = MemoryFiles()
    node = await cluster.add_broker(files=files, revive_queue_num=1)
    client = Client(cluster, node)
    await client.send(b"a")
    for group in (REVIVE_GROUP, SEEN_GROUP):
        node.broker.offsets.commit_offset(group, REVIVE, 0, 1 << 62)
    node.broker.offsets.persist()
    await node.crash()
    node = await cluster.add_broker(host="10.0.1.9", files=files, revive_queue_num=1)
    await Client(cluster, node).pop(invisible_time=10_000)
    node.broker.pop.state.reviver.commit_offsets()
    assert node.broker.offsets.query_offset(SEEN_GROUP, REVIVE, 0) == 1
    assert node.broker.offsets.query_offset(REVIVE_GROUP, REVIVE, 0) in (-1, 1 << 62)
    await trio.sleep(11)
    node.broker.pop.state.reviver.commit_offsets()
    assert node.broker.offsets.query_offset(REVIVE_GROUP, REVIVE, 0) == 1


@simulated
async def test_a_pop_recorded_after_records_were_lost_survives_another_crash(cluster):
    """The saved offset names a record that the log lost in a power cut; the next pop's record takes its place."""
    files = MemoryFiles()
    node = await cluster.add_broker(files=files, revive_queue_num=1)
    await Client(cluster, node).send(b"a")
    node.broker.offsets.commit_offset(REVIVE_GROUP, REVIVE, 0, 5)
    node.broker.offsets.persist()
    await node.crash()
    node = await cluster.add_broker(host="10.0.1.8", files=files, revive_queue_num=1)
    assert bodies(await Client(cluster, node).pop(invisible_time=10_000)) == [b"a"]
    await trio.sleep(6)  # until the consumer offsets are saved
    await node.crash()
    node = await cluster.add_broker(host="10.0.1.9", files=files, revive_queue_num=1)
    assert bodies(await Client(cluster, node).pop(poll_time=60_000)) == [b"a"]


@simulated
async def test_acks_of_unknown_pops_leave_nothing_in_memory(cluster):
    node = await cluster.add_broker()
    put_records(node, *(("ack", checkpoint(ao=number, so=number)) for number in range(100)))
    reviver = node.broker.pop.state.reviver
    assert (len(reviver), reviver._outstanding_counts, len(node.broker.pop.deadlines)) == (0, {}, 0)


@pytest.mark.parametrize("restarted", [False, True])
@simulated
async def test_at_the_limit_the_oldest_pop_is_revived_early(cluster, restarted):
    files = MemoryFiles()
    node = await cluster.add_broker(files=files, max_outstanding_pops=100 if restarted else 3)
    client = Client(cluster, node)
    await client.send(*(b"%d" % number for number in range(4)))
    for _ in range(4):
        await client.pop(max_msg_nums=1, invisible_time=10**12)
    if restarted:
        await node.crash()
        node = await cluster.add_broker(host="10.0.1.9", files=files, max_outstanding_pops=3)
    assert len(node.broker.pop.state.reviver) == len(node.broker.pop.deadlines) == 3
    assert len(stored(node, RETRY)) == 1
    if not restarted:
        assert bodies(await client.pop()) == [b"0"]


@simulated
async def test_a_message_without_room_for_more_properties_is_revived_as_it_is(cluster):
    node = await cluster.add_broker()
    client = Client(cluster, node)
    await client.send(b"a", properties={"long": "x" * 32_670})
    await client.send(b"b")
    await client.pop(invisible_time=1_000)
    await trio.sleep(2)
    revived = {message.body: message for message in stored(node, RETRY)}
    assert (sorted(revived), revived[b"a"].reconsume_times) == ([b"a", b"b"], 1)
    assert "1ST_POP_TIME" not in revived[b"a"].properties
    assert "1ST_POP_TIME" in revived[b"b"].properties
    # Its receipt handle does not fit either; the answer has the others.
    assert bodies(await client.pop()) == [b"b"]
    assert node.broker.damaged.count(RecordKind.POPPED_MESSAGE) == 1


@simulated
async def test_a_popped_message_that_cannot_be_stored_again_is_given_up(cluster):
    node = await cluster.add_broker()
    client = Client(cluster, node)
    await client.send(b"a" * 1000, b"b")
    await client.pop(invisible_time=1_000)
    node.broker.store._max_message_bytes = 100
    await trio.sleep(2)
    node.broker.store._max_message_bytes = 100_000
    assert bodies(await client.pop(poll_time=60_000)) == [b"b"]
    assert node.broker.damaged.count(RecordKind.POPPED_MESSAGE) == 1
    assert len(node.broker.pop.state.reviver) == 1


@simulated
async def test_messages_of_topics_and_groups_that_are_gone_are_dropped(cluster):
    node = await cluster.add_broker()
    client = Client(cluster, node)
    await client.send(b"a")
    await client.pop(invisible_time=1_000)
    node.broker.topics.delete("orders")
    await trio.sleep(2)
    assert len(node.broker.pop.state.reviver) == 0
    assert RETRY not in node.broker.topics


@simulated
async def test_a_store_that_refuses_keeps_messages_out_until_it_does_not(cluster):
    node = await cluster.add_broker()
    client = Client(cluster, node)
    await client.send(b"a")
    await client.pop(invisible_time=1_000)
    node.broker.store.disk_full = True
    await trio.sleep(5)
    assert len(node.broker.pop.state.reviver) == 1
    node.broker.store.disk_full = False
    assert bodies(await client.pop(poll_time=60_000)) == [b"a"]
    assert now(cluster) == 11_000


@pytest.mark.parametrize("given_up", [False, True])
@simulated
async def test_a_message_that_cannot_be_written_is_tried_again_later(cluster, given_up, monkeypatch):
    monkeypatch.setattr(reviver_module, "REPUT_INTERVALS_S", (10, 20, 30))
    node = await cluster.add_broker(skip_when_ck_reput_reach_max_times=given_up)
    client, reviver = Client(cluster, node), node.broker.pop.state.reviver
    await client.send(b"a", b"b")
    retry, refused = reviver._write_retry, []

    def refuse(key, message):
        if message.body == b"a" and len(refused) < 6:
            refused.append(now(cluster))
            raise RequestError(1, "not this one")
        retry(key, message)

    reviver._write_retry = refuse
    await client.pop(invisible_time=1_000)
    assert bodies(await client.pop(poll_time=5_000, invisible_time=10**9)) == [b"b"]
    await trio.sleep(200)
    assert refused[:4] == [1_000, 11_000, 31_000, 61_000]
    found = bodies(await Client(cluster, node).pop())
    assert (found, len(refused)) == (([], 4) if given_up else ([b"a"], 6))


@simulated
async def test_a_queue_of_the_retry_topic_for_each_queue_of_the_topic(cluster):
    node = await cluster.add_broker(use_separate_retry_queue=True, enable_retry_topic_v2=True)
    client = Client(cluster, node)
    await client.send(b"a", queue_id=2)
    await client.pop(invisible_time=1_000)
    (again,) = await client.pop(poll_time=60_000, invisible_time=1_000)
    assert (again.topic, again.message.queue_id) == ("%RETRY%GID+orders", 2)
    assert node.broker.topics.get("%RETRY%GID+orders").read_queue_nums == 4
    (again,) = await client.pop(poll_time=60_000)
    assert (again.times, again.message.queue_id) == (2, 2)


@simulated
async def test_many_that_are_due_at_once_do_not_keep_others_waiting(cluster):
    node = await cluster.add_broker()
    client = Client(cluster, node)
    await client.send(*(b"%d" % number for number in range(200)))
    for _ in range(200):
        await client.pop(max_msg_nums=1, invisible_time=5_000)
    await trio.sleep(5.001)
    await settle()
    assert len(stored(node, RETRY)) == 200


@simulated
async def test_pops_whose_records_are_cut_are_undone(cluster):
    node = await cluster.add_broker()
    client, offsets = Client(cluster, node), node.broker.offsets
    await client.send(*(b"%d" % number for number in range(10)))
    await client.send(b"other", queue_id=1)
    await client.ack(*await client.pop(queue_id=0, max_msg_nums=3))
    await client.pop(queue_id=1)
    end = node.broker.store.max_physical_offset
    await client.ack(*await client.pop(queue_id=0, max_msg_nums=2))
    await client.pop(queue_id=0, max_msg_nums=4)
    await client.pop(queue_id=0, max_msg_nums=1, group="LATER")
    assert offsets.query_offset("GID", "orders", 0) == 9
    list(node.broker.pop.state.reviver.undo_pops_from(end))
    assert offsets.query_offset("GID", "orders", 0) == 3
    assert offsets.query_offset("GID", "orders", 1) == 1
    assert offsets.query_offset("LATER", "orders", 0) == 0
    list(node.broker.pop.state.reviver.undo_pops_from(node.broker.store.max_physical_offset))
    assert offsets.query_offset("GID", "orders", 0) == 3


@simulated
async def test_a_longer_invisible_time_that_is_cut_leaves_the_group_where_it_is(cluster):
    """The record of the pop itself stays: whoever has the log revives the message."""
    node = await cluster.add_broker()
    client, offsets = Client(cluster, node), node.broker.offsets
    await client.send(*(b"%d" % number for number in range(10)))
    (early, *_) = await client.pop(queue_id=0, max_msg_nums=5)
    end = node.broker.store.max_physical_offset
    await client.change(early, 60_000)
    await client.change(early, 90_000)
    list(node.broker.pop.state.reviver.undo_pops_from(end))
    assert offsets.query_offset("GID", "orders", 0) == 5
    (late, *_) = await client.pop(queue_id=0, max_msg_nums=3)
    await client.change(late, 60_000)
    await client.change(early, 60_000)
    list(node.broker.pop.state.reviver.undo_pops_from(end))
    assert offsets.query_offset("GID", "orders", 0) == 5


@simulated
async def test_a_checkpoint_written_again_that_is_cut_leaves_the_group_where_it_is(cluster, monkeypatch):
    monkeypatch.setattr(reviver_module, "MAX_RECORDS_BEHIND", 3)
    node = await cluster.add_broker(revive_queue_num=1)
    client, reviver = Client(cluster, node), node.broker.pop.state.reviver
    await client.send(*(b"%d" % number for number in range(20)))
    await client.pop(queue_id=0, max_msg_nums=1, invisible_time=10**9)
    for _ in range(2):
        await client.ack(*await client.pop(queue_id=0, max_msg_nums=1))
    end = node.broker.store.max_physical_offset
    for _ in range(2):
        await client.ack(*await client.pop(queue_id=0, max_msg_nums=1))
    assert [value["so"] for tag, value in records(node) if tag == "ck"] == [0, 1, 2, 0, 3, 4, 0]
    list(reviver.undo_pops_from(end))
    assert node.broker.offsets.query_offset("GID", "orders", 0) == 3


@simulated
async def test_a_postponed_message_that_is_cut_leaves_the_group_where_it_is(cluster):
    node = await cluster.add_broker()
    client, reviver = Client(cluster, node), node.broker.pop.state.reviver
    await client.send(b"a", b"b")
    await client.pop(invisible_time=1_000)
    end = node.broker.store.max_physical_offset

    def refuse(key, message):
        raise RequestError(1, "not now")

    reviver._write_retry = refuse
    await trio.sleep(2)
    assert [tag for tag, _ in records(node)] == ["ck", "ck", "ck", "bAck"]
    list(reviver.undo_pops_from(end))
    assert node.broker.offsets.query_offset("GID", "orders", 0) == 2


@simulated
async def test_a_longer_invisible_time_moves_no_group_at_a_start(cluster):
    """A consumer may hold a message that its group is to get again, after its offset was set back."""
    files = MemoryFiles()
    node = await cluster.add_broker(files=files)
    client = Client(cluster, node)
    await client.send(*(b"%d" % number for number in range(10)))
    *_, last = await client.pop(queue_id=0)
    node.broker.offsets.commit_of_client("GID", "orders", 0, 3)
    await trio.sleep(6)
    await client.change(last, 60_000)
    await node.crash()
    node = await cluster.add_broker(files=files)
    assert node.broker.offsets.query_offset("GID", "orders", 0) == 3


@simulated
async def test_pops_are_undone_as_far_as_their_records_can_be_read(cluster, monkeypatch):
    node = await cluster.add_broker()
    client, offsets = Client(cluster, node), node.broker.offsets
    await client.send(b"0", b"1")
    for _ in range(2):
        await client.pop(queue_id=0, max_msg_nums=1)
    reviver, read = node.broker.pop.state.reviver, node.broker.pop.state.reviver.log.read_records_from

    def read_but_one(queue_id, physical_offset):
        records = list(read(queue_id, physical_offset))
        if any(record.content.key.start_offset == 0 for record in records):
            raise CorruptionError("the log", 0, "a damaged record")
        return iter(records)

    monkeypatch.setattr(reviver.log, "read_records_from", read_but_one)
    list(reviver.undo_pops_from(0))
    assert offsets.query_offset("GID", "orders", 0) == 1


@simulated
async def test_others_have_their_turn_while_many_pops_are_undone(cluster, monkeypatch):
    monkeypatch.setattr(reviver_module, "RECORDS_PER_SLICE", 1)
    node = await cluster.add_broker()
    client, offsets = Client(cluster, node), node.broker.offsets
    await client.send(*(b"%d" % number for number in range(9)))
    for _ in range(9):
        await client.pop(queue_id=0, max_msg_nums=1)
    assert len(list(node.broker.pop.state.reviver.undo_pops_from(0))) == 9
    assert offsets.query_offset("GID", "orders", 0) == 0


@pytest.mark.parametrize("crashes", [False, True])
@simulated
async def test_a_restarted_master_knows_which_offsets_pops_have_moved(cluster, crashes):
    """Its slave has them wait for the log: the records of the pops may not have been copied yet."""
    files = MemoryFiles()
    node = await cluster.add_broker(files=files)
    client = Client(cluster, node)
    await client.send(b"0")
    await client.ack(*await client.pop(queue_id=0))
    await trio.sleep(6)
    await (node.crash() if crashes else node.stop())
    node = await cluster.add_broker(files=files)
    reviver = node.broker.pop.state.reviver
    assert len(reviver) == 0
    assert reviver.popped_keys == {"orders@GID"}
    node.broker.offsets.remove_group("GID")
    assert reviver.prune_popped_keys() == set()
