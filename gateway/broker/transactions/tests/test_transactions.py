import pytest
import trio

from codec.command import Command
from codec.errors import MessageFormatError
from codec.message import Message, encode_message, iter_messages
from codec.sysflag import TRANSACTION_COMMIT
from codec.topics import TRANS_HALF_TOPIC, TRANS_OP_TOPIC
from gateway.broker.messages.waiting_message import parse_real_queue
from gateway.broker.transactions.end_transaction import is_plain_half
from gateway.tests.cluster import EPOCH_MS, message, pull, settle, simulated
from gateway.tests.transacting import (
    COMMIT,
    ERROR,
    FORBIDDEN,
    ROLLBACK,
    UNAVAILABLE,
    UNKNOWN,
    UNSET,
    orders,
    queue,
    refused,
    started,
)
from remoting.requests.transaction import EndTransaction
from storage.files import MemoryFiles

# -- sending and ending -------------------------------------------------------------------------------------


@simulated
async def test_a_half_message_is_out_of_sight(cluster):
    node, producer = await started(cluster)
    sent = await producer.half(tags="a", properties={"k": "v"}, flag=3, sys_flag=5, reconsume_times=1)
    assert (sent.queue_id, sent.queue_offset, sent.transaction_id) == (2, 0, "U1")
    assert orders(node) == []
    (half,) = queue(node, TRANS_HALF_TOPIC)
    assert (half.body, half.flag, half.sys_flag, half.reconsume_times) == (b"hello", 3, 1, 1)
    assert half.properties == {
        "TAGS": "a", "UNIQ_KEY": "U1", "TRAN_MSG": "true", "PGROUP": "PID", "k": "v", "CLUSTER": "DefaultCluster",
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
        "__transactionId__": "U1", "REAL_TOPIC": "orders", "REAL_QID": "2",
    }  # fmt: skip


@pytest.mark.parametrize("properties", [{}, {"POP_CK": "x"}, {"REAL_QID": "9", "REAL_TOPIC": "other"}])
@simulated
async def test_quick_and_careful_way_store_the_same(cluster, properties):
    node, producer = await started(cluster)
    await producer.half(properties=properties)
    (half,) = queue(node, TRANS_HALF_TOPIC)
    wanted = {"REAL_TOPIC": "orders", "REAL_QID": "2", "__transactionId__": "U1", "UNIQ_KEY": "U1"}
    assert half.properties | wanted == half.properties
    assert "POP_CK" not in half.properties


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("UNIQ_KEY\x01U\x02TRAN_MSG\x01true\x02PGROUP\x01P\x02", True),
        ("TRAN_MSG\x01true\x02UNIQ_KEY\x01U", True),
        ("TRAN_MSG\x01true\x02", False),
        ("TRAN_MSG\x01true\x02UNIQ_KEY\x01\x02", False),
        ("TRAN_MSG\x01false\x02UNIQ_KEY\x01U\x02", False),
        ("xTRAN_MSG\x01true\x02UNIQ_KEY\x01U\x02", False),
        ("TRAN_MSG\x01true\x02xUNIQ_KEY\x01U\x02", False),
        ("TRAN_MSG\x01true\x02xUNIQ_KEY\x01U\x02UNIQ_KEY\x01U\x02", False),
        ("TRAN_MSG\x01true\x02UNIQ_KEY\x01U\x02DELAY\x013\x02", False),
        ("TRAN_MSG\x01true\x02UNIQ_KEY\x01U\x02REAL_TOPIC\x01t\x02", False),
    ],
)
def test_what_goes_the_quick_way(text, plain):
    assert is_plain_half(text) is plain


@pytest.mark.parametrize(
    ("stored", "place"),
    [
        (b"a\x01b\x02REAL_TOPIC\x01t\x02REAL_QID\x0112\x02", ("t", 12, b"a\x01b\x02")),
        (b"REAL_TOPIC\x01t\x02a\x01b\x02REAL_QID\x0112\x02", ("t", 12, b"a\x01b\x02")),
        (b"REAL_QID\x0112\x02REAL_TOPIC\x01t\x02a\x01b\x02", ("t", 12, b"a\x01b\x02")),
        (b"a\x01b\x02REAL_TOPIC\x01t\x02x\x01y\x02REAL_QID\x0112\x02", ("t", 12, b"a\x01b\x02x\x01y\x02")),
        (b"a\x01b\x02REAL_TOPIC\x01t\x02REAL_QID\x0112\x02x\x01y\x02", ("t", 12, b"a\x01b\x02x\x01y\x02")),
        (b"a\x01b\x02REAL_TOPIC\x01t\x02REAL_QID\x0112", ("t", 12, b"a\x01b\x02")),
    ],
)
def test_where_a_half_message_really_goes(stored, place):
    assert parse_real_queue(stored) == place


@pytest.mark.parametrize(
    "stored",
    [
        b"xREAL_TOPIC\x01t\x02REAL_QID\x0112\x02",
        b"a\x01b\x02REAL_TOPIC\x01t\x02REAL_QID\x01x\x02",
        b"a\x01b\x02",
        b"a\x01b\x02REAL_TOPIC\x01t\x02REAL_QID\x01-1\x02",
        b"a\x01b\x02REAL_TOPIC\x01t\x02REAL_QID\x012147483648\x02",
        b"a\x01b\x02REAL_TOPIC\x01t\x02REAL_QID\x01" + b"1" * 5000 + b"\x02",
        b"a\x01b\x02REAL_TOPIC\x01" + b"t" * 256 + b"\x02REAL_QID\x011\x02",
        b"a\x01b\x02REAL_TOPIC\x01\xff\x02REAL_QID\x010\x02",
        b"REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x011\x02",
        b"a\x01b\x02REAL_TOPIC\x01RMQ_SYS_TRANS_OP_HALF_TOPIC\x02REAL_QID\x010\x02",
    ],
)
def test_properties_that_name_no_real_queue(stored):
    with pytest.raises(MessageFormatError, match="a waiting message"):
        parse_real_queue(stored)


@simulated
async def test_a_message_ended_again_and_again_on_a_full_disk_is_noted_once(cluster):
    node, producer = await started(cluster, transaction_op_msg_max_bytes=100)
    sent = [await producer.half(key=f"U{number}") for number in range(30)]
    node.broker.store.disk_full = True
    for _ in range(50):
        for each in sent:
            await producer.end(each, ROLLBACK)
    op_messages = node.broker.transactions.op_messages
    assert sum(map(len, op_messages._pending.values())) == 30
    node.broker.store.disk_full = False
    op_messages.flush()
    assert (op_messages._pending, op_messages._pending_bytes) == ({}, 0)
    texts = b"".join(each.body for each in queue(node, TRANS_OP_TOPIC))
    assert texts == b"".join(b"%d," % number for number in range(30))
    assert max(len(each.body) for each in queue(node, TRANS_OP_TOPIC)) <= 103


@simulated
async def test_half_messages_without_a_unique_key_get_one(cluster):
    node, producer = await started(cluster)
    sent = await producer.half(key=None)
    (half,) = queue(node, TRANS_HALF_TOPIC)
    assert half.properties["__transactionId__"] == half.properties["UNIQ_KEY"] == sent.transaction_id != ""


@simulated
async def test_a_commit_delivers_the_real_message(cluster):
    node, producer = await started(cluster)
    sent = await producer.half(tags="a", properties={"k": "v"}, flag=3, sys_flag=5)
    (half,) = queue(node, TRANS_HALF_TOPIC)
    reply = await producer.end(sent)
    assert (reply.code if reply else 0) == 0
    (real,) = orders(node)
    assert real.sys_flag == 1 | TRANSACTION_COMMIT
    assert (real.body, real.flag, real.tags) == (b"hello", 3, "a")
    assert (real.born_timestamp, real.born_host, real.store_host) == (
        half.born_timestamp, half.born_host, half.store_host,
    )  # fmt: skip
    assert real.prepared_transaction_offset == half.physical_offset
    gone = {"REAL_TOPIC", "REAL_QID"}
    assert real.properties == {name: half.properties[name] for name in half.properties.keys() - gone}


@simulated
async def test_a_commit_wakes_a_waiting_pull(cluster):
    node, producer = await started(cluster)
    sent = await producer.half()
    consumer = cluster.dial(node.address)
    got = []

    async def wait():
        reply = await consumer.ask(pull(queue_id=2, wait_ms=15_000), timeout_s=20)
        got.extend((cluster.clock.now_ms() - EPOCH_MS, each.body) for each in iter_messages(reply.body))

    cluster.nursery.start_soon(wait)
    await trio.sleep(4)
    await producer.end(sent)
    await settle()
    assert got == [(4000, b"hello")]


@simulated
async def test_a_delay_is_waited_out_after_the_commit(cluster):
    node, producer = await started(cluster)
    sent = await producer.half(properties={"DELAY": "2"})
    await trio.sleep(1)
    await producer.end(sent)
    await trio.sleep(4.9)
    assert orders(node) == []
    await trio.sleep(0.2)
    assert [each.body for each in orders(node)] == [b"hello"]


@simulated
async def test_a_rollback_delivers_nothing(cluster):
    node, producer = await started(cluster)
    sent = await producer.half()
    reply = await producer.connection.ask_command(
        EndTransaction(
            producer_group="PID", tran_state_table_offset=0, commit_log_offset=int(sent.msg_id[-16:], 16),
            commit_or_rollback=ROLLBACK,
        ).to_command(),
        3,
    )  # fmt: skip
    assert (reply.code, reply.remark) == (0, UNSET)
    await trio.sleep(120)
    assert orders(node) == []
    assert producer.questions == []


@simulated
async def test_no_decision_gets_no_answer(cluster):
    _, producer = await started(cluster)
    sent = await producer.half()
    with trio.move_on_after(2) as scope:
        await producer.end(sent, UNKNOWN)
    assert scope.cancelled_caught


@pytest.mark.parametrize("decision", [4, 99])
@simulated
async def test_an_unknown_decision_is_refused(cluster, decision):
    _, producer = await started(cluster)
    sent = await producer.half()
    assert await refused(producer.end(sent, decision)) == (ERROR, "commitOrRollback field wrong")


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"producer_group": "OTHER"}, "The producer group wrong"),
        ({"tran_state_table_offset": 1}, "The transaction state table offset wrong"),
        ({"commit_log_offset": 1}, "Find prepared transaction message failed"),
        ({"commit_log_offset": 1 << 40}, "Find prepared transaction message failed"),
        ({"commit_log_offset": -1}, "Find prepared transaction message failed"),
    ],
)
@simulated
async def test_refusals(cluster, decision, changes, remark):
    node, producer = await started(cluster)
    sent = await producer.half()
    assert await refused(producer.end(sent, decision, **changes)) == (ERROR, remark)
    assert orders(node) == []
    await producer.end(sent, decision)


@simulated
async def test_a_plain_message_cannot_be_committed(cluster):
    _, producer = await started(cluster)
    for properties in ({}, {"PGROUP": "PID"}, {"PGROUP": "PID", "REAL_TOPIC": "orders", "REAL_QID": "2"}):
        plain = await producer.connection.ask(message(properties=properties))
        assert await refused(producer.end(plain)) == (ERROR, "Find prepared transaction message failed")


@pytest.mark.parametrize("body_bytes", [3, 1 << 30, (1 << 32) - 1])
@simulated
async def test_a_half_message_inside_of_a_body_cannot_be_committed(cluster, body_bytes):
    node, producer = await started(cluster)
    place = node.broker.store.max_physical_offset + 88
    properties = {"PGROUP": "PID", "REAL_TOPIC": "closed", "REAL_QID": "0"}
    forged = bytearray(
        encode_message(Message(TRANS_HALF_TOPIC, b"abc", properties, physical_offset=place, queue_offset=0))
    )
    forged[84:88] = body_bytes.to_bytes(4)
    sent = await producer.connection.ask(message(body=bytes(forged)))
    assert node.broker.store.message_at(place) is not None
    ended = producer.end(sent, tran_state_table_offset=0, commit_log_offset=place)
    assert await refused(ended) == (ERROR, "Find prepared transaction message failed")
    assert queue(node, "closed") == []


@simulated
async def test_half_messages_can_be_forbidden_while_running(cluster):
    node, producer = await started(cluster, reject_transaction_message=True)
    wanted = (FORBIDDEN, f"the broker[{node.address[0]}] sending transaction message is forbidden")
    assert await refused(producer.half()) == wanted
    assert await refused(producer.half(key=None)) == wanted
    assert queue(node, TRANS_HALF_TOPIC) == []


@simulated
async def test_old_clients_delayed_redeliveries_are_no_half_messages(cluster):
    node, producer = await started(cluster)
    await producer.half(properties={"DELAY": "1"}, reconsume_times=1, sys_flag=0)
    await trio.sleep(2)
    assert [each.body for each in orders(node)] == [b"hello"]
    assert queue(node, TRANS_HALF_TOPIC) == []


@simulated
async def test_a_full_disk_refuses_the_commit(cluster):
    node, producer = await started(cluster)
    sent = await producer.half()
    node.broker.store.disk_full = True
    assert await refused(producer.end(sent)) == (UNAVAILABLE, "Service not available now.")
    node.broker.store.disk_full = False
    await producer.end(sent)
    assert len(orders(node)) == 1


# -- op messages --------------------------------------------------------------------------------------------


@simulated
async def test_ends_are_written_in_batches_every_three_seconds(cluster):
    node, producer = await started(cluster)
    for number in range(3):
        await producer.end(await producer.half(key=f"U{number}"), ROLLBACK if number else COMMIT)
    assert queue(node, TRANS_OP_TOPIC) == []
    await trio.sleep(3.1)
    (op,) = queue(node, TRANS_OP_TOPIC)
    assert (op.body, op.tags, op.sys_flag) == (b"0,1,2,", "d", 0)
    assert op.properties == {"WAIT": "true", "TAGS": "d"}


@simulated
async def test_a_full_batch_is_written_at_once_and_longer_ones_are_divided(cluster):
    node, producer = await started(cluster, transaction_op_msg_max_bytes=6)
    for number in range(4):
        await producer.end(await producer.half(key=f"U{number}"))
    assert [op.body for op in queue(node, TRANS_OP_TOPIC)] == [b"0,1,2,", b"3,"]


@simulated
async def test_what_the_store_refuses_is_written_later(cluster):
    node, producer = await started(cluster)
    sent = await producer.half()
    node.broker.store.disk_full = True
    await producer.end(sent, ROLLBACK)
    await trio.sleep(4)
    assert queue(node, TRANS_OP_TOPIC) == []
    node.broker.store.disk_full = False
    await trio.sleep(4)
    assert [op.body for op in queue(node, TRANS_OP_TOPIC)] == [b"0,"]


@simulated
async def test_ends_are_written_when_the_broker_stops(cluster):
    files = MemoryFiles()
    node, producer = await started(cluster, files=files)
    await producer.end(await producer.half())
    await node.stop()
    again = await cluster.add_broker(host="10.0.1.0", files=files)
    assert [op.body for op in queue(again, TRANS_OP_TOPIC)] == [b"0,"]


@pytest.mark.parametrize("field", ["tranStateTableOffset", "commitLogOffset", "commitOrRollback"])
@pytest.mark.parametrize("text", ["1_0", " 8", "", "9" * 400])
@simulated
async def test_a_number_that_java_would_not_read_is_refused_in_every_field(cluster, field, text):
    node, producer = await started(cluster)
    sent = await producer.half()
    ext = EndTransaction(
        producer_group="PID",
        tran_state_table_offset=sent.queue_offset,
        commit_log_offset=0,
        commit_or_rollback=COMMIT,
    ).to_ext()
    answer = await producer.connection.ask_command(Command(EndTransaction.code, ext={**ext, field: text}), 1)
    assert (answer.code, (answer.remark or "").endswith(f", the custom field <{field}>")) == (ERROR, True)
    assert orders(node) == []
