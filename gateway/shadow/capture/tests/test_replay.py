"""Replay to another cluster: the same messages in the same order, with the target's own ids and offsets."""

import pytest
import trio

from codec.batch import encode_batch
from codec.capture import CaptureRecord
from codec.command import encode_command
from codec.message import decode_message
from codec.properties import encode_properties
from codec.topics import SCHEDULE_TOPIC
from gateway.shadow.capture.replay import MAX_REASONS, Replay, ReplayError, prepare_target
from gateway.shadow.capture.replay_plan import RecordFilter, ReplayPlan, plan_replay
from gateway.shadow.capture.tests.test_replay_plan import captured
from gateway.shadow.tests.two_clusters import two_clusters
from gateway.tests.cluster import EPOCH_MS, message, pull
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.bodies.topics import TopicConfig
from remoting.errors import RequestError
from remoting.requests.groups import UpdateAndCreateSubscriptionGroup
from remoting.requests.offsets import QueryConsumerOffset, UpdateConsumerOffset
from remoting.requests.send import RecallMessage, SendBatchMessage
from remoting.requests.transaction import EndTransaction

BROKER = "broker-a"
PAIRS = {BROKER: BROKER}
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


class Clients:
    """Sends requests to the primary and records them as a gateway would."""

    def __init__(self, primary, broker=BROKER):
        self.primary = primary
        self.broker = broker
        self.records = []

    async def ask(self, request, *, connection=1, oneway=False, topic="orders"):
        command = request.to_command(7)
        asked_s, wall_ms = trio.current_time(), self.primary.simulated.clock.now_ms()
        answer = await self.primary.ask_command(self.primary.master(self.broker), request.to_command())
        await trio.sleep(0.001)
        if oneway:
            command.flag |= 2
        self.records.append(
            CaptureRecord(
                request.code,
                encode_command(command),
                None if oneway else encode_command(answer),
                wall_ms=wall_ms,
                asked_us=round(asked_s * 1e6),
                answered_us=1000,
                connection=connection,
                broker=self.broker,
                topic=topic,
            )
        )
        return None if answer.code else request.read_reply(answer)

    async def send(self, body, *, key, connection=1, **more):
        return await self.ask(message("orders", body, key=key, **more), connection=connection)


async def replayed(clients, target, *, speed=None, wanted=None, pairs=PAIRS):
    plan = plan_replay(captured(clients.records), wanted or RecordFilter())
    await prepare_target(target, plan, pairs)
    replay = Replay(
        plan,
        captured(clients.records),
        target,
        pairs,
        speed=speed,
        now_ms=target.simulated.clock.now_ms,
    )
    await replay.run()
    assert not replay.failure
    assert replay.finished_count == replay.step_count
    assert replay.find_resume_point() is None
    return replay.results


def broker_of(side):
    return next(each for each in side.simulated.nodes.values() if each.registrar).broker


def make_topic(side, name="orders", queues=2):
    config = TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
    broker_of(side).topics.update([config])


def stored(side, topic="orders", queue_id=0):
    store = broker_of(side).store
    ends = range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id))
    return [decode_message(store.read(topic, queue_id, offset, 1).chunks[0]) for offset in ends]


def bodies(side, **more):
    return [bytes(each.body) for each in stored(side, **more)]


@two_clusters
async def test_messages_come_in_their_queues_in_order(primary, target):
    make_topic(primary)
    clients = Clients(primary)
    for number in range(40):
        await clients.send(b"%d" % number, key=f"U{number}", queue_id=number % 2, connection=number % 3)
    entries = [(0, b"x%d" % n, encode_properties({"UNIQ_KEY": f"B{n}"})) for n in range(3)]
    batch = SendBatchMessage(**{name: getattr(message(), name) for name in message().to_ext() and (
        "producer_group", "topic", "default_topic", "default_topic_queue_nums", "sys_flag", "born_timestamp", "flag"
    )}, queue_id=1, batch=True)  # fmt: skip
    batch.body = encode_batch(entries)
    await clients.ask(batch)
    await clients.ask(message("orders", b"oneway", key="O", queue_id=1), oneway=True)
    await target.ask_broker(BROKER, message("other"))  # The target is not empty.
    results = await replayed(clients, target)
    for queue_id in (0, 1):
        assert bodies(target, queue_id=queue_id) == bodies(primary, queue_id=queue_id)
    assert len(bodies(target, queue_id=1)) == 24
    assert (results.sent, results.ok, results.refused, results.skipped) == (
        {310: 41, 320: 1},
        {310: 41, 320: 1},
        {},
        {},
    )
    there, here = stored(target)[3], stored(primary)[3]
    assert (there.unique_key, there.born_timestamp) == (here.unique_key, here.born_timestamp)


async def transaction(clients, key, decision, *, body):
    properties = {"TRAN_MSG": "true", "PGROUP": "PID"}
    sent = await clients.send(body, key=key, properties=properties, sys_flag=4)
    end = EndTransaction(
        producer_group="PID",
        tran_state_table_offset=sent.queue_offset,
        commit_log_offset=int(sent.msg_id[-16:], 16),
        commit_or_rollback=decision,
        msg_id=key,
        transaction_id=key,
    )
    await clients.ask(end, oneway=True, topic="")


@two_clusters
async def test_transactions_end_as_they_did(primary, target):
    make_topic(primary)
    clients = Clients(primary)
    # Offsets at the target differ.
    await target.ask_broker(BROKER, message("other", bytes(500)))
    await clients.send(b"before", key="U0")
    await transaction(clients, "T1", COMMIT, body=b"committed")
    await transaction(clients, "T2", ROLLBACK, body=b"rolled back")
    await transaction(clients, "T3", COMMIT, body=b"committed too")
    await clients.send(b"after", key="U1")
    results = await replayed(clients, target)
    assert bodies(target) == bodies(primary) == [b"before", b"committed", b"committed too", b"after"]
    assert (results.ok[310], results.ok[37]) == (5, 3)


@two_clusters
async def test_an_end_that_decided_nothing_is_left_out(primary, target):
    make_topic(primary)
    clients = Clients(primary)
    properties = {"TRAN_MSG": "true", "PGROUP": "PID"}
    await clients.send(b"x", key="T1", properties=properties, sys_flag=4)
    end = EndTransaction(
        producer_group="PID", tran_state_table_offset=0, commit_log_offset=0, commit_or_rollback=UNKNOWN,
        transaction_id="T1",
    ).to_command(7)  # fmt: skip
    end.flag |= 2
    clients.records.append(clients.records[-1]._replace(code=37, request=encode_command(end), answer=None))
    results = await replayed(clients, target)
    assert results.skipped == {(37, "the producer had not decided yet"): 1}


@two_clusters
async def test_offsets_of_groups_are_those_of_the_target(primary, target):
    make_topic(primary)
    make_topic(target)
    clients = Clients(primary)
    group = SubscriptionGroupConfig(group_name="GID")
    await primary.ask_broker(BROKER, UpdateAndCreateSubscriptionGroup(data=group))
    for number in range(3):  # Three messages that only the target has.
        await target.ask_broker(BROKER, message("orders", b"own", key=f"X{number}"))

    def commit(offset):
        return UpdateConsumerOffset(consumer_group="GID", topic="orders", queue_id=0, commit_offset=offset)

    await clients.ask(commit(0))
    for number in range(5):
        await clients.send(b"%d" % number, key=f"U{number}")
    await clients.ask(commit(4))
    await clients.ask(pull("orders", 4, wait_ms=15_000, commit=5))
    results = await replayed(clients, target)
    assert results.skipped == {
        (11, "only reads messages"): 1,
        (15, "no message below its offset was replayed"): 1,
    }
    query = QueryConsumerOffset(consumer_group="GID", topic="orders", queue_id=0)
    assert (await target.ask_broker(BROKER, query)).offset == 7
    # Asked for, pulls read where they read, without waiting and without committing.
    results = await replayed(clients, target, wanted=RecordFilter(codes=frozenset({310, 11})))
    assert results.ok[11] == 1
    assert (await target.ask_broker(BROKER, query)).offset == 7


@two_clusters
async def test_delays_begin_anew_and_times_move_with_the_replay(primary, target):
    make_topic(primary)
    clients = Clients(primary)
    await clients.send(b"level", key="U1", properties={"DELAY": "5"})
    due_ms = EPOCH_MS + 60_000
    await clients.send(b"at", key="U2", properties={"TIMER_DELIVER_MS": str(due_ms)})
    await clients.send(b"in", key="U3", properties={"TIMER_DELAY_SEC": "60"})
    await trio.sleep(3600)
    begun_ms = target.simulated.clock.now_ms()
    await replayed(clients, target, speed=1.0)
    assert bodies(target) == []
    assert bodies(target, topic=SCHEDULE_TOPIC, queue_id=4) == [b"level"]
    await trio.sleep(30)
    assert b"at" not in bodies(target)
    await trio.sleep(60)
    assert sorted(bodies(target)) == [b"at", b"in", b"level"]
    (at,) = (each for each in stored(target) if each.body == b"at")
    assert abs(at.store_timestamp - begun_ms - 60_000) < 1_100


@two_clusters
async def test_a_recall_takes_back_the_message_that_was_replayed(primary, target):
    there = await primary.add_broker("broker-r", recall_message_enable=True)
    here = await target.add_broker("broker-r", recall_message_enable=True)
    there.topics.update([TopicConfig(topic_name="orders", read_queue_nums=1, write_queue_nums=1)])
    clients = Clients(primary, "broker-r")
    sent = await clients.send(b"x", key="U1", properties={"TIMER_DELAY_SEC": "60"})
    assert sent.recall_handle
    await clients.ask(RecallMessage(topic="orders", recall_handle=sent.recall_handle))
    await clients.send(b"y", key="U2", properties={"TIMER_DELAY_SEC": "60"})
    results = await replayed(clients, target, pairs={"broker-r": "broker-r"})
    assert results.ok[370] == 1
    await trio.sleep(120)
    assert here.store.max_offset("orders", 0) == 1
    assert decode_message(here.store.read("orders", 0, 0, 1).chunks[0]).body == b"y"


@two_clusters
async def test_the_pace_is_the_captured_one_or_faster(primary, target):
    make_topic(primary)
    clients = Clients(primary)
    for number in range(5):
        await clients.send(b"%d" % number, key=f"U{number}")
        await trio.sleep(10)
    for speed, least_s, most_s in ((1.0, 40, 40.5), (2.0, 20, 20.5), (None, 0, 0.5)):
        began_s = trio.current_time()
        await replayed(clients, target, speed=speed)
        assert least_s <= trio.current_time() - began_s < most_s
    first, second = stored(target)[:2]
    assert second.store_timestamp - first.store_timestamp >= 10_000


@two_clusters
async def test_topics_are_made_with_the_queues_they_need(primary, target):
    make_topic(primary, queues=6)
    clients = Clients(primary)
    await clients.send(b"x", key="U1", queue_id=5)
    plan = plan_replay(captured(clients.records), RecordFilter())
    assert await prepare_target(target, plan, PAIRS) == ["orders"]
    assert await prepare_target(target, plan, PAIRS) == []
    assert broker_of(target).topics.get("orders").write_queue_nums == 6
    make_topic(target, queues=2)
    with pytest.raises(ReplayError, match="topic orders has 2 queues at broker-a, the capture needs 6"):
        await prepare_target(target, plan, PAIRS)


@two_clusters
async def test_refusals_are_counted_with_their_reason(primary, target):
    make_topic(primary)
    clients = Clients(primary)
    await clients.send(b"x" * 2000, key="U1")
    await clients.send(b"y", key="U2")
    await target.add_broker("broker-x", max_message_size_bytes=1000)
    results = await replayed(clients, target, pairs={BROKER: "broker-x"})
    assert (results.sent[310], results.ok[310]) == (2, 1)
    (((code, reason), count),) = results.refused.items()
    assert (code, reason[:8], count) == (310, "code 13:", 1)


@two_clusters
async def test_a_replay_that_is_stopped_says_where_to_go_on(primary, target):
    make_topic(primary)
    clients = Clients(primary)
    for number in range(5):
        await clients.send(b"%d" % number, key=f"U{number}")
        await trio.sleep(10)
    plan = plan_replay(captured(clients.records), RecordFilter())
    await prepare_target(target, plan, PAIRS)
    replay = Replay(
        plan, captured(clients.records), target, PAIRS, speed=1.0, now_ms=target.simulated.clock.now_ms
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replay.run)
        await trio.sleep(15)
        replay.stop()
    assert bodies(target) == [b"0", b"1"]
    found = replay.find_resume_point()
    assert found is not None
    from_ms, again = found
    assert (from_ms, again) == (plan.steps[2].wall_ms, 0)
    await replayed(clients, target, wanted=RecordFilter(from_ms=from_ms))
    assert bodies(target) == bodies(primary)


@two_clusters
async def test_a_target_that_goes_away_ends_the_replay(primary, target):
    make_topic(primary)
    clients = Clients(primary)
    for number in range(5):
        await clients.send(b"%d" % number, key=f"U{number}", queue_id=number % 2)
        await trio.sleep(10)
    plan = plan_replay(captured(clients.records), RecordFilter())
    await prepare_target(target, plan, PAIRS)
    replay = Replay(
        plan, captured(clients.records), target, PAIRS, speed=1.0, now_ms=target.simulated.clock.now_ms
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replay.run)
        await trio.sleep(15)
        await target.simulated.stop()
    assert replay.failure
    assert replay.finished_count == 2
    assert replay.find_resume_point() == (plan.steps[2].wall_ms, 0)


@two_clusters
async def test_brokers_of_other_names_are_paired(primary, target):
    make_topic(primary)
    await target.add_broker("broker-x")
    clients = Clients(primary)
    await clients.send(b"x", key="U1")
    await replayed(clients, target, pairs={BROKER: "broker-x"})
    with pytest.raises(RequestError):
        await target.ask_broker(BROKER, pull("orders", 0))
    assert (await target.ask_broker("broker-x", pull("orders", 0))).code == 0


@two_clusters
async def test_a_malformed_record_is_skipped_and_the_others_are_replayed(primary, target, monkeypatch):
    clients = Clients(primary)
    for number in range(6):
        await clients.send(b"%d" % number, key=f"K{number}")
    files = captured(clients.records)
    plan = plan_replay(files, RecordFilter())
    await prepare_target(target, plan, PAIRS)
    replay = Replay(plan, files, target, PAIRS, speed=None, now_ms=primary.simulated.clock.now_ms)
    real, count = replay._retargeter.retarget_request, 0

    def fail_sometimes(exchange, broker):
        nonlocal count
        count += 1
        if count in (2, 4):
            raise ValueError("number")
        return real(exchange, broker)

    monkeypatch.setattr(replay._retargeter, "retarget_request", fail_sometimes)
    await replay.run()
    assert replay.results.ok.total() == 4
    assert replay.results.skipped.total() == 2
    assert replay.finished_count == 6
    assert replay.find_resume_point() is None
    assert not replay._open_steps


@two_clusters
async def test_steps_are_not_open_after_a_failure_and_the_replay_can_be_resumed(primary, target):
    clients = Clients(primary)
    for number in range(6):
        await clients.send(b"%d" % number, key=f"K{number}", queue_id=number % 3)
    files = captured(clients.records)
    plan = plan_replay(files, RecordFilter())
    await prepare_target(target, plan, PAIRS)
    replay = Replay(plan, files, target, PAIRS, speed=None, now_ms=primary.simulated.clock.now_ms)
    for node in list(target.simulated.nodes.values()):
        await node.stop()
    with trio.fail_after(600):
        await replay.run()
    assert replay.failure
    assert not replay._open_steps
    assert replay.find_resume_point() is not None


def test_reasons_of_refusals_are_bounded():
    replay = Replay(ReplayPlan(), [], None, {}, speed=None, now_ms=int)
    for number in range(5000):
        replay._count_refusal(310, f"reason {number}")
    assert len(replay.results.refused) == MAX_REASONS + 1
    assert replay.results.refused.total() == 5000
