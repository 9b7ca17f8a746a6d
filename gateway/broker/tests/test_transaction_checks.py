"""Check-backs of half messages: the producers asked, giving up, and the state after a restart."""

import pytest
import trio

from codec.topics import TRANS_CHECK_MAX_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_TOPIC
from gateway.tests.cluster import EPOCH_MS, simulated
from gateway.tests.transacting import (
    COMMIT,
    ERROR,
    LATE,
    ROLLBACK,
    UNSET,
    Producer,
    orders,
    progress,
    queue,
    refused,
    started,
)
from remoting.requests.transaction import ResumeCheckHalfMessage
from storage.files import MemoryFiles

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
        assert question.offset_msg_id is not None
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
