"""Planning a replay: the exchanges that are replayed, and their order."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.capture import BlockBuilder, CaptureRecord, encode_header, encode_index
from codec.command import Command, encode_command
from gateway.shadow.capture import reader, replay_plan
from gateway.shadow.capture.reader import CaptureFileReader
from gateway.shadow.capture.replay_plan import RecordFilter, count_by_code, plan_replay
from gateway.shadow.tests.capture_fakes import EPOCH_MS, frame, send_fields
from remoting.bodies.routes import QueueData, TopicRouteData


def captured(*files, run=7):
    """Return readers of files in memory, one for each list of records."""
    found = []
    for number, records in enumerate(files):
        data, builder = encode_header(EPOCH_MS + number, "gw", run), BlockBuilder()
        for record in records:
            builder.add_record(record)
        if records:
            block_data, block = builder.build(len(data))
            data += block_data
            data += encode_index(len(data), [block])
        found.append(CaptureFileReader(f"file{number}", data))
    return found


def record(code, ext, body=b"", *, answer=(0, {}), asked_ms=0, took_ms=1, flag=0, topic="orders", **more):
    answered = None if answer is None else encode_command(Command(answer[0], 1, 1, answer[1]))
    return CaptureRecord(
        code,
        frame(code, ext, body, flag=flag),
        answered,
        **{
            "wall_ms": EPOCH_MS + asked_ms, "asked_us": 5_000_000 + asked_ms * 1000,
            "answered_us": took_ms * 1000, "connection": 1, "broker": "broker-a", "topic": topic, **more,
        },
    )  # fmt: skip


def send(offset, asked_ms=0, *, queue_id=0, topic="orders", properties=None, **more):
    ext = send_fields(topic, queue_id, properties={"UNIQ_KEY": f"U{offset}", **(properties or {})})
    answer = (0, {"queueId": str(queue_id), "queueOffset": str(offset), "msgId": "0" * 32})
    return record(310, ext, b"%d" % offset, asked_ms=asked_ms, topic=topic, **{"answer": answer, **more})


def offsets(plan):
    return [step.offset for step in plan.steps]


def test_sends_of_a_queue_go_in_the_order_of_their_offsets():
    plan = plan_replay(
        captured([send(1, 0, took_ms=10, connection=1), send(0, 5, connection=2), send(2, 11)]),
        RecordFilter(),
    )
    assert offsets(plan) == [0, 1, 2]
    assert [step.after_answers for step in plan.steps] == [(), (0,), (1,)]
    # The one that overtook another is due with it.
    assert [step.due_us for step in plan.steps] == [each * 1000 + EPOCH_MS * 1000 for each in (5, 5, 11)]


def test_a_client_that_waited_for_an_answer_waits_for_it_again():
    first = send(0, 0, took_ms=10)
    beside = send(0, 5, queue_id=1)
    later = send(0, 10, queue_id=2)
    plan = plan_replay(captured([beside, first, later]), RecordFilter())
    assert [step.after_answers for step in plan.steps] == [(), (), (0, 1)]
    assert [step.after_sending for step in plan.steps] == [-1, 0, 1]
    others = plan_replay(captured([send(0, 0), send(0, 5, queue_id=1, connection=2)]), RecordFilter())
    assert [step.after_sending for step in others.steps] == [-1, -1]


def test_a_topic_that_began_anew_is_not_mixed_with_what_it_was():
    plan = plan_replay(captured([send(0, 0), send(1, 10), send(0, 20), send(1, 30)]), RecordFilter())
    assert offsets(plan) == [0, 1, 0, 1]
    assert [step.wall_ms - EPOCH_MS for step in plan.steps] == [0, 10, 20, 30]


def test_several_files_and_runs_have_one_order():
    files = captured([send(1, 10)], [send(0, 0)])
    files += captured([send(2, 20, asked_us=3)], run=8)
    assert offsets(plan_replay(files, RecordFilter())) == [0, 1, 2]


def test_skipped_records_are_counted_with_their_reason():
    records = [
        send(0),
        send(1, answer=(14, {})),
        send(2, answer=None),
        send(3, topic="%RETRY%GID"),
        record(34, {}, b"{}", topic=""),
        record(39, {}, reverse=True),
        record(105, {"topic": "orders"}, broker=""),
        record(310, {"b": "orders"}),
        record(37, {"transactionId": "U99"}),
        record(11, {"topic": "orders", "queueId": "0"}),
    ]
    plan = plan_replay(captured(records), RecordFilter())
    assert offsets(plan) == [0]
    reasons = {code: reason for code, reason in sorted(plan.skipped, key=lambda each: each[0])}
    assert plan.skipped.total() == 9
    assert "a request of the broker" in reasons[39]
    assert "namesrv" in reasons[105]
    assert "not captured" in reasons[37]
    assert {reason for code, reason in plan.skipped if code == 310} == {
        "was refused with code 14",
        "no answer was captured: it may not have been stored",
        "a retry topic is consumed at the primary",
        "the request cannot be decoded: KeyError",
    }


def test_topics_codes_and_times_choose():
    records = [send(0, 0), send(0, 10, topic="payments"), send(1, 20)]
    files = captured(records)
    assert len(plan_replay(files, RecordFilter(topics=frozenset({"orders"}))).steps) == 2
    assert plan_replay(files, RecordFilter(codes=frozenset({10}))).steps == []
    assert offsets(plan_replay(files, RecordFilter(from_ms=EPOCH_MS + 20))) == [1]
    assert len(plan_replay(files, RecordFilter(until_ms=EPOCH_MS + 20)).steps) == 2
    assert plan_replay(files, RecordFilter()).queue_counts == {
        ("broker-a", "orders"): 1,
        ("broker-a", "payments"): 1,
    }


def test_topics_have_as_many_queues_as_their_routes_said():
    route = TopicRouteData(
        queue_datas=[QueueData(broker_name="broker-a", read_queue_nums=8, write_queue_nums=6, perm=6)]
    )
    body = route.to_json()
    answer = encode_command(Command(0, 1, 1, body=body))
    asked = record(105, {"topic": "orders"}, broker="")._replace(answer=answer)
    broken = asked._replace(answer=encode_command(Command(0, 1, 1, body=b"{")))
    plan = plan_replay(captured([asked, broken, send(0), send(0, topic="other")]), RecordFilter())
    assert plan.queue_counts == {("broker-a", "orders"): 6, ("broker-a", "other"): 1}


def test_pulls_are_replayed_when_asked_for():
    pulled = record(11, {"topic": "orders", "queueId": "0", "queueOffset": "1"})
    plan = plan_replay(captured([send(0), pulled]), RecordFilter(codes=frozenset({310, 11})))
    assert count_by_code(plan.steps) == {310: 1, 11: 1}


def test_ends_of_transactions_come_with_their_halves_also_when_they_name_no_topic():
    half = send(7, 0, properties={"TRAN_MSG": "true"})
    end = record(
        37, {"transactionId": "U7", "commitOrRollback": "8"}, answer=None, flag=2, asked_ms=5, topic=""
    )
    plan = plan_replay(captured([half, end]), RecordFilter(topics=frozenset({"orders"})))
    assert [(step.code, step.lane) for step in plan.steps] == [
        (310, ("broker-a", "orders", 0)),
        (37, ("broker-a", "orders", 0)),
    ]
    # The offset of a half message is none of the topic's.
    assert offsets(plan) == [-1, -1]
    assert plan_replay(captured([end]), RecordFilter()).steps == []


def test_topics_and_groups_are_barriers():
    made = record(17, {"topic": "orders"}, asked_ms=5)
    plan = plan_replay(captured([send(0), made, send(1, 10)]), RecordFilter())
    assert [step.barrier for step in plan.steps] == [False, True, False]


def test_oneway_sends_stand_where_they_were_asked():
    oneway = record(310, send_fields(queue_id=0), answer=None, flag=2, asked_ms=5)
    plan = plan_replay(captured([send(0, 0), oneway, send(2, 10)]), RecordFilter())
    assert offsets(plan) == [0, -1, 2]


@given(st.data())
def test_the_order_of_any_history_is_kept(data):
    """Clients send at any time and brokers store in between: no queue and no client sees another order."""
    count = data.draw(st.integers(1, 12))
    clock = itertools.count()
    spans = []
    for _ in range(count):
        asked = data.draw(st.integers(0, 30))
        stored = asked + data.draw(st.integers(0, 10))
        answered = stored + data.draw(st.integers(0, 10))
        spans.append((asked, stored, answered, next(clock)))
    queues = [data.draw(st.integers(0, 2)) for _ in spans]
    places: dict[int, int] = {}
    for (_, _, _, number), queue in sorted(zip(spans, queues, strict=True), key=lambda each: each[0][1]):
        places[number] = sum(1 for other in places if queues[other] == queue)
    records = [
        send(
            places[number],
            asked,
            took_ms=answered - asked,
            queue_id=queues[number],
            connection=data.draw(st.integers(1, 3)),
            topic="orders",
            client=str(number),
        )
        for asked, stored, answered, number in sorted(spans, key=lambda span: span[2])
    ]
    files = captured(records)
    plan = plan_replay(files, RecordFilter())
    assert len(plan.steps) == count
    for number, step in enumerate(plan.steps):
        assert all(each < number for each in (*step.after_answers, step.after_sending))
    lanes = [step.lane for step in plan.steps if step.lane is not None]
    assert len(lanes) == count
    for queue in range(3):
        in_queue = [step.offset for step, lane in zip(plan.steps, lanes, strict=True) if lane[2] == queue]
        assert in_queue == sorted(in_queue)
    for (at, before), (_, after) in itertools.combinations(enumerate(plan.steps), 2):
        if before.connection == after.connection:
            assert before.asked_us <= after.answered_us, at


def test_an_answer_in_the_microsecond_of_another_request_does_not_begin_the_queue_anew():
    plan = plan_replay(captured([send(1, 0, took_ms=0), send(0, 0, took_ms=1)]), RecordFilter())
    assert offsets(plan) == [0, 1]


def test_nothing_captured_is_nothing_to_do():
    plan = plan_replay(captured([]), RecordFilter())
    assert (plan.steps, plan.duration_s, plan.brokers) == ([], 0.0, [])


def test_a_client_with_endless_unanswered_requests_takes_no_quadratic_time(monkeypatch):
    monkeypatch.setattr(replay_plan, "_MAX_UNANSWERED", 10)
    records = [send(n, n, queue_id=n, took_ms=100) for n in range(200)]
    steps = plan_replay(captured(records), RecordFilter()).steps
    assert len(steps) == 200
    assert max(len(step.after_answers) for step in steps) <= 11


@pytest.mark.parametrize("queue_id", [10_000, 2**31 - 1, 2**62])
def test_a_queue_that_no_topic_has_is_left_out(queue_id):
    """The target would have got a topic with as many queues."""
    found = plan_replay(captured([send(0, queue_id=queue_id)]), RecordFilter())
    assert not found.steps
    assert not found.queue_counts


def test_the_cache_of_blocks_is_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(reader, "_MAX_CACHED_BYTES", 5_000)
    (file,) = captured([send(0)])
    data, blocks = bytearray(file.buffer), []
    for number in range(20):
        builder = BlockBuilder()
        builder.add_record(send(number, topic="x" * 100))
        block_data, block = builder.build(len(data))
        data += block_data
        blocks.append(block)
    file = CaptureFileReader("file", bytes(data))
    for _ in range(2):
        for number, block in enumerate(blocks):
            assert b"%d" % number in file.read_record(block, 0).request
    assert file._cached_bytes <= 5_000
    assert len(file._cached_blocks) < 10
