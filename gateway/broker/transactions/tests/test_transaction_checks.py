"""Check-backs of half messages: the producers asked, giving up, and the state after a restart."""

import pytest
import trio

from codec.properties import encode_properties
from codec.topics import TRANS_CHECK_MAX_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_TOPIC
from gateway.broker.messages.damaged_records import RecordKind
from gateway.broker.transactions import transaction_checks
from gateway.broker.transactions.transaction_checks import (
    ENDED_PER_TURN,
    MAX_FORMER_OFFSETS,
    HalfMessageCopies,
    OpMessageReader,
)
from gateway.config.limits import BrokerLimits
from gateway.tests.broker_world import World
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
from storage.append import NewMessage
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


@simulated
async def test_with_synchronous_flush_a_resumption_is_confirmed_when_it_is_on_the_disk(cluster):
    node, producer = await started(cluster)
    await producer.half()
    await trio.sleep(16 * 30 + 1)
    (given_up,) = queue(node, TRANS_CHECK_MAX_TOPIC)
    gate, held = node.broker.answer_gate, []
    gate.must_wait = True

    def hold(connection, answer, position, *more):
        held.append(position)
        return answer

    gate.hold = hold
    await producer.connection.ask(ResumeCheckHalfMessage(topic="orders", msg_id=given_up.msg_id))
    assert held == [node.broker.store.max_physical_offset]


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


# -- records that cannot be used ------------------------------------------------------------------------------


def put_half(node, properties, topic=TRANS_HALF_TOPIC, body=b"hello", born_ms=EPOCH_MS):
    """Store a half or op message as an earlier version, or another broker, may have written it."""
    return node.broker.store.append(
        NewMessage(topic, 0, body, encode_properties(properties), born_timestamp=born_ms)
    )


def half_properties(**more):
    return {
        "TRAN_MSG": "true",
        "PGROUP": "PID",
        "UNIQ_KEY": "ODD",
        **more,
        "REAL_TOPIC": "orders",
        "REAL_QID": "2",
    }


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    "odd",
    [
        half_properties(TRANSACTION_CHECK_TIMES="9" * 5_000),
        half_properties(TRANSACTION_CHECK_TIMES="-" + "9" * 9),
        half_properties(CHECK_IMMUNITY_TIME_IN_SECONDS="9" * 5_000),
        half_properties(CHECK_IMMUNITY_TIME_IN_SECONDS="-5"),
        half_properties(TRAN_PREPARED_QUEUE_OFFSET="9" * 5_000),
        half_properties() | {"REAL_TOPIC": "x" * 30_000},
        half_properties() | {"REAL_TOPIC": "SCHEDULE_TOPIC_XXXX"},
        half_properties() | {"REAL_TOPIC": "a/b"},
        half_properties() | {"REAL_QID": "9" * 5_000},
        half_properties() | {"PGROUP": "x" * 30_000},
        {"pad": "x" * 32_760},
        {},
    ],
    ids=lambda odd: max(odd, key=lambda name: len(odd[name]), default="none"),
)
@simulated
async def test_a_half_message_of_any_kind_keeps_no_other_waiting(cluster, odd, restarted):
    files = MemoryFiles()
    node, producer = await started(cluster, files=files)
    put_half(node, odd)
    await producer.half(key="behind")
    if restarted:
        await node.crash()
        node, producer = await started(cluster, files=files)
    await trio.sleep(31)
    assert "behind" in [copy.unique_key for _, _, copy in producer.questions]
    await trio.sleep(16 * 30)
    assert progress(node)[0] == node.broker.store.max_offset(TRANS_HALF_TOPIC, 0)
    assert "behind" in [each.unique_key for each in queue(node, TRANS_CHECK_MAX_TOPIC)]


@pytest.mark.parametrize(("room", "asked"), [(15, 1), (5, 0)])
@simulated
async def test_a_half_message_without_room_for_its_count_is_asked_about_once_and_given_up(
    cluster, room, asked
):
    node, producer = await started(cluster, decide=COMMIT)
    await trio.sleep(10)
    properties = half_properties(pad="")
    properties["pad"] = "x" * (32_767 - room - len(encode_properties(properties)))
    put_half(node, properties)
    await producer.half(key="behind")
    await trio.sleep(65)
    assert [copy.unique_key for _, _, copy in producer.questions] == ["ODD", "behind"][1 - asked :]
    assert [each.unique_key for each in orders(node)] == ["ODD", "behind"][1 - asked :]
    assert [each.unique_key for each in queue(node, TRANS_CHECK_MAX_TOPIC)] == ["ODD"]


@simulated
async def test_an_immune_half_message_without_room_for_its_first_place_stays_immune(cluster):
    node, producer = await started(cluster)
    await producer.half(key="behind")
    properties = half_properties(CHECK_IMMUNITY_TIME_IN_SECONDS="100", pad="")
    properties["pad"] = "x" * (32_767 - 15 - len(encode_properties(properties)))
    put_half(node, properties)
    await trio.sleep(95)
    assert queue(node, TRANS_CHECK_MAX_TOPIC) == []
    await trio.sleep(30)
    assert [each.unique_key for each in queue(node, TRANS_CHECK_MAX_TOPIC)] == ["ODD"]


@simulated
async def test_a_half_message_that_fits_nowhere_any_more_is_skipped(cluster):
    node, producer = await started(cluster)
    await producer.half(body=b"x" * 90_000)
    node.broker.store._max_message_bytes = 1000
    await producer.half(key="behind")
    await trio.sleep(31)
    assert [copy.unique_key for _, _, copy in producer.questions] == ["U1", "behind"]
    assert node.broker.damaged.count(RecordKind.HALF_MESSAGE) == 1


@simulated
async def test_a_broker_with_as_many_queues_as_allowed_still_gives_up(cluster):
    node, producer = await started(cluster, transaction_check_max=1)
    await producer.half()
    await producer.half(key="U2")
    node.broker.topics.limits = BrokerLimits(max_queues=1)
    await trio.sleep(95)
    assert [each.unique_key for each in queue(node, TRANS_CHECK_MAX_TOPIC)] == ["U1", "U2"]


@simulated
async def test_immunity_does_not_outlast_a_birth_in_the_future(cluster):
    node, producer = await started(cluster)
    forever = str((1 << 63) - 1)
    put_half(node, half_properties(CHECK_IMMUNITY_TIME_IN_SECONDS=forever), born_ms=(1 << 62))
    await trio.sleep(17 * 30)
    assert len(producer.questions) == 15
    assert len(queue(node, TRANS_HALF_TOPIC)) == 16


OP_BODIES = [
    (b"," * 60_000, "d"),
    (b"9" * 5_000, "d"),
    (b"-1,99999999999999999999,x,1.5, 7,\xff,1_0", "d"),
    (b"5000,6000", "d"),
    (b"", "d"),
    (b"0", "odd"),
    (b"0", None),
]


@pytest.mark.parametrize("restarted", [False, True])
@simulated
async def test_op_messages_of_any_kind_end_only_what_the_good_ones_name(cluster, restarted):
    files = MemoryFiles()
    node, producer = await started(cluster, files=files, transaction_op_batch_interval_ms=600_000)
    ended, left = await producer.half(key="ended"), await producer.half(key="left")
    for body, tag in OP_BODIES:
        put_half(node, {"TAGS": tag} if tag else {}, TRANS_OP_TOPIC, body)
    await producer.end(ended, ROLLBACK)
    node.broker.transactions.op_messages.flush()
    if restarted:
        await node.crash()
        node, producer = await started(cluster, files=files)
    await trio.sleep(31)
    assert [copy.unique_key for _, _, copy in producer.questions] == ["left"]
    assert progress(node) == (2, len(OP_BODIES) + 1)
    assert left.queue_offset == 1


def test_a_long_op_message_is_read_in_steps():
    world = World()
    store, topic = world.broker.store, TRANS_HALF_TOPIC
    halves = [store.append(NewMessage(topic, 0, b"", b""))[0] for _ in range(3 * ENDED_PER_TURN)]
    body = ",".join(map(str, reversed(halves))).encode() + b"," * 1_000_000
    store.append(NewMessage(TRANS_OP_TOPIC, 0, body, b"TAGS\x01d\x02"))
    ops = OpMessageReader(store, world.broker.damaged, 0, 0, 0, HalfMessageCopies())
    assert ops.read_more()
    assert not ops.take_ended(0)
    assert ops.take_ended(halves[-1])
    assert ops.settled_offset() == 0, "the rest is read again if the round ends here"
    while ops.read_more():
        pass
    assert all(ops.take_ended(offset) for offset in halves[:-1])
    assert ops.settled_offset() == 1
    store.append(NewMessage(TRANS_OP_TOPIC, 0, b"0", b"TAGS\x01d\x02"))
    assert ops.read_more()
    assert not ops.read_more()


def test_op_messages_lost_to_damage_do_not_settle_those_before_them():
    world = World()
    store = world.broker.store
    for _ in range(40):
        store.append(NewMessage(TRANS_HALF_TOPIC, 0, b"", b""))
    first = store.append(NewMessage(TRANS_OP_TOPIC, 0, b"0,", b"TAGS\x01d\x02"))
    store._queues[TRANS_OP_TOPIC, 0].append_holes(38, first[1])
    store.append(NewMessage(TRANS_OP_TOPIC, 0, b"39,", b"TAGS\x01d\x02"))
    ops = OpMessageReader(store, world.broker.damaged, 0, 0, 0, HalfMessageCopies())
    while ops.read_more():
        pass
    assert ops.settled_offset() == 0
    assert [offset for offset in range(40) if ops.take_ended(offset)] == [0, 39]
    assert ops.settled_offset() == 40


def test_former_places_of_half_messages_are_bounded(monkeypatch):
    monkeypatch.setattr(transaction_checks, "MAX_TRACKED_HALVES", 10)
    copies = HalfMessageCopies()
    for offset in range(10_000):
        copies.record_move(offset, offset + 1)
    copies.record_end(0)
    assert copies.is_ended(10_000)
    assert len(copies._former_offsets) == MAX_FORMER_OFFSETS
    for offset in range(20_000, 30_000):
        copies.record_move(offset, 2 * offset)
        copies.record_end(offset)
    assert len(copies._former) == 10
    assert len(copies._former_offsets) == MAX_FORMER_OFFSETS + 9
    assert len(copies._ended) == 10
    assert not copies.is_ended(2 * 29_999)


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
async def test_copies_whose_walk_was_not_saved_are_asked_about_once(cluster):
    files = MemoryFiles()
    node, producer = await started(cluster, files=files)
    await producer.half()
    await producer.half(key="U2")
    await trio.sleep(95)
    await node.crash()
    # As if the offsets had last been saved before the first walk.
    for suffix in ("", ".bak"):
        files.delete(node.broker.offsets.file.path + suffix)
    node, producer = await started(cluster, decide=COMMIT, files=files)
    await trio.sleep(95)
    assert sorted(str(copy.unique_key) for _, _, copy in producer.questions) == ["U1", "U2"]
    assert sorted(str(each.unique_key) for each in orders(node)) == ["U1", "U2"]


@simulated
async def test_a_late_decision_about_a_place_before_a_crash_counts(cluster):
    files = MemoryFiles()
    node, producer = await started(cluster, files=files)
    sent = await producer.half()
    await trio.sleep(39)
    await node.crash()
    node, producer = await started(cluster, files=files)
    assert progress(node)[0] == 1
    await trio.sleep(31)
    producer.questions.clear()
    await producer.end(sent)
    await trio.sleep(95)
    assert producer.questions == []
    assert len(orders(node)) == 1


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
