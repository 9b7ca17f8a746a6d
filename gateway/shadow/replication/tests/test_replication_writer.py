import pytest
import trio

from codec.command import Command, encode_command
from gateway.shadow.mirror.diverged_queues import DivergedQueues
from gateway.shadow.mirror.rules import MirrorRules
from gateway.shadow.mirror.settings import MirrorRule
from gateway.shadow.replication.service import (
    ReplicationService,
    answer_hold_predicate,
    clear_healed_marks,
    queue_selector,
)
from gateway.shadow.tests.exchanges import make_exchange
from gateway.shadow.tests.replicated_clusters import BROKER, ReplicatedClusters, topic
from gateway.shadow.tests.two_clusters import ClusterView, two_clusters
from gateway.shadow.traffic.outcome import OutcomeKind
from gateway.tests.cluster import settle
from remoting.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from remoting.errors import RequestError
from remoting.requests.client import HeartBeat
from remoting.requests.offsets import QueryConsumerOffset


class ServicedClusters(ReplicatedClusters):
    """Both clusters, and a `ReplicationService` whose feeds replace the plain ones."""

    def __init__(self, primary: ClusterView, target: ClusterView) -> None:
        super().__init__(primary, target)
        self.rules = MirrorRules([MirrorRule(topics=["t"])])
        self.diverged = DivergedQueues(100)
        self.replication = ReplicationService(self.settings, {}, primary, target, self.rules, self.diverged)
        self.feeds = self.replication.feeds


def with_replication(test):
    """Run ``test(sides, writer)`` in virtual time with a running `ReplicationService` between the sides."""

    async def run(primary, target):
        sides = ServicedClusters(primary, target)
        async with trio.open_nursery() as nursery:
            await sides.restart_target()
            sides.broker_of(primary).topics.update([topic("t")])
            sides.broker_of(primary).groups.find_or_create("g")
            writer = sides.replication.make_writer(BROKER, BROKER)
            nursery.start_soon(sides.replication.run)
            await sides.feeds.wait_for_discovery()
            await settle()
            await test(sides, writer)
            nursery.cancel_scope.cancel()

    run.__name__ = test.__name__
    return two_clusters(run)


def send_exchange(offset, *, queue_id=0, count=1, properties="", code=310, answered=True, topic="t"):
    request = Command(code, ext={"a": "p", "b": topic, "e": "7", "i": properties}, body=b"x")
    ids = ",".join(["0" * 32] * count)
    answer = Command(0, ext={"msgId": ids, "queueId": str(queue_id), "queueOffset": str(offset)})
    return make_exchange(code, encode_command(request), encode_command(answer) if answered else None)


def commit_exchange(offset, group="g", topic="t"):
    ext = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": str(offset)}
    return make_exchange(15, encode_command(Command(15, ext=ext)), encode_command(Command(0)))


async def write_fates(writer, *exchanges):
    return [outcome.kind for outcome in await writer.write(exchanges)]


async def offset_of(sides, group="g"):
    request = QueryConsumerOffset(consumer_group=group, topic="t", queue_id=0, set_zero_if_not_found=False)
    try:
        return (await sides.target.ask_broker(BROKER, request)).offset
    except RequestError:
        return None


@with_replication
async def test_message_is_mirrored_once_its_queue_is_copied(sides, writer):
    sides.send(b"0", b"1", b"2")
    sides.send(b"a", queue_id=1)
    fates = await write_fates(
        writer, send_exchange(1, count=2, code=320), send_exchange(0), send_exchange(0, queue_id=1)
    )
    assert fates == [OutcomeKind.MIRRORED] * 3
    assert sides.queues_equal()


@with_replication
async def test_delayed_half_and_unanswered_messages_are_skipped(sides, writer):
    for properties in ("DELAY\x013\x02", "TRAN_MSG\x01true\x02", "TIMER_DELAY_SEC\x019\x02"):
        assert await write_fates(writer, send_exchange(5, properties=properties)) == [OutcomeKind.SKIPPED]
    assert await write_fates(writer, send_exchange(5, answered=False)) == [OutcomeKind.SKIPPED]


@with_replication
async def test_late_message_is_skipped_or_refused_if_a_client_waits(sides, writer):
    await sides.crash_target()
    assert await write_fates(writer, send_exchange(0)) == [OutcomeKind.SKIPPED]
    sides.rules.set_mode("t", "strict-dual")
    (outcome,) = await writer.write([send_exchange(0)])
    assert (outcome.kind, outcome.reason) == (
        OutcomeKind.REFUSED,
        "the target does not have the messages before it yet",
    )


@with_replication
async def test_offsets_are_copied_unchanged_and_never_ahead(sides, writer):
    sides.send(b"0", b"1", b"2")
    assert await write_fates(writer, commit_exchange(2)) == [OutcomeKind.MIRRORED]
    assert await offset_of(sides) == 2
    assert await write_fates(writer, commit_exchange(9)) == [OutcomeKind.MIRRORED]
    assert await offset_of(sides) == 3


@with_replication
async def test_offsets_of_a_group_active_at_the_target_are_skipped(sides, writer):
    sides.send(b"0", b"1")
    subscription = SubscriptionData(topic="t", sub_string="*", sub_version=1)
    consumer = ConsumerData(
        group_name="g", consume_type="CONSUME_PASSIVELY", message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET", subscription_data_set=[subscription],
    )  # fmt: skip
    await sides.target.ask_broker(
        BROKER, HeartBeat(data=HeartbeatData(client_id="c", consumer_data_set=[consumer]))
    )
    assert await write_fates(writer, commit_exchange(1)) == [OutcomeKind.SKIPPED]
    assert await offset_of(sides) is None


@with_replication
async def test_offsets_behind_the_primary_are_moved_forward_only(sides, writer):
    sides.send(b"0", b"1", b"2")
    await sides.wait_until_equal()
    ours, theirs = sides.broker_of(sides.primary).offsets, sides.broker_of(sides.target).offsets
    ours.commit_offset("g", "t", 0, 2)
    ours.commit_offset("CID_RMQ_SYS_x", "t", 0, 2)
    await sides.replication.offset_sync.sync_offsets()
    assert await offset_of(sides) == 2
    theirs.commit_offset("g", "t", 0, 3)
    ours.commit_offset("g", "t", 0, 1)
    await sides.replication.offset_sync.sync_offsets()
    assert await offset_of(sides) == 3
    assert sides.replication.offset_sync.moved_total == 1


@with_replication
async def test_other_requests_are_sent_again(sides, writer):
    ext = {"topic": "t", "defaultTopic": "TBW102", "readQueueNums": "7", "writeQueueNums": "7", "perm": "6",
           "topicFilterType": "SINGLE_TAG", "order": "false"}  # fmt: skip
    update = make_exchange(17, encode_command(Command(17, ext=ext)), encode_command(Command(0)))
    assert await write_fates(writer, update) == [OutcomeKind.MIRRORED]
    assert sides.broker_of(sides.target).topics.get("t").read_queue_nums == 7


@with_replication
async def test_marks_are_cleared_when_the_queue_is_complete_again(sides, writer):
    sides.send(b"0")
    await sides.wait_until_equal()
    feed = sides.feeds.feeds[BROKER, "t", 0]
    sides.diverged.mark_diverged(BROKER, "t", 0, feed.complete_ms, "the queue is full")
    assert clear_healed_marks(sides.diverged, sides.feeds) == 0
    feed.complete_ms += 1001
    assert clear_healed_marks(sides.diverged, sides.feeds) == 1
    assert len(sides.diverged) == 0


@with_replication
async def test_mode_target_primary_stops_the_feeds(sides, writer):
    sides.rules.set_mode("t", "target-primary")
    await trio.sleep(1.1)
    await settle()
    assert sides.feeds.feeds == {}
    assert sides.replication.status() == []
    assert {metric.name for metric in sides.replication.collect_metrics()} >= {"replication_behind_messages"}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("orders", True),
        ("other", False),
        ("%RETRY%shop_a", True),
        ("%RETRY%else", False),
        ("%DLQ%shop_b", True),
    ],
)
def test_rules_select_queues(name, wanted):
    rules = MirrorRules(
        [MirrorRule(topics=["orders"], groups=["shop_*"]), MirrorRule(topics=["sampled"], sample=0.5)]
    )
    assert queue_selector(rules)(BROKER, name, 0) is wanted
    sampled = {queue_selector(rules)(BROKER, "sampled", queue) for queue in range(20)}
    assert sampled == {True, False}


def test_modes_decide_whose_answers_are_held():
    rules = MirrorRules([MirrorRule(topics=["a"], mode="strict-dual"), MirrorRule()])
    assert [answer_hold_predicate(rules)(name) for name in ("a", "b")] == [True, False]
    rules.set_mode("b", "sync-best-effort")
    assert answer_hold_predicate(rules)("b")
