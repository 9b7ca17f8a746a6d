import pytest

from codec.command import Command, encode_command
from gateway.shadow.cutover import move_traffic
from gateway.shadow.cutover.move_traffic import MoveTraffic
from gateway.shadow.tests.exchanges import make_exchange
from gateway.shadow.traffic.exchange import Side
from remoting.bodies.locks import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from remoting.bodies.queues import MessageQueue

A, B = (MessageQueue(topic="t", broker_name="broker-a", queue_id=number) for number in (0, 1))


def watch_topics(*topics):
    traffic = MoveTraffic()
    traffic.watch_topics(topics)
    return traffic


def make_send(
    opaque=1, *, topic="t", offset=7, ids="X", code=0, properties="", answered=True, side=Side.PRIMARY
):
    request = encode_command(Command(310, opaque, 0, {"b": topic, "e": "1", "i": properties}))
    answer = Command(code, opaque, ext={"queueId": "1", "queueOffset": str(offset), "msgId": ids})
    return make_exchange(310, request, encode_command(answer) if answered else None, side=side)


def answered_end(traffic, side=Side.PRIMARY):
    return traffic.answered_end(side, "t", "broker-a", 1)


def test_sends_count_until_answered():
    traffic = watch_topics("t")
    first, same = make_send(), make_send()
    for each in (first, same, make_send(2, offset=8, ids="X,Y,Z")):
        traffic.note_send("t", each.request)
    assert traffic.count_unanswered_sends("t") == 3
    traffic.observe(first)
    assert traffic.count_unanswered_sends("t") == 2
    traffic.observe(same)
    traffic.observe(make_send(2, offset=8, ids="X,Y,Z"))
    assert (traffic.count_unanswered_sends("t"), answered_end(traffic)) == (0, 11)


def test_earlier_sends_and_other_topics_do_not_count():
    traffic = watch_topics("t")
    traffic.observe(make_send())
    traffic.observe(make_send(topic="u"))
    assert (traffic.count_unanswered_sends("t"), traffic.count_unanswered_sends("u")) == (0, 0)
    traffic.watch_topics([])
    assert (traffic.count_unanswered_sends("t"), answered_end(traffic)) == (0, 0)


def test_lost_connection_ends_its_sends():
    traffic = watch_topics("t")
    traffic.note_send("t", make_send().request)
    traffic.observe(make_send(answered=False))
    assert (traffic.count_unanswered_sends("t"), answered_end(traffic)) == (0, 0)


def test_only_messages_in_their_own_queue_move_the_end():
    traffic = watch_topics("t")
    for each in (
        make_send(code=1),
        make_send(properties="DELAY\x013\x02"),
        make_send(properties="TIMER_DELIVER_MS\x019\x02"),
        make_send(properties="TRAN_MSG\x01true\x02"),
    ):
        traffic.observe(each)
    assert answered_end(traffic) == 0
    traffic.observe(make_send(code=11, side=Side.TARGET))
    assert (answered_end(traffic), answered_end(traffic, Side.TARGET)) == (0, 8)


def make_lock(client="c", asked=(A, B), held=(A,), at_s=100.0):
    body = LockBatchRequestBody(consumer_group="g", client_id=client, mq_set=list(asked))
    answer = encode_command(Command(0, body=LockBatchResponseBody(lock_okmq_set=list(held)).to_json()))
    frames = encode_command(Command(41, body=body.to_json())), answer
    return make_exchange(41, *frames, at_s=at_s)


def test_locks_are_known_until_released_or_expired():
    traffic = MoveTraffic()
    assert traffic.codes() == {41, 42, 200050, 200053}
    traffic.observe(make_lock())
    traffic.observe(make_lock("d", held=(B,), at_s=150.0))
    assert traffic.held_locks("g", 155.0) == {"c": [A], "d": [B]}
    assert traffic.held_locks("g", 165.0) == {"d": [B]}
    assert traffic.held_locks("other", 155.0) == {}
    body = UnlockBatchRequestBody(consumer_group="g", client_id="d", mq_set=[B])
    traffic.observe(make_exchange(42, encode_command(Command(42, body=body.to_json())), None))
    assert traffic.held_locks("g", 155.0) == {"c": [A]}
    traffic.observe(make_lock(held=()))
    assert traffic.held_locks("g", 155.0) == {}
    traffic.observe(make_exchange(42, encode_command(Command(42, body=b"{")), None))


def make_pop(code=200050, *, answer=0, wall_ms=5000, duration_s=0.0, **ext):
    request = encode_command(Command(code, ext={"consumerGroup": "g", "topic": "t", **ext}))
    return make_exchange(
        code,
        request,
        None if answer is None else encode_command(Command(answer)),
        share_s=0.0,
        primary_s=duration_s,
        wall_ms=wall_ms,
    )


def test_popped_messages_are_noted_for_their_invisible_time():
    traffic = watch_topics("t")
    traffic.observe(make_pop(invisibleTime="60000", pollTime="20000"))
    traffic.observe(make_pop(invisibleTime="60000", answer=209, wall_ms=9000))
    assert traffic.invisible_until_ms("g", "t") == 65_000
    assert traffic.invisible_until_ms("h", "t") == 0


def test_the_invisible_time_begins_at_the_latest_when_a_pop_is_answered():
    traffic = watch_topics("t")
    traffic.observe(make_pop(invisibleTime="60000", duration_s=1.5))
    assert traffic.invisible_until_ms("g", "t") == 66_500


@pytest.mark.parametrize("text", ["", "--1", "1e3", "9" * 30])
def test_an_invisible_time_that_is_not_a_number_hides_nothing(text):
    traffic = watch_topics("t")
    traffic.observe(make_pop(invisibleTime=text))
    assert traffic.invisible_until_ms("g", "t") <= 5_000
    assert not traffic.is_first_pop_waiting("g", "t")


def test_what_a_group_popped_before_its_topic_moves_is_known():
    traffic = MoveTraffic()
    traffic.observe(make_pop(invisibleTime="60000"))
    traffic.watch_topics(["t"])
    assert traffic.invisible_until_ms("g", "t") == 65_000
    # After a way back the topic does not move for a while, and then moves again.
    traffic.watch_topics([])
    traffic.watch_topics(["t"])
    assert traffic.invisible_until_ms("g", "t") == 65_000


def test_a_group_may_have_popped_before_its_first_pop_that_is_seen():
    traffic = watch_topics("t")
    traffic.note_pop("g", "%RETRY%g_t")
    assert traffic.is_first_pop_waiting("g", "t")
    traffic.observe(make_pop(invisibleTime="60000", answer=209, duration_s=20.0))
    assert not traffic.is_first_pop_waiting("g", "t")
    assert traffic.invisible_until_ms("g", "t") == 65_000
    traffic.note_pop("g", "t")
    traffic.observe(make_pop(invisibleTime="60000", answer=209, wall_ms=30_000))
    assert not traffic.is_first_pop_waiting("g", "t")
    assert traffic.invisible_until_ms("g", "t") == 65_000


@pytest.mark.parametrize("code", [200050, 200053])
def test_a_pop_whose_answer_was_lost_may_have_hidden_messages(code):
    traffic = watch_topics("t")
    traffic.observe(make_pop(invisibleTime="60000", answer=210))
    traffic.observe(make_pop(code, answer=None, invisibleTime="50000", wall_ms=20_000, duration_s=2.0))
    assert traffic.invisible_until_ms("g", "t") == 72_000


@pytest.mark.parametrize("answer", [None, 1, 16])
def test_pops_that_no_broker_accepted_hold_nobody_up(answer):
    traffic = watch_topics("t")
    traffic.note_pop("g", "t")
    traffic.observe(make_pop(answer=answer, invisibleTime=str(2**60)))
    assert not traffic.is_first_pop_waiting("g", "t")
    assert traffic.invisible_until_ms("g", "t") == 0
    traffic.observe(make_pop(invisibleTime="60000"))
    traffic.observe(make_pop(answer=answer, invisibleTime=str(2**60)))
    assert traffic.invisible_until_ms("g", "t") == 65_000


def test_a_full_table_of_pops_is_searched_once_a_second(monkeypatch):
    """A search looks at all groups, and anybody may fill the table with groups of their own."""
    monkeypatch.setattr(move_traffic, "MAX_POP_GROUPS", 10)
    traffic = watch_topics("t")
    for number in range(11):
        traffic.observe(make_pop(consumerGroup=f"g{number}", invisibleTime="60000", wall_ms=100_000))
    table = traffic._pops
    traffic.observe(make_pop(consumerGroup="g3", invisibleTime="70000", wall_ms=100_999))
    traffic.observe(make_pop(consumerGroup="made up", invisibleTime="70000", wall_ms=100_999))
    assert traffic._pops is table
    assert traffic.invisible_until_ms("g3", "t") == 170_999
    # Of a clock that was set back, the time says nothing.
    for wall_ms in (101_000, 5000):
        traffic.observe(make_pop(consumerGroup="made up", invisibleTime="70000", wall_ms=wall_ms))
        assert traffic._pops is not table
        table = traffic._pops


@pytest.mark.parametrize("topic", ["%RETRY%g_t", "%RETRY%g+t"])
def test_later_retry_extends_the_invisible_time(topic):
    traffic = watch_topics("t")
    traffic.observe(make_pop(200053, topic=topic, invisibleTime="30000"))
    assert traffic.invisible_until_ms("g", "t") == 35_000


def test_unanswered_send_expires():
    now = [1000.0]
    traffic = MoveTraffic(lambda: now[0])
    traffic.watch_topics(["t"])
    traffic.note_send("t", b"frame")
    now[0] += 59
    assert traffic.count_unanswered_sends("t") == 1
    now[0] += 2
    assert traffic.count_unanswered_sends("t") == 0


@pytest.mark.parametrize("number", ["9" * 400, "9" * 5000, "1_0", "x", str(2**63)])
def test_numbers_beyond_all_ranges_are_refused(number):
    traffic = watch_topics("t")
    with pytest.raises(ValueError, match="For input string"):
        traffic.observe(make_send(offset=number))
    ext = {"consumerGroup": "g", "topic": "t", "invisibleTime": number}
    request = encode_command(Command(200050, ext=ext))
    traffic.observe(make_exchange(200050, request, encode_command(Command(0))))
    assert (answered_end(traffic), traffic.invisible_until_ms("g", "t")) == (0, 0)


def test_made_up_groups_and_queues_are_bounded(monkeypatch):
    for name in ("MAX_POP_GROUPS", "MAX_QUEUE_ENDS", "MAX_LOCKED_QUEUES"):
        monkeypatch.setattr(move_traffic, name, 10)
    traffic = watch_topics("t")
    for number in range(100):
        traffic.observe(make_pop(consumerGroup=f"g{number}", invisibleTime="60000", wall_ms=number))
        traffic.observe(make_send(number, offset=1, side=Side.TARGET))
        traffic.note_pop(f"waiting{number}", "t")
    assert len(traffic._pops) == len(traffic._first_pops) == 10
    traffic.observe(make_pop(consumerGroup="h", invisibleTime="1000", wall_ms=100_000))
    assert traffic.invisible_until_ms("h", "t") == 101_000
    queues = [MessageQueue(topic="t", broker_name="b", queue_id=number) for number in range(50)]
    traffic.observe(make_lock(asked=queues, held=queues))
    assert len(traffic.held_locks("g", 100.0)["c"]) == 10


def test_huge_bodies_of_lock_requests_are_not_decoded():
    traffic = MoveTraffic()
    traffic.observe(make_lock("c" * 300_000))
    assert not traffic._lock_holders
