import pytest
import trio

from codec.batch import encode_batch
from codec.command import Command, encode_command
from codec.constants import ResponseCode
from codec.properties import encode_properties
from codec.sysflag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from codec.topics import DEFAULT_TOPIC, TRANS_HALF_TOPIC
from gateway.shadow.mirror import check_back_producer, resend_writer
from gateway.shadow.tests.mirrored_clusters import BROKER, make_broker_exchange, mirrored
from gateway.shadow.traffic.exchange import Side
from gateway.shadow.traffic.outcome import OutcomeKind
from gateway.tests.cluster import EPOCH_MS, Consumer, message
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.errors import RequestError
from remoting.requests.groups import UpdateAndCreateSubscriptionGroup
from remoting.requests.offsets import QueryConsumerOffset, UpdateConsumerOffset
from remoting.requests.send import SendBatchMessage
from remoting.requests.topics import DeleteTopicInBroker, UpdateAndCreateTopic
from remoting.requests.transaction import EndTransaction


def shown(messages):
    return [(m.queue_offset, m.body, m.properties, m.born_timestamp, m.flag, m.sys_flag) for m in messages]


@mirrored()
async def test_messages_reach_the_same_queues_in_order_with_all_their_fields(world):
    world.create_topic(queues=3)
    for number in range(30):
        await world.send(
            b"body %d" % number, queue_id=number % 3, tags="T", born_timestamp=EPOCH_MS + number, flag=number
        )
    await world.wait_until_idle()
    for queue_id in range(3):
        there = await world.messages(world.target, queue_id=queue_id)
        assert len(there) == 10
        assert shown(there) == shown(await world.messages(world.primary, queue_id=queue_id))
    assert world.check_counts().mirrored == 30


@mirrored()
async def test_missing_topic_is_created_as_on_the_primary(world):
    world.create_topic(queues=5)
    await world.send(b"one", queue_id=4)
    await world.wait_until_idle()
    assert world.broker_of(world.target).topics.get("orders") == world.broker_of(world.primary).topics.get(
        "orders"
    )


@mirrored()
async def test_failed_topic_creation_is_not_retried_for_every_message(world, monkeypatch):
    looks = []

    async def refusing(*where):
        looks.append(trio.current_time())
        raise RequestError(ResponseCode.NO_PERMISSION, "no permission")

    world.create_topic()
    with monkeypatch.context() as context:
        context.setattr(resend_writer, "copy_topic", refusing)
        for _ in range(10):
            await world.send(b"refused")
            await world.wait_until_idle()
        assert len(looks) == 1
        await trio.sleep(2)
        await world.send(b"refused")
        await world.wait_until_idle()
        assert len(looks) == 2
    await trio.sleep(2)
    await world.send(b"there")
    await world.wait_until_idle()
    assert (await world.bodies(world.target))[-1] == b"there"
    assert world.broker_of(world.target).topics.get("orders") == world.broker_of(world.primary).topics.get(
        "orders"
    )


def batch():
    entries = [(0, b"m%d" % n, encode_properties({"UNIQ_KEY": f"{n:032X}", "TAGS": "B"})) for n in range(5)]
    request = SendBatchMessage(
        producer_group="PID", topic="orders", default_topic=DEFAULT_TOPIC, default_topic_queue_nums=4,
        queue_id=1, sys_flag=0, born_timestamp=EPOCH_MS, flag=0, properties="WAIT\x01true\x02", batch=True,
    )  # fmt: skip
    request.body = encode_batch(entries)
    return request


@pytest.mark.parametrize("kind", ["single", "batch", "half", "delayed", "timed"])
def test_message_is_not_sent_twice_when_the_targets_answer_is_lost(kind):
    more = {
        "half": half(),
        "delayed": {"properties": {"DELAY": "1"}},
        "timed": {"properties": {"TIMER_DELIVER_MS": str(EPOCH_MS + 20_000)}},
    }.get(kind, {})

    @mirrored()
    async def run(world):
        world.create_topic()
        await world.send(b"before", queue_id=1)
        await world.wait_until_idle()
        world.target.answers_to_lose = 1
        key = "E" * 32
        if kind == "batch":
            await world.ask(batch())
        else:
            exchange = await world.send(b"once", key=key, queue_id=1, **more)
        await world.wait_until_idle()
        if kind == "half":
            await world.ask(end(exchange, key, TRANSACTION_COMMIT), oneway=True)
        await trio.sleep(60)
        assert shown(await world.messages(world.target, queue_id=1)) == shown(
            await world.messages(world.primary, queue_id=1)
        )
        total = world.check_counts()
        assert (total.found, total.dropped, total.refused) == (1, 0, 0)

    run()


@pytest.mark.parametrize("decision", [TRANSACTION_COMMIT, TRANSACTION_ROLLBACK])
def test_transaction_is_not_ended_twice_when_the_targets_answer_is_lost(decision):
    @mirrored()
    async def run(world):
        world.create_topic()
        exchange = await world.send(b"half", key="E" * 32, **half())
        await world.wait_until_idle()
        world.target.answers_to_lose = 1
        await world.ask(end(exchange, "E" * 32, decision), oneway=True)
        await world.wait_until_idle()
        committed_bodies = [b"half"] if decision == TRANSACTION_COMMIT else []
        assert await world.bodies(world.target) == committed_bodies
        total = world.check_counts()
        assert (total.mirrored, total.found) == (2, len(committed_bodies))

    run()


@mirrored()
async def test_batch_is_resent_as_one_batch(world):
    world.create_topic()
    request = batch()
    await world.ask(request)
    await world.send(b"after", queue_id=1)
    await world.wait_until_idle()
    assert await world.bodies(world.target, queue_id=1) == [b"m%d" % n for n in range(5)] + [b"after"]
    offsets = world.factory.directions
    assert next(iter(offsets.values())).state.offsets.translate((BROKER, "orders", 1), 4) == 4


@mirrored()
async def test_a_batch_that_looks_like_half_messages_is_written_once(world):
    """Brokers look for half messages in single sends only; its answer has an id for each message of the batch."""
    world.create_topic()
    request = batch()
    request.properties = "TRAN_MSG\x01true\x02PGROUP\x01PID\x02"
    await world.ask(request)
    await world.wait_until_idle()
    assert await world.bodies(world.target, queue_id=1) == [b"m%d" % n for n in range(5)]
    assert world.check_counts().mirrored == 1


@mirrored()
async def test_exchange_refused_by_the_primary_is_skipped(world):
    world.create_topic()
    await world.send(b"no such queue", queue_id=9)
    assert world.outcomes[0].kind is OutcomeKind.SKIPPED
    assert world.check_counts().skipped == 1


@mirrored()
async def test_system_retry_and_dead_letter_topics_are_skipped(world):
    for topic in ("%RETRY%GID", "%DLQ%GID", "rmq_sys_wheel_timer"):
        world.create_topic(topic)
        await world.send(b"x", topic=topic)
    await world.wait_until_idle()
    assert {each.kind for each in world.outcomes} == {OutcomeKind.SKIPPED}


@mirrored()
async def test_delayed_message_waits_at_the_target_too(world):
    world.create_topic()
    await world.send(b"later", properties={"DELAY": "1"})
    await world.send(b"timed", properties={"TIMER_DELIVER_MS": str(EPOCH_MS + 20_000)}, queue_id=1)
    await world.wait_until_idle()
    assert await world.bodies(world.target) == []
    await trio.sleep(60)
    assert await world.bodies(world.target) == [b"later"]
    assert await world.bodies(world.target, queue_id=1) == [b"timed"]


def half(**more):
    return {"sys_flag": TRANSACTION_PREPARED, "properties": {"TRAN_MSG": "true", "PGROUP": "PID"}, **more}


def end(exchange, key, decision, topic="orders", **more):
    answer = exchange.answer_command.ext
    return EndTransaction(
        topic=topic, producer_group="PID", tran_state_table_offset=int(answer["queueOffset"]),
        commit_log_offset=int(answer["msgId"][-16:], 16), commit_or_rollback=decision, msg_id=key,
        transaction_id=key, **more,
    )  # fmt: skip


@pytest.mark.parametrize("oneway", [True, False])
@pytest.mark.parametrize("topic", ["orders", None])
def test_transactions_end_at_the_target_as_they_do_at_the_primary(oneway, topic):
    @mirrored()
    async def run(world):
        world.create_topic()
        halves = {}
        for number in range(4):
            key = f"{number:032X}"
            halves[key] = await world.send(b"half %d" % number, key=key, **half())
        for number, (key, exchange) in enumerate(halves.items()):
            decision = TRANSACTION_ROLLBACK if number == 1 else TRANSACTION_COMMIT
            await world.ask(end(exchange, key, decision, topic), oneway=oneway)
        await world.wait_until_idle()
        expected = await world.messages(world.primary)
        assert [m.body for m in expected] == [b"half 0", b"half 2", b"half 3"]
        assert shown(await world.messages(world.target)) == shown(expected)
        assert world.factory.directions[exchange.side].state.halves.count_open() == 0

    run()


@mirrored()
async def test_end_does_not_overtake_its_half_message(world):
    world.create_topic(queues=4)
    await world.send(b"warm")
    await world.wait_until_idle()
    world.target.fault = "gone"
    for number in range(20):
        key = f"{number:032X}"
        exchange = await world.send(b"half %d" % number, key=key, queue_id=number % 4, **half())
        await world.ask(end(exchange, key, TRANSACTION_COMMIT), oneway=True)
    world.target.fault = ""
    await world.wait_until_idle()
    assert world.check_counts().mirrored == 41
    for queue_id in range(4):
        expected = await world.messages(world.primary, queue_id=queue_id)
        assert shown(await world.messages(world.target, queue_id=queue_id)) == shown(expected)


@pytest.mark.parametrize("spelt", ["abc", "1e3", str(2**64)])
@pytest.mark.parametrize("oneway", [True, False])
def test_malformed_numbers_do_not_stop_the_mirror(spelt, oneway):
    @mirrored()
    async def run(world):
        world.create_topic()
        key = "A" * 32
        exchange = await world.send(b"half", key=key, **half())
        await world.wait_until_idle()
        asked = (
            (end(exchange, key, TRANSACTION_COMMIT), "commitOrRollback"),
            (commit(1), "commitOffset"),
            (commit(1), "queueId"),
        )
        for request, field in asked:
            command = request.to_command(7, oneway=oneway)
            command.ext[field] = spelt
            answer = None if oneway else encode_command(Command(0))
            world.mirror.observe(make_broker_exchange(request.code, encode_command(command), answer))
        await world.wait_until_idle()
        assert [each.reason for each in world.outcomes[1:]] == [
            "the request or its answer cannot be decoded"
        ] * 3
        await world.send(b"next")
        await world.wait_until_idle()
        assert await world.bodies(world.target) == [b"next"]

    run()


@mirrored(target={"transaction_timeout_ms": 1000, "transaction_check_interval_ms": 1000})
async def test_check_back_gets_the_recorded_decision_and_no_answer_before(world):
    world.create_topic()
    key = "K" * 32
    exchange = await world.send(b"half", key=key, **half())
    await world.wait_until_idle()
    producers = world.factory.directions[exchange.side].producer
    with trio.fail_after(300):
        while producers.check_backs_total < 2:
            await trio.sleep(1)
    assert await world.bodies(world.target) == []
    world.factory.directions[exchange.side].state.halves.find_half(BROKER, key).record_decision(
        TRANSACTION_COMMIT
    )
    with trio.fail_after(300):
        while not await world.bodies(world.target):
            await trio.sleep(1)
    await trio.sleep(120)
    assert await world.bodies(world.target) == [b"half"]


def commit(offset, group="GID"):
    return UpdateConsumerOffset(consumer_group=group, topic="orders", queue_id=0, commit_offset=offset)


async def committed(world, group="GID"):
    asked = QueryConsumerOffset(consumer_group=group, topic="orders", queue_id=0, set_zero_if_not_found=False)
    return (await world.target.ask_broker(BROKER, asked)).offset


@mirrored()
async def test_offsets_are_translated_and_missing_groups_created(world):
    world.create_topic()
    world.create_topic(side=world.target)
    await world.primary.ask_broker(
        BROKER, UpdateAndCreateSubscriptionGroup(data=SubscriptionGroupConfig(group_name="GID"))
    )
    await world.target.ask_broker(BROKER, message("orders", b"was there before", queue_id=0, key="F" * 32))
    for number in range(5):
        await world.send(b"m%d" % number)
    await world.wait_until_idle()
    await world.ask(commit(3), oneway=True)
    await world.wait_until_idle()
    assert await committed(world) == 4
    await world.ask(commit(5))
    await world.wait_until_idle()
    assert await committed(world) == 6


@mirrored()
async def test_offsets_of_a_group_active_on_the_target_are_skipped(world):
    world.create_topic()
    await world.primary.ask_broker(
        BROKER, UpdateAndCreateSubscriptionGroup(data=SubscriptionGroupConfig(group_name="GID"))
    )
    await world.send(b"one")
    await world.wait_until_idle()
    consumer = await Consumer(world.target.simulated, "GID", "orders", "me", lambda each: True).start()
    await world.ask(commit(0))
    await world.wait_until_idle()
    assert (world.outcomes[-1].kind, world.outcomes[-1].reason) == (
        OutcomeKind.SKIPPED,
        "the group is active on the target",
    )
    await consumer.stop()
    await trio.sleep(2)
    await world.ask(commit(1))
    await world.wait_until_idle()
    assert await committed(world) == 1


@mirrored()
async def test_topics_are_created_and_deleted_at_the_target(world):
    create = UpdateAndCreateTopic(
        topic="made", default_topic="TBW102", read_queue_nums=3, write_queue_nums=3, perm=6,
        topic_filter_type="SINGLE_TAG",
    )  # fmt: skip
    await world.ask(create)
    await world.wait_until_idle()
    assert world.broker_of(world.target).topics.get("made").read_queue_nums == 3
    await world.send(b"x", topic="made")
    await world.ask(DeleteTopicInBroker(topic="made"))
    await world.wait_until_idle()
    assert world.broker_of(world.target).topics.get("made") is None
    assert world.check_counts().mirrored == 3


@mirrored()
async def test_end_after_a_check_back_marks_nothing_for_a_moved_topic(world):
    world.create_topic(side=world.target)
    world.mirror.set_mode("orders", "off")
    world.mirror.moved_topics.add("orders")
    sent = await world.send(b"half", key="A" * 32, side=Side.TARGET, **half())
    ended = end(sent, "A" * 32, TRANSACTION_COMMIT, topic=TRANS_HALF_TOPIC)
    await world.ask(ended, side=Side.TARGET)
    await world.ask(end(sent, "B" * 32, TRANSACTION_COMMIT, topic=TRANS_HALF_TOPIC), side=Side.TARGET)
    await world.wait_until_idle()
    assert list(world.mirror.diverged) == []
    assert world.check_counts().skipped == 3


@mirrored()
async def test_end_naming_the_half_message_topic_is_mirrored_back_while_the_target_leads(world):
    for side in (world.primary, world.target):
        world.create_topic(side=side)
    world.mirror.set_mode("orders", "target-primary")
    sent = await world.send(b"half", key="A" * 32, side=Side.TARGET, **half())
    await world.wait_until_idle()
    await world.ask(end(sent, "A" * 32, TRANSACTION_COMMIT, topic=TRANS_HALF_TOPIC), side=Side.TARGET)
    await world.wait_until_idle()
    assert await world.bodies(world.primary) == [b"half"]


@mirrored()
async def test_tables_of_made_up_topics_are_bounded(world, monkeypatch):
    monkeypatch.setattr(resend_writer, "MAX_KNOWN_NAMES", 5)
    for number in range(20):
        world.create_topic(f"made-up-{number}")
        await world.send(b"one", topic=f"made-up-{number}")
    await world.wait_until_idle()
    (stream,) = world.mirror.streams()
    writer = stream.writer._writer
    assert len(writer._known_topics) <= 5
    assert len(writer._last_target_offsets) <= 5
    assert world.check_counts().mirrored == 20


@mirrored()
async def test_a_topic_with_absurdly_many_queues_is_not_created_at_the_target(world):
    request = UpdateAndCreateTopic(
        topic="huge", default_topic=DEFAULT_TOPIC, read_queue_nums=2**31 - 1, write_queue_nums=1, perm=6,
        topic_filter_type="SINGLE_TAG",
    )  # fmt: skip
    exchange = make_broker_exchange(
        request.code, encode_command(request.to_command()), encode_command(Command(0))
    )
    world.mirror.observe(exchange)
    await world.wait_until_idle()
    assert world.broker_of(world.target).topics.get("huge") is None
    (stream,) = world.mirror.streams()
    assert stream.counts.skipped == 1


@mirrored()
async def test_made_up_producer_groups_are_bounded(world, monkeypatch):
    monkeypatch.setattr(check_back_producer, "MAX_GROUPS", 3)
    producer = world.factory.directions[Side.PRIMARY].producer
    await producer.target.refresh()
    for number in range(10):
        await producer.register_group(BROKER, f"PID{number}")
    assert len(producer._registered[BROKER]) == 3
