import random

import pytest

from codec.message import iter_messages
from gateway.broker.pop.receipts import is_shared_retry_topic
from gateway.tests.broker_world import World
from gateway.tests.popping import RETRY, pop_request
from remoting.bodies.pop import BatchAck, BatchAckMessageRequestBody
from remoting.errors import RequestError
from remoting.requests.pop import (
    AckMessage,
    BatchAckMessage,
    ChangeMessageInvisibletime,
    PeekMessage,
    PollingInfo,
)


@pytest.fixture
def world():
    random.seed(7)
    world = World()
    world.topic("orders", 2)
    return world


def pop(world, **more):
    return world.ask(pop_request(**more))


def got(reply):
    return [bytes(each.body) for each in iter_messages(reply.body)] if reply.body else []


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"max_msg_nums": 33}, 29, "pop message's num is greater than 32"),
        ({"topic": "none"}, 17, "topic[none] not exist"),
        (
            {"queue_id": 2},
            29,
            "queueId[2] is illegal, topic:[orders] topicConfig.readQueueNums:[2] consumer:[/10.0",
        ),
        ({"group": "stopped"}, 16, "subscription group no permission, stopped"),
        ({"group": "a b"}, 26, "subscription group [a b] does not exist"),
        ({"exp_type": "SQL92", "exp": "a >"}, 23, "parse the consumer's subscription failed"),
        ({"exp_type": "TAG", "exp": "||"}, 23, "parse the consumer's subscription failed"),
        ({"exp_type": "MOON", "exp": "x"}, 23, "parse the consumer's subscription failed"),
    ],
)
def test_refusals(world, fields, code, words):
    world.broker.groups.find_or_create("stopped").consume_enable = False
    with pytest.raises(RequestError) as refused:
        pop(world, **fields)
    assert refused.value.code == code
    assert words in (refused.value.remark or "")


def test_topics_and_brokers_that_may_not_be_read(world):
    world.broker.topics.get("orders").perm = 2
    with pytest.raises(RequestError, match="the topic\\[orders\\] peeking message is forbidden"):
        pop(world)
    world = World(broker_permission=2)
    for request, words in (
        (pop_request(), "pop message is forbidden"),
        (PollingInfo(consumer_group="GID", topic="orders"), "peeking message is forbidden"),
        (PeekMessage(consumer_group="GID", topic="orders"), "peeking message is forbidden"),
    ):
        with pytest.raises(RequestError, match=words):
            world.ask(request)


def test_a_pop_whose_client_is_gone_is_not_looked_at(world):
    world.put("orders")
    reply = pop(world, poll_time=1_000, born_time=world.clock.ms - 1_501)
    assert (reply.code, reply.pop_time, reply.body) == (210, 0, b"")
    assert reply.remark == "the broker[10.0.0.9] pop message is timeout too much"
    assert pop(world, poll_time=1_000, born_time=world.clock.ms - 1_500).code == 0


@pytest.mark.parametrize(("recent", "start"), [(True, 0), (False, 2)])
def test_where_a_group_begins_that_wants_the_latest(recent, start):
    world = World(init_pop_offset_by_check_msg_in_mem=recent)
    world.topic("orders", 1)
    for number in range(3):
        world.put("orders", body=b"%d" % number)
    assert pop(world, init_mode=1).start_offset_info == f"0 0 {start}"


def test_a_group_that_wants_the_latest_begins_an_empty_queue_at_its_beginning(world):
    assert pop(world, init_mode=1).code == 210
    world.put("orders")
    assert got(pop(world, init_mode=1)) == [b"hello"]


def test_an_offset_beyond_the_queue_is_corrected(world):
    world.put("orders")
    world.broker.offsets.commit_offset("GID", "orders", 0, 50)
    assert pop(world, queue_id=0).code == 210
    assert world.broker.offsets.query_offset("GID", "orders", 0) == 1


def test_the_answer_says_what_was_left(world):
    for number in range(6):
        world.put("orders", number % 2, b"%d" % number)
    reply = pop(world, max_msg_nums=4)
    assert (len(got(reply)), reply.rest_num) == (4, 2)
    assert pop(world, max_msg_nums=0).rest_num == 2


@pytest.mark.parametrize("v2", [False, True])
def test_retry_topics_of_both_namings_are_read(v2):
    random.seed(1)
    world = World(enable_retry_topic_v2=v2, pop_from_retry_probability=50)
    world.topic("orders", 1)
    world.topic(RETRY, 1)
    world.topic("%RETRY%GID+orders", 1)
    world.put(RETRY, body=b"old")
    world.put("%RETRY%GID+orders", body=b"new")
    found = [body for _ in range(40) for body in got(pop(world))]
    assert sorted(found) == ([b"new", b"old"] if v2 else [b"old"])


def test_actual_retry_topics_may_be_shown():
    world = World(pop_response_return_actual_retry_topic=True)
    world.topic("orders", 1)
    world.topic(RETRY, 1)
    world.put(RETRY)
    (message,) = iter_messages(pop(world).body)
    assert (message.topic, message.properties.get("POP_CK")) == (RETRY, None)


def test_retry_topics_come_now_and_then_before_others(world):
    world.topic(RETRY, 1)
    firsts = []
    for _ in range(200):
        world.put("orders", body=b"new")
        world.put(RETRY, body=b"again")
        firsts += got(pop(world, max_msg_nums=1))
    assert 10 < firsts.count(b"again") < 80


def test_topics_of_priority_give_their_last_queue_first(world):
    world.broker.topics.get("orders").attributes["message.type"] = "PRIORITY"
    for _ in range(20):
        world.put("orders", 0, b"low")
        world.put("orders", 1, b"high")
        assert got(pop(world, max_msg_nums=1)) == [b"high"]
    assert pop(world, queue_id=0).rest_num == 0


@pytest.mark.parametrize(("last_first", "wanted"), [(True, b"high"), (False, b"low")])
def test_priority_may_go_the_other_way(last_first, wanted):
    world = World(priority_order_asc=last_first)
    world.topic("orders", 2).attributes["message.type"] = "PRIORITY"
    world.put("orders", 0, b"low")
    world.put("orders", 1, b"high")
    assert got(pop(world, max_msg_nums=1)) == [wanted]


def test_a_group_with_too_much_of_a_queue_out_has_to_ack_first():
    world = World(enable_pop_message_threshold=True, pop_inflight_message_threshold=1)
    world.topic("orders", 1)
    for _ in range(4):
        world.put("orders")
    first, _ = pop(world, max_msg_nums=1), pop(world, max_msg_nums=1)
    assert (pop(world).code, world.broker.pop.state.reviver.count_outstanding("orders", "GID", 0)) == (210, 2)
    receipt = f"0 {first.pop_time} 10000 {first.revive_qid} 0 b1 0 0"
    world.ask(AckMessage(**ack_fields(extra_info=receipt)))
    assert world.broker.pop.state.reviver.count_outstanding("orders", "GID", 0) == 1
    assert len(got(pop(world))) == 2


def test_messages_that_cannot_be_written_down_are_not_given(world):
    world.put("orders")
    world.broker.store.disk_full = True
    reply = pop(world)
    assert (reply.code, reply.body, reply.rest_num) == (210, b"", 1)
    world.broker.store.disk_full = False
    assert got(pop(world)) == [b"hello"]


def ack_fields(**more):
    return {
        "consumer_group": "GID", "topic": "orders", "queue_id": 0, "offset": 0,
        "extra_info": "0 1 2 0 0 b1 0 0", **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"topic": "none"}, 17, "topic[none] not exist"),
        ({"queue_id": 2}, 13, "queueId[2] is illegal"),
        ({"queue_id": -1}, 13, "queueId[-1] is illegal"),
        ({"offset": 2}, 208, "offset is illegal, key:orders@0, commit:2, store:0~1"),
        ({"extra_info": "0"}, 1, "extra info cannot be read"),
        ({"extra_info": "0 1 2 3 0 " + "b" * 300}, 1, "extra info cannot be read"),
        ({"consumer_group": "../../x"}, 29, "The specified group: ../../x, contains illegal characters"),
    ],
)
def test_refused_acks(world, fields, code, words):
    world.put("orders")
    with pytest.raises(RequestError) as refused:
        world.ask(AckMessage(**ack_fields(**fields)))
    assert (refused.value.code, words in (refused.value.remark or "")) == (code, True)


def test_refused_changes(world):
    world.put("orders")
    for fields, code in (
        ({"offset": 1}, 208),
        ({"extra_info": "0 1 2 77 0 b1 0 0"}, 1),
        ({"topic": "none"}, 17),
        ({"consumer_group": "../../x"}, 26),
    ):
        with pytest.raises(RequestError) as refused:
            world.ask(ChangeMessageInvisibletime(invisible_time=1, **ack_fields(**fields)))
        assert refused.value.code == code


@pytest.mark.parametrize("receipt", ["0 1 2 0 0 b1 0 0", "0 1 2 999 0 b1 0 0"])
def test_an_invisible_time_beyond_java_is_refused(world, receipt):
    world.put("orders")
    for request in (
        pop_request(invisible_time=2**63 - 1),
        pop_request(invisible_time=2**63 - 1, order=True),
        ChangeMessageInvisibletime(invisible_time=2**63 - 1, **ack_fields(extra_info=receipt)),
    ):
        with pytest.raises(RequestError) as refused:
            world.ask(request)
        assert (refused.value.code, refused.value.remark) == (
            29,
            "invisibleTime[9223372036854775807] is illegal",
        )


def test_an_attempt_id_of_a_megabyte_is_refused(world):
    with pytest.raises(RequestError, match="attemptId has 1000000 characters, at most 255"):
        world.ask(pop_request(order=True, attempt_id="x" * 1_000_000))


def test_one_message_cannot_be_prolonged_into_more_pops_than_the_queue_has_messages(world):
    for _ in range(3):
        world.put("orders")
    change = ChangeMessageInvisibletime(invisible_time=60_000, **ack_fields(extra_info="0 1 2 0 0 b1 0 0"))
    for _ in range(4):
        world.ask(change)
    with pytest.raises(RequestError, match="too many outstanding pops of the queue"):
        world.ask(change)
    assert len(world.broker.pop.state.reviver) == 4


def test_a_batch_ack_of_an_unknown_queue_or_impossible_group_writes_nothing(world):
    world.put("orders")
    later = world.clock.now_ms() + 60_000
    for topic, queue_id, group, code in (
        ("../../x", 0, "GID", 0),
        ("orders", 7, "GID", 0),
        ("orders", -1, "GID", 0),
        ("orders", 0, "../../x", 29),
    ):
        ack = BatchAck(
            topic=topic, consumer_group=group, retry="0", queue_id=queue_id, pop_time=later, bit_set="AQ=="
        )
        request = BatchAckMessage(data=BatchAckMessageRequestBody(acks=[ack]))
        if code:
            with pytest.raises(RequestError) as refused:
                world.ask(request)
            assert refused.value.code == code
        else:
            world.ask(request)
    assert world.broker.store.topics() == {"orders"}


def test_a_batch_ack_of_more_messages_or_pops_than_there_can_be_is_refused(world):
    world.put("orders")
    later = world.clock.now_ms() + 60_000
    for bit_set, count, words in (
        ("/////w==", 1024, None),
        ("/////wE=", 1, "more than 32 bits are set"),
        ("A" * 400_000, 1024, None),
        ("/" * 400_000, 1, "more than 32 bits are set"),
        ("x", 1, "the bit set cannot be read"),
        ("AQ==", 1025, "1025 pops in one request, at most 1024"),
    ):
        ack = BatchAck(topic="orders", consumer_group="GID", retry="0", pop_time=later, bit_set=bit_set)
        request = BatchAckMessage(data=BatchAckMessageRequestBody(acks=[ack] * count))
        if words is None:
            world.ask(request)
        else:
            with pytest.raises(RequestError, match=words):
                world.ask(request)


def test_acks_of_nothing_are_taken(world):
    world.put("orders")
    world.ask(AckMessage(**ack_fields()))
    world.ask(AckMessage(**ack_fields(extra_info="0 1 2 77 0 b1 0 0")))
    with pytest.raises(RequestError) as refused:
        world.ask(BatchAckMessage(data=None))
    assert refused.value.code == 208


def test_a_change_of_what_is_acked_in_order_says_nothing(world):
    world.put("orders")
    world.broker.offsets.commit_offset("GID", "orders", 0, 1)
    fields = ack_fields(extra_info="0 1 2 999 0 b1 0 0")
    reply = world.ask(ChangeMessageInvisibletime(invisible_time=5, **fields))
    assert (reply.pop_time, reply.invisible_time, reply.revive_qid) == (0, 0, 0)
    world.ask(AckMessage(**fields))


def test_a_popped_message_with_the_most_attempts_is_revived(world):
    world.put("orders", reconsume_times=2**31 - 1)
    pop(world, invisible_time=1_000)
    world.clock.pass_ms(1_001)
    world.broker.pop.run_due()
    assert [each.reconsume_times for each in world.stored(RETRY)] == [2**31 - 1]
    assert len(world.broker.pop.state.reviver) == 0


def test_two_groups_that_share_a_retry_topic_get_their_own_messages_only():
    world = World(timer_wheel_enable=False)
    pairs = [("g", "a_t"), ("g_a", "t")]
    for group, topic in pairs:
        world.topic(topic, 1)
        world.put(topic, body=f"of {group}".encode())
        world.ask(pop_request(topic, group, queue_id=0, invisible_time=10_000))
    world.clock.pass_ms(10_000)
    world.broker.pop.run_due()
    assert len(world.stored("%RETRY%g_a_t")) == 2
    for group, topic in pairs:
        again = [body for _ in range(4) for body in got(world.ask(pop_request(topic, group, queue_id=0)))]
        assert again == [f"of {group}".encode()]


def test_a_shared_retry_topic_is_filtered_by_tags_and_sql_too():
    world = World(timer_wheel_enable=False)
    for group, topic in (("g", "a_t"), ("g_a", "t")):
        world.topic(topic, 1)
        for number in (1, 2):
            world.put(topic, body=f"{group} {number}".encode(), properties={"n": str(number)})
        world.ask(pop_request(topic, group, queue_id=0, invisible_time=10_000))
    world.clock.pass_ms(10_000)
    world.broker.pop.run_due()
    request = pop_request("t", "g_a", queue_id=0, exp_type="SQL92", exp="n = 2")
    assert [body for _ in range(4) for body in got(world.ask(request))] == [b"g_a 2"]


@pytest.mark.parametrize(
    ("topic", "group", "shared"), [("a_t", "g", True), ("t", "g_a", True), ("t", "g", False)]
)
def test_retry_topics_that_others_may_share(topic, group, shared):
    assert is_shared_retry_topic(topic, group, f"%RETRY%{group}_{topic}") is shared
    assert not is_shared_retry_topic(topic, group, f"%RETRY%{group}+{topic}")
