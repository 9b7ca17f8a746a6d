import trio

from gateway.broker.processors.live_config import apply_broker_config
from gateway.broker.waiting.waiting_requests import MAX_WAITING_HEADER_CHARS
from gateway.tests.cluster import bodies, message, pull, settle, simulated
from gateway.tests.configs import change_config
from remoting.bodies.topics import TopicConfig
from remoting.errors import RemotingClosed, RequestError
from remoting.limits import ConnectionLimits
from remoting.requests.offsets import InvokeBrokerToResetOffset, QueryConsumerOffset
from storage.append import NewMessage
from storage.store import MessageStore

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
        store.append(NewMessage("orders", 0, b"x", b"TAGS\x01a\x02"))
    store.append(NewMessage("orders", 0, b"wanted", b"TAGS\x01b\x02"))
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


# -- bounds -----------------------------------------------------------------------------------------------


@simulated
async def test_a_pull_above_the_limit_is_answered_at_once_as_if_nothing_was_found(cluster):
    node, producer, waiter = await started(cluster, max_long_polls=2)
    await producer.ask(message())
    for number in range(3):
        await waiter.wait(offset=1, group=f"G{number}", name=number)
    assert [(name, at, code) for name, at, code, _ in waiter.brief()] == [(2, 0, NOT_FOUND)]
    apply_broker_config(node.broker, change_config(node.broker.config, max_long_polls=3))
    await waiter.wait(offset=1, name="after")
    assert len(waiter.ended) == 1
    await producer.ask(message(body=b"1"))
    await settle()
    assert sorted(at for _, at, _, found in waiter.brief() if found == [b"1"]) == [0, 0, 0]


def held_commands(node):
    return [pull.command for pulls in node.broker.long_polls._by_connection.values() for pull in pulls]


@simulated
async def test_a_waiting_pull_keeps_neither_its_body_nor_a_large_header(cluster):
    node, producer, waiter = await started(cluster)
    await producer.ask(message())
    command = pull(offset=1, wait_ms=5000, tags="a").to_command()
    command.body, command.remark = b"x" * 100_000, "y" * 1000
    waiter._connection.send_command(command, lambda _: None)
    await settle()
    (held,) = held_commands(node)
    assert (held.body, held.remark) == (b"", None)
    command = pull(offset=1, wait_ms=5000).to_command()
    command.ext["unknown"] = "z" * (MAX_WAITING_HEADER_CHARS + 1)
    assert (await waiter._connection.ask_command(command, 1)).code == NOT_FOUND
    assert len(node.broker.long_polls) == 1


@simulated
async def test_waiting_pulls_share_the_filter_of_their_expression_until_they_end(cluster):
    node, producer, waiter = await started(cluster, enable_property_filter=True)
    cache = node.broker.filter_cache
    await producer.ask(message(tags="a"))
    expression = "a IN (" + ", ".join(f"'{number}'" for number in range(1000)) + ")"
    for number in range(3):
        await waiter.wait(
            offset=1, tags=expression, expression_type="SQL92", group=f"G{number}", wait_ms=1000 + number
        )
    assert len({id(command.ext["subscription"]) for command in held_commands(node)}) == 1
    assert len(cache._idle) == 0
    await trio.sleep(2)
    assert (len(node.broker.long_polls), len(cache), len(cache._idle)) == (0, 1, 1)


@simulated
async def test_without_room_for_its_filter_a_pull_does_not_wait(cluster):
    node, producer, waiter = await started(
        cluster, enable_property_filter=True, max_filter_cache_bytes=1024 * 1024
    )
    await producer.ask(message())
    for number in range(40):
        await waiter.wait(
            offset=1, tags=f"a = {number}", expression_type="SQL92", group=f"G{number}", name=number
        )
    answered = [name for name, at, code, _ in waiter.brief() if (at, code) == (0, NOT_FOUND)]
    assert 5 < len(node.broker.long_polls) < 40
    assert len(node.broker.long_polls) + len(answered) == 40
    assert node.broker.filter_cache.size_bytes <= 1024 * 1024
    waiter._connection.close()
    await settle()
    assert len(node.broker.filter_cache._idle) == len(node.broker.filter_cache)


@simulated
async def test_messages_for_others_are_not_looked_at_by_those_that_wait_for_another_tag(cluster, monkeypatch):
    node, producer, waiter = await started(cluster)
    await producer.ask(message(tags="a"))
    for number in range(50):
        await waiter.wait(offset=1, tags="b || c", group=f"G{number}", name=number)
    reads, store_read = [], MessageStore.read

    def counted(store, topic, queue_id, offset, *more):
        reads.append(offset)
        return store_read(store, topic, queue_id, offset, *more)

    monkeypatch.setattr(MessageStore, "read", counted)
    for _ in range(100):
        await producer.ask(message(tags="a"))
    await settle()
    assert reads == []
    await producer.ask(message(body=b"wanted", tags="c"))
    await settle()
    assert len(waiter.ended) == 50
    assert reads == [101] * 50, "each read begins where a message may match"
    assert {reply.next_begin_offset for _, _, reply in waiter.ended} == {102}


@simulated
async def test_a_store_that_became_shorter_moves_those_that_wait(cluster):
    node, producer, waiter = await started(cluster)
    for _ in range(5):
        await producer.ask(message())
    await waiter.wait(offset=5, tags="a")
    node.broker.store.delete_topic("orders")
    await producer.ask(message(tags="b"))
    await settle()
    ((_, _, reply),) = waiter.ended
    assert (reply.code, reply.next_begin_offset) == (MOVED, 0), "the message of the new queue is not skipped"
