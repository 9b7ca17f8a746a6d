import contextlib

import pytest
import trio

from codec.message import decode_message, iter_messages
from codec.sysflag import TRANSACTION_COMMIT
from gateway.broker.names import TRANS_CHECK_MAX_TOPIC, TRANS_GROUP, TRANS_HALF_TOPIC, TRANS_OP_TOPIC
from gateway.broker.transactions import is_plain_half, real_place
from gateway.tests.cluster import EPOCH_MS, message, pull, settle, simulated
from remoting.bodies.heartbeat import HeartbeatData, ProducerData
from remoting.errors import RemotingClosed, RequestError
from remoting.requests.client import HeartBeat
from remoting.requests.transaction import CheckTransactionState, EndTransaction, ResumeCheckHalfMessage
from storage.files import MemoryFiles

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
ERROR, ILLEGAL, FORBIDDEN, LATE, UNAVAILABLE = 1, 13, 16, 604, 14
UNSET = "not set any response code"


class Producer:
    """A transactional producer: keeps the questions it is asked, and answers them as `decide` says."""

    def __init__(self, cluster, node, group="PID", decide=UNKNOWN):
        self._clock = cluster.clock
        self.group = group
        self.decide = decide
        self.questions = []
        self.connection = cluster.dial(node.address, {CheckTransactionState.code: self._asked})
        cluster.nursery.start_soon(self._keep_alive)

    async def _keep_alive(self):
        with contextlib.suppress(RemotingClosed):
            while True:
                await trio.sleep(30)
                await self.beat()

    async def beat(self):
        data = HeartbeatData(
            client_id=f"c-{self.group}", producer_data_set=[ProducerData(group_name=self.group)]
        )
        await self.connection.ask(HeartBeat(data=data))
        return self

    def half(self, body=b"hello", *, key="U1", queue_id=2, properties=None, sys_flag=4, **more):
        given = {"TRAN_MSG": "true", "PGROUP": self.group, **(properties or {})}
        more.setdefault("born_timestamp", self._clock.now_ms())
        request = message(body=body, key=key, queue_id=queue_id, properties=given, sys_flag=sys_flag, **more)
        return self.connection.ask(request)

    def end(self, sent, decision=COMMIT, **changes):
        fields = {
            "producer_group": self.group, "tran_state_table_offset": sent.queue_offset,
            "commit_log_offset": int(sent.msg_id[-16:], 16), "commit_or_rollback": decision,
            "msg_id": sent.transaction_id, **changes,
        }  # fmt: skip
        return self.connection.ask(EndTransaction(**fields))

    def _asked(self, connection, command):
        question = CheckTransactionState.from_command(command)
        asked_ms = self._clock.now_ms() - EPOCH_MS
        self.questions.append((asked_ms, question, decode_message(question.body)))
        if self.decide is not None:
            connection.tell(
                EndTransaction(
                    producer_group=self.group,
                    tran_state_table_offset=question.tran_state_table_offset,
                    commit_log_offset=question.commit_log_offset,
                    commit_or_rollback=self.decide,
                    from_transaction_check=True,
                    msg_id=question.msg_id,
                )
            )

    def times(self):
        return [at for at, _, _ in self.questions]


async def started(cluster, decide=UNKNOWN, **settings):
    node = await cluster.add_broker(**settings)
    return node, await Producer(cluster, node, decide=decide).beat()


def queue(node, topic, queue_id=0):
    """Every message of a queue as it is stored."""
    store = node.broker.store
    ends = range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id))
    return [decode_message(store.read(topic, queue_id, offset, 1).chunks[0]) for offset in ends]


def orders(node):
    return queue(node, "orders", 2)


def progress(node):
    """How far half and op messages are settled."""
    offsets = node.broker.offsets
    return offsets.query(TRANS_GROUP, TRANS_HALF_TOPIC, 0), offsets.query(TRANS_GROUP, TRANS_OP_TOPIC, 0)


async def refused(request):
    with pytest.raises(RequestError) as problem:
        await request
    return problem.value.code, problem.value.remark


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
        (b"xREAL_TOPIC\x01t\x02REAL_QID\x0112\x02", None),
        (b"a\x01b\x02REAL_TOPIC\x01t\x02REAL_QID\x01x\x02", None),
        (b"a\x01b\x02", None),
    ],
)
def test_where_a_half_message_really_goes(stored, place):
    assert real_place(stored) == place


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


@pytest.mark.parametrize("decision", [UNKNOWN, 4, 99])
@simulated
async def test_no_decision_gets_no_answer(cluster, decision):
    _, producer = await started(cluster)
    sent = await producer.half()
    with trio.move_on_after(2) as scope:
        await producer.end(sent, decision)
    assert scope.cancelled_caught


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
    plain = await producer.connection.ask(message())
    assert await refused(producer.end(plain)) == (ERROR, "The producer group wrong")
    mine = await producer.connection.ask(message(properties={"PGROUP": "PID"}))
    assert await refused(producer.end(mine)) == (ERROR, "Find prepared transaction message failed")


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


# -- checks -------------------------------------------------------------------------------------------------


@simulated
async def test_ended_half_messages_are_passed_over(cluster):
    node, producer = await started(cluster)
    for number in range(5):
        await producer.end(await producer.half(key=f"U{number}"), COMMIT if number % 2 else ROLLBACK)
    await trio.sleep(31)
    assert producer.questions == []
    assert progress(node) == (5, 1)


@simulated
async def test_an_unknown_one_is_asked_about_every_interval(cluster):
    node, producer = await started(cluster)
    sent = await producer.half(tags="a")
    await trio.sleep(95)
    assert producer.times() == [30_000, 60_000, 90_000]
    for number, (_, question, copy) in enumerate(producer.questions, 1):
        assert (question.tran_state_table_offset, question.topic, question.bname) == (
            number, TRANS_HALF_TOPIC, "broker-a",
        )  # fmt: skip
        assert (question.msg_id, question.transaction_id) == (sent.transaction_id, sent.transaction_id)
        assert int(question.offset_msg_id[-16:], 16) == question.commit_log_offset == copy.physical_offset
        assert (copy.topic, copy.queue_id, copy.body, copy.tags) == ("orders", 2, b"hello", "a")
        assert copy.properties["TRANSACTION_CHECK_TIMES"] == str(number)
        assert (copy.queue_offset, copy.born_timestamp) == (number, EPOCH_MS)
    assert progress(node)[0] == 3


@simulated
async def test_young_half_messages_wait_for_the_next_round(cluster):
    _, producer = await started(cluster)
    await trio.sleep(24.5)
    await producer.half()
    await trio.sleep(10)
    assert producer.questions == []
    await trio.sleep(30)
    assert producer.times() == [60_000]


@simulated
async def test_settings_of_the_checks(cluster):
    _, producer = await started(
        cluster, transaction_timeout_ms=500, transaction_check_interval_ms=1000, transaction_check_max=2
    )
    await producer.half()
    await trio.sleep(9)
    assert producer.times() == [1000, 2000]


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
@simulated
async def test_the_answer_to_a_question_ends_the_transaction(cluster, decision):
    node, producer = await started(cluster, decide=decision)
    await producer.half(flag=5)
    await trio.sleep(95)
    assert producer.times() == [30_000]
    assert [each.flag for each in orders(node)] == ([5] if decision == COMMIT else [])
    assert progress(node) == (2, 1)


@simulated
async def test_producers_are_asked_in_turn_and_those_gone_are_not(cluster):
    node, first = await started(cluster)
    second = await Producer(cluster, node).beat()
    for number in range(4):
        await first.half(key=f"U{number}")
    await trio.sleep(31)
    assert (len(first.questions), len(second.questions)) == (2, 2)
    first.connection.close("gone")
    await trio.sleep(30)
    assert (len(first.questions), len(second.questions)) == (2, 6)


@simulated
async def test_without_a_producer_the_check_counts_and_the_next_one_finds_it(cluster):
    node, producer = await started(cluster)
    await producer.half()
    producer.connection.close("gone")
    await trio.sleep(31)
    back = await Producer(cluster, node, decide=COMMIT).beat()
    await trio.sleep(30)
    ((_, _, copy),) = back.questions
    assert copy.properties["TRANSACTION_CHECK_TIMES"] == "2"
    assert [each.body for each in orders(node)] == [b"hello"]


@simulated
async def test_fifteen_checks_then_it_is_given_up_and_can_be_resumed(cluster):
    node, producer = await started(cluster)
    await producer.half()
    await trio.sleep(16 * 30 + 1)
    assert len(producer.questions) == 15
    (given_up,) = queue(node, TRANS_CHECK_MAX_TOPIC)
    assert (given_up.body, given_up.properties["TRANSACTION_CHECK_TIMES"]) == (b"hello", "15")
    assert node.broker.topics.get(TRANS_CHECK_MAX_TOPIC).write_queue_nums == 1
    await trio.sleep(60)
    assert len(producer.questions) == 15
    producer.decide = COMMIT
    ask = ResumeCheckHalfMessage(topic="orders", msg_id=given_up.msg_id)
    await producer.connection.ask(ask)
    await trio.sleep(31)
    assert producer.questions[-1][2].properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert [each.body for each in orders(node)] == [b"hello"]


@pytest.mark.parametrize("message_id", ["", "xyz", "0" * 32, "7F0000010000" + "F" * 20])
@simulated
async def test_what_cannot_be_resumed(cluster, message_id):
    _, producer = await started(cluster)
    remark = "Exception was thrown when putting message back to RMQ_SYS_TRANS_HALF_TOPIC."
    assert await refused(producer.connection.ask(ResumeCheckHalfMessage(msg_id=message_id))) == (
        ERROR,
        remark,
    )


@simulated
async def test_half_messages_older_than_the_retention_are_given_up(cluster):
    node, producer = await started(cluster, file_reserved_hours=1)
    await producer.half(born_timestamp=EPOCH_MS - 3_600_000)
    await trio.sleep(31)
    assert producer.questions == []
    assert len(queue(node, TRANS_CHECK_MAX_TOPIC)) == 1


@simulated
async def test_a_birth_in_the_future_is_asked_about_at_once(cluster):
    _, producer = await started(cluster)
    await trio.sleep(29)
    await producer.half(born_timestamp=EPOCH_MS + 900_000)
    await trio.sleep(2)
    assert producer.times() == [30_000]


# -- a message's own immunity ---------------------------------------------------------------------------------


@simulated
async def test_the_first_check_waits_for_the_messages_own_time(cluster):
    node, producer = await started(cluster)
    await producer.half(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "70"})
    await producer.half(key="U2")
    await trio.sleep(121)
    asked = [
        (at, copy.unique_key, copy.properties["TRANSACTION_CHECK_TIMES"])
        for at, _, copy in producer.questions
    ]
    assert asked == [
        (30_000, "U2", "1"), (60_000, "U2", "2"), (90_000, "U1", "1"), (90_000, "U2", "3"),
        (120_000, "U1", "2"), (120_000, "U2", "4"),
    ]  # fmt: skip
    copies = [each for each in queue(node, TRANS_HALF_TOPIC) if each.unique_key == "U1"]
    assert [each.properties.get("TRAN_PREPARED_QUEUE_OFFSET") for each in copies] == [None, *["0"] * 4]


@simulated
async def test_an_immune_message_ended_at_its_first_place_is_not_asked_about(cluster):
    node, producer = await started(cluster, decide=COMMIT)
    sent = await producer.half(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "70"})
    await trio.sleep(65)
    await producer.end(sent)
    await trio.sleep(120)
    assert producer.questions == []
    assert len(orders(node)) == 1
    assert progress(node) == (3, 1)


@simulated
async def test_decisions_come_too_late_after_the_immunity(cluster):
    node, producer = await started(cluster, transaction_check_interval_ms=60_000)
    sent = await producer.half(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "10"})
    short = await producer.half(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"})
    odd = await producer.half(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "x"})
    await trio.sleep(5)
    await producer.end(short)  # transactionTimeOut, 6 s, is the least
    await trio.sleep(5.5)
    for late in (sent, odd):
        assert await refused(producer.end(late)) == (LATE, UNSET)
        assert await refused(producer.end(late, ROLLBACK)) == (LATE, UNSET)
    await producer.end(sent, from_transaction_check=True)
    assert len(orders(node)) == 2


@simulated
async def test_a_late_decision_about_an_earlier_place_counts_once(cluster):
    node, producer = await started(cluster)
    sent = await producer.half()
    await trio.sleep(65)
    producer.decide = COMMIT
    await producer.end(sent)
    await trio.sleep(60)
    assert producer.times() == [30_000, 60_000]
    assert len(orders(node)) == 1


# -- restarts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crash", [False, True])
@simulated
async def test_a_half_message_survives_and_is_asked_about(cluster, crash):
    files = MemoryFiles()
    node, producer = await started(cluster, files=files)
    await producer.half()
    await (node.crash() if crash else node.stop())
    node, producer = await started(cluster, decide=COMMIT, files=files)
    await trio.sleep(95)
    assert [copy.unique_key for _, _, copy in producer.questions] == ["U1"]
    assert [each.body for each in orders(node)] == [b"hello"]


@simulated
async def test_a_commit_whose_op_message_was_lost_is_not_repeated(cluster):
    files = MemoryFiles()
    node, producer = await started(cluster, files=files)
    await producer.end(await producer.half())
    await producer.half(key="U2")
    await node.crash()
    node, producer = await started(cluster, decide=COMMIT, files=files)
    assert queue(node, TRANS_OP_TOPIC) == []
    await trio.sleep(95)
    assert [copy.unique_key for _, _, copy in producer.questions] == ["U2"]
    assert [each.unique_key for each in orders(node)] == ["U1", "U2"]


@simulated
async def test_a_restart_in_order_asks_nobody_about_what_is_ended(cluster):
    files = MemoryFiles()
    node, producer = await started(cluster, files=files)
    await producer.end(await producer.half(), ROLLBACK)
    await producer.half(key="U2")
    await trio.sleep(31)
    assert progress(node) == (2, 1)
    await node.stop()
    node, producer = await started(cluster, files=files)
    assert progress(node) == (2, 1)
    await trio.sleep(31)
    assert [copy.unique_key for _, _, copy in producer.questions] == ["U2"]
    assert producer.questions[0][2].properties["TRANSACTION_CHECK_TIMES"] == "2"
