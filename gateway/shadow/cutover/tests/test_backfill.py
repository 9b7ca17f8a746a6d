import pytest
import trio

from gateway.shadow.cutover.backfill import Backfill, BackfillError
from gateway.shadow.tests.replicated_clusters import BROKER, ReplicatedClusters, topic
from gateway.shadow.tests.two_clusters import two_clusters
from storage.append import NewMessage


def with_history(test):
    """Run ``test(sides)`` with 200 messages in queue 0 and 50 in queue 1 of the primary's topic."""

    async def run(primary, target):
        sides = ReplicatedClusters(primary, target)
        await sides.restart_target()
        sides.broker_of(primary).topics.update([topic("t")])
        sides.send(*(b"%d" % number for number in range(200)))
        sides.send(*(b"%d" % number for number in range(50)), queue_id=1)
        await test(sides)

    run.__name__ = test.__name__
    return two_clusters(run)


def make_backfill(sides, **more):
    return Backfill(sides.primary, sides.target, lambda broker: broker, **{"rate": 0.0, **more})


@with_history
async def test_history_is_copied_under_its_offsets(sides):
    filling = make_backfill(sides)
    await filling.find_queues({"t"})
    assert (filling.copied_messages, filling.total_messages, filling.eta_s()) == (0, 250, None)
    await filling.run()
    assert sides.queues_equal()
    assert (filling.copied_messages, list(filling.describe_problems())) == (250, [])
    assert filling.eta_s() == 0


@with_history
async def test_rate_limits_all_queues_together(sides):
    filling = make_backfill(sides, rate=50.0)
    await filling.find_queues({"t"})
    started_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(filling.run)
        await trio.sleep(2.5)
        assert 60 <= filling.copied_messages <= 190
        assert 1 < filling.eta_s() < 6
    assert 4.5 < trio.current_time() - started_s < 7
    assert sides.queues_equal()


@with_history
async def test_interrupted_backfill_continues_where_it_stopped(sides):
    first = make_backfill(sides, rate=50.0)
    await first.find_queues({"t"})
    with trio.move_on_after(2):
        await first.run()
    again = make_backfill(sides)
    await again.find_queues({"t"})
    assert 0 < again.copied_messages < 250
    assert again.copied_messages == sum(
        len(sides.stored_messages(sides.target, queue_id=queue)) for queue in range(2)
    )
    await again.run()
    assert sides.queues_equal()


@with_history
async def test_target_crash_is_survived(sides):
    filling = make_backfill(sides, rate=100.0)
    await filling.find_queues({"t"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(filling.run)
        await trio.sleep(1)
        await sides.crash_target()
        await trio.sleep(1)
        await sides.restart_target()
    assert list(filling.describe_problems()) == []
    assert sides.queues_equal()


@with_history
async def test_lost_target_is_given_up_with_a_problem(sides):
    filling = make_backfill(sides)
    await filling.find_queues({"t"})
    await sides.crash_target()
    await filling.run()
    assert len(list(filling.describe_problems())) == 2
    assert "queue 0 of broker-a: " in next(iter(filling.describe_problems()))


@with_history
async def test_pause_and_resume(sides):
    filling = make_backfill(sides, rate=50.0)
    await filling.find_queues({"t"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(filling.run)
        await trio.sleep(1)
        filling.pause()
        await trio.sleep(3)
        done = filling.copied_messages
        await trio.sleep(20)
        assert filling.copied_messages == done < 250
        filling.resume()
    assert sides.queues_equal()


@with_history
async def test_impossible_backfills_are_refused(sides):
    with pytest.raises(BackfillError, match="offsets of its own"):
        make_backfill(sides, kind="any")
    with pytest.raises(LookupError, match="no topic nowhere"):
        await make_backfill(sides).find_queues({"t", "nowhere"})
    sides.broker_of(sides.primary).topics.update([topic("RMQ_SYS_TRACE_TOPIC")])
    with pytest.raises(BackfillError, match="system topic"):
        await make_backfill(sides).find_queues({"RMQ_SYS_TRACE_TOPIC"})


@with_history
async def test_queue_with_target_ahead_is_not_changed(sides):
    filling = make_backfill(sides)
    await filling.find_queues({"t"})
    await filling.run()
    sides.broker_of(sides.target).store.append(NewMessage("t", 1, b"own", b""))
    again = make_backfill(sides)
    await again.find_queues({"t"})
    await again.run()
    assert list(again.describe_problems()) == [
        "t queue 1 of broker-a: the target's queue is 1 messages ahead of the primary's"
    ]
    assert again.queues[0].queue_place.broker == BROKER
