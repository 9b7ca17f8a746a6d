import pytest
import trio

from gateway.broker.long_poll import LongPolls, WaitingPull
from gateway.tests.cluster import SimClock, bodies, message, pull, settle, simulated
from remoting.bodies.topics import TopicConfig
from remoting.errors import RemotingClosed, RequestError
from remoting.limits import ConnectionLimits
from remoting.requests.offsets import InvokeBrokerToResetOffset, QueryConsumerOffset

NOT_FOUND, RETRY, MOVED = 19, 20, 21


class Waiter:
    """Outstanding long polls, and their answers with arrival times."""

    def __init__(self, cluster, connection):
        self._cluster = cluster
        self._connection = connection
        self.start = cluster.clock.now_ms()
        self.ended = []

    async def wait(self, *args, name=None, **more):
        self._cluster.nursery.start_soon(self._wait, name, pull(*args, **{"wait_ms": 15_000, **more}))
        await settle()

    async def _wait(self, name, request):
        try:
            reply = await self._connection.ask(request, timeout_s=60)
        except (RequestError, RemotingClosed) as error:
            reply = error
        self.ended.append((name, self._cluster.clock.now_ms() - self.start, reply))

    def brief(self):
        return [(name, at, reply.code, bodies(reply)) for name, at, reply in self.ended]


async def started(cluster, **settings):
    node = await cluster.add_broker(**settings)
    producer = cluster.dial(node.address)
    return node, producer, Waiter(cluster, cluster.dial(node.address))


@simulated
async def test_an_append_of_another_connection_answers_at_once(cluster):
    node, producer, waiter = await started(cluster)
    await producer.ask(message(body=b"0"))
    await waiter.wait(offset=1)
    await trio.sleep(3)
    await producer.ask(message(body=b"1"))
    await settle()
    assert waiter.brief() == [(None, 3000, 0, [b"1"])]
    assert len(node.broker.long_polls) == 0


@simulated
async def test_a_pull_of_a_queue_nobody_wrote_to_gets_its_first_message(cluster):
    node, producer, waiter = await started(cluster)
    await producer.ask(message(queue_id=1))
    await waiter.wait(offset=0, queue_id=3)
    await producer.ask(message(body=b"first", queue_id=3))
    await settle()
    assert waiter.brief() == [(None, 0, 0, [b"first"])]
    assert waiter.ended[0][2].next_begin_offset == 1


@simulated
async def test_other_queues_do_not_wake(cluster):
    node, producer, waiter = await started(cluster)
    await producer.ask(message())
    await waiter.wait(offset=1)
    await producer.ask(message(queue_id=1))
    await producer.ask(message("other"))
    await settle()
    assert not waiter.ended


@simulated
async def test_all_pulls_of_a_queue_are_answered_by_one_append(cluster):
    node, producer, waiter = await started(cluster)
    await producer.ask(message())
    for number in range(60):
        await waiter.wait(offset=1, group=f"G{number}", name=number)
    assert len(node.broker.long_polls) == 60
    await producer.ask(message(body=b"all"))
    await settle()
    assert sorted(waiter.brief()) == [(number, 0, 0, [b"all"]) for number in range(60)]
    assert not node.broker.long_polls._by_connection
    assert not node.broker.long_polls._by_tick


@simulated
async def test_filtered_messages_neither_wake_nor_lose_the_position(cluster):
    node, producer, waiter = await started(cluster)
    await producer.ask(message(tags="a"))
    await waiter.wait(offset=1, tags="b || c")
    for tags in ("a", None, "d"):
        await producer.ask(message(tags=tags))
        await trio.sleep(1)
    assert not waiter.ended
    await producer.ask(message(body=b"wanted", tags="c"))
    await settle()
    assert waiter.brief() == [(None, 3000, 0, [b"wanted"])]
    assert waiter.ended[0][2].next_begin_offset == 5


@simulated
async def test_a_match_behind_more_refused_messages_than_one_read_looks_at_is_found_at_once(cluster):
    node, producer, waiter = await started(cluster)
    await producer.ask(message(tags="a"))
    await waiter.wait(offset=1, tags="b")
    store = node.broker.store
    for _ in range(2500):
        store.append("orders", 0, b"x", b"TAGS\x01a\x02")
    store.append("orders", 0, b"wanted", b"TAGS\x01b\x02")
    node.broker.long_polls.mark_grown("orders", 0)
    node.broker.long_polls.answer_marked()
    await settle()
    assert waiter.brief() == [(None, 0, 0, [b"wanted"])]


@simulated
async def test_the_deadline_answers_not_found_or_the_moved_position(cluster):
    node, producer, waiter = await started(cluster)
    await producer.ask(message(tags="a"))
    await waiter.wait(offset=1, wait_ms=5000, name="quiet", queue_id=0)
    await waiter.wait(offset=0, wait_ms=7000, name="empty", queue_id=1)
    await waiter.wait(offset=1, wait_ms=3000, tags="b", name="filtered")
    await waiter.wait(offset=1, wait_ms=9000, tags="b", name="late")
    await trio.sleep(6)
    await producer.ask(message(tags="a"))
    await trio.sleep(10)
    assert waiter.brief() == [
        ("filtered", 3000, NOT_FOUND, []),
        ("quiet", 5000, NOT_FOUND, []),
        ("empty", 7000, NOT_FOUND, []),
        ("late", 9000, RETRY, []),
    ]
    replies = {name: reply for name, _, reply in waiter.ended}
    assert replies["quiet"].next_begin_offset == 1
    assert (replies["late"].next_begin_offset, replies["late"].max_offset) == (2, 2)
    assert replies["late"].remark == "NO_MATCHED_MESSAGE"


@simulated
async def test_a_shorter_deadline_that_comes_later_is_kept(cluster):
    node, producer, waiter = await started(cluster)
    await producer.ask(message())
    await waiter.wait(offset=1, wait_ms=10_000, name="long")
    await trio.sleep(1)
    await waiter.wait(offset=1, wait_ms=100, name="short")
    await trio.sleep(20)
    assert [(name, at) for name, at, _ in waiter.ended] == [("short", 1100), ("long", 10_000)]


@simulated
async def test_without_long_polling_a_pull_waits_the_short_time(cluster):
    node, producer, waiter = await started(cluster, long_polling_enable=False, short_polling_time_ms=400)
    await producer.ask(message())
    await waiter.wait(offset=1)
    await trio.sleep(1)
    assert waiter.brief() == [(None, 400, NOT_FOUND, [])]


@simulated
async def test_pulls_of_a_closed_connection_are_forgotten(cluster):
    node, producer, waiter = await started(cluster)
    await producer.ask(message())
    other = Waiter(cluster, cluster.dial(node.address))
    for number in range(3):
        await waiter.wait(offset=1, group=f"A{number}")
        await other.wait(offset=1, group=f"B{number}", name=number)
    waiter._connection.close()
    await settle()
    assert len(node.broker.long_polls) == 3
    await producer.ask(message(body=b"1"))
    await settle()
    assert sorted(other.brief()) == [(number, 0, 0, [b"1"]) for number in range(3)]
    assert [str(error) for _, _, error in waiter.ended if not isinstance(error, RemotingClosed)] == []


@simulated
async def test_waiting_pulls_count_as_requests_under_way(cluster):
    node, producer, waiter = await started(cluster, limits=ConnectionLimits(max_outstanding_requests=2))
    await producer.ask(message())
    for number in range(3):
        await waiter.wait(offset=1, group=f"G{number}", name=number)
    ((name, _, error),) = waiter.ended
    assert (name, error.code, error.remark) == (2, 2, "[OVERLOAD]system busy, start flow control for a while")
    await producer.ask(message())
    await settle()
    await waiter.wait(offset=2, name="again")
    assert len(waiter.ended) == 3


@simulated
async def test_a_oneway_pull_is_never_answered(cluster):
    node, producer, waiter = await started(cluster)
    await producer.ask(message())
    waiter._connection.send_oneway(pull(offset=1, wait_ms=1000))
    await settle()
    assert len(node.broker.long_polls) == 1
    await producer.ask(message())
    await trio.sleep(2)
    assert len(node.broker.long_polls) == 0
    assert not waiter._connection.closed


@simulated
async def test_a_reset_of_the_groups_offset_moves_a_waiting_pull_at_once(cluster):
    node, producer, waiter = await started(cluster)
    for _ in range(5):
        await producer.ask(message())
    await waiter.wait(offset=5)
    await trio.sleep(2)
    await producer.ask(
        InvokeBrokerToResetOffset(
            topic="orders", group="GID", timestamp=0, is_force=True, queue_id=0, offset=2
        )
    )
    await settle()
    ((_, at, reply),) = waiter.ended
    assert (at, reply.code, reply.next_begin_offset, reply.remark) == (2000, MOVED, 2, "OFFSET_RESET")
    committed = QueryConsumerOffset(consumer_group="GID", topic="orders", queue_id=0)
    assert (await producer.ask(committed)).offset == 2
    await waiter.wait(offset=2, name="again")
    assert waiter.brief()[1][3] == [b"hello"] * 3


@simulated
async def test_what_is_forbidden_meanwhile_is_told_at_the_deadline(cluster):
    node, producer, waiter = await started(cluster)
    await producer.ask(message())
    await waiter.wait(offset=1, wait_ms=1000)
    node.broker.topics.table["orders"] = TopicConfig(topic_name="orders", perm=2)
    await trio.sleep(2)
    ((_, at, error),) = waiter.ended
    assert (at, error.code) == (1000, 16)


@simulated
async def test_damage_found_when_waking_is_that_pulls_answer_and_the_broker_goes_on(cluster, caplog):
    node, producer, waiter = await started(cluster)
    await producer.ask(message())
    await waiter.wait(offset=1)
    store = node.broker.store
    read, store_read = store.read, type(store).read
    try:
        type(store).read = lambda self, *args, **more: 1 / 0
        await producer.ask(message())
    finally:
        type(store).read = store_read
    await settle()
    ((_, _, error),) = waiter.ended
    assert (error.code, error.remark) == (1, "ZeroDivisionError: division by zero")
    assert read("orders", 0, 0, 5).count == 2
    assert (await producer.ask(message())).queue_offset == 2


class Held:
    """A connection that counts outstanding requests."""

    closed = False

    def __init__(self):
        self.outstanding_requests = 0

    def begin_request(self):
        self.outstanding_requests += 1

    def end_request(self):
        self.outstanding_requests -= 1


def waiting(connection, queue=("t", 0), answers=True, log=None):
    log = [] if log is None else log
    return WaitingPull(connection, queue, lambda: answers, lambda: log.append(queue))


def test_removing_twice_and_unknown_pulls_does_nothing():
    polls = LongPolls(SimClock())
    connection = Held()
    first, second = waiting(connection), waiting(connection, answers=False)
    polls.hold(first, 1000)
    polls.hold(second, 1000)
    polls.remove(first)
    polls.remove(first)
    polls.remove(waiting(connection))
    assert (len(polls), connection.outstanding_requests) == (1, 1)
    polls.mark_grown("t", 0)
    polls.answer_marked()
    assert len(polls) == 1, "a pull that cannot be answered waits on"
    polls.drop_connection(connection)
    polls.drop_connection(connection)
    assert (len(polls), connection.outstanding_requests) == (0, 0)


def test_expiry_is_in_the_order_of_deadlines_and_never_early():
    clock = SimClock()
    polls, log = LongPolls(clock), []
    for seconds in (5, 1, 3):
        polls.hold(waiting(Held(), ("t", seconds), log=log), seconds * 1000)
    clock.trio.jump(0.999)
    polls.expire_due()
    assert not log
    clock.trio.jump(4.1)
    polls.expire_due()
    assert [queue_id for _, queue_id in log] == [1, 3, 5]


def test_a_pull_of_a_connection_closed_meanwhile_is_dropped():
    polls = LongPolls(SimClock())
    connection = Held()
    polls.hold(waiting(connection, answers=False), 1000)
    connection.closed = True
    polls.mark_grown("t", 0)
    polls.answer_marked()
    assert len(polls) == 0


@pytest.mark.parametrize("timeout_ms", [0, -5, 1])
def test_absurd_timeouts_expire_soon(timeout_ms):
    clock = SimClock()
    polls, log = LongPolls(clock), []
    polls.hold(waiting(Held(), log=log), timeout_ms)
    clock.trio.jump(0.02)
    polls.expire_due()
    assert log


def test_a_watcher_hears_of_a_queue_until_it_wants_no_more():
    polls, heard = LongPolls(SimClock()), []

    def watcher():
        heard.append(len(heard))
        return len(heard) < 3

    polls.watch_queue(("orders", 1), watcher)
    for _ in range(5):
        polls.mark_grown("orders", 1)
        polls.mark_grown("orders", 2)
        polls.answer_marked()
    assert heard == [0, 1, 2]
    assert polls._by_queue == polls._watchers == {}


@simulated
async def test_a_watched_queue_stays_watched_when_pulls_of_it_end(cluster):
    node, producer, waiter = await started(cluster)
    await producer.ask(message())
    polls, heard = node.broker.long_polls, []

    def stay():
        heard.append(1)
        return True

    polls.watch_queue(("orders", 0), stay)
    await waiter.wait(offset=1)
    assert (len(polls), polls.count_waiting(("orders", 0))) == (1, 1)
    for _ in range(2):
        await producer.ask(message())
    await settle()
    assert (len(heard), len(polls), polls.waiting_for(("orders", 0))) == (2, 0, [])
