import contextlib

import trio

from gateway.broker.pop.pop_handler import PopHandler
from gateway.broker.waiting.long_poll import LongPolls
from gateway.broker.waiting.waiting_requests import MAX_WAITING_HEADER_CHARS
from gateway.tests.cluster import settle, simulated
from gateway.tests.popping import REVIVE, Client, bodies, notification, now, pop_request
from remoting.errors import RemotingClosed
from remoting.requests.pop import PollingInfo
from storage.append import NewMessage


class Waiter:
    """An outstanding request, and its answer once it arrived."""

    def __init__(self, cluster, client, request):
        self.answer = None
        self.at = None
        cluster.nursery.start_soon(self._ask, cluster, client, request)

    async def _ask(self, cluster, client, request):
        with contextlib.suppress(RemotingClosed):  # one that still waits when the test is over
            self.answer = await client.connection.ask(request, timeout_s=200)
            self.at = now(cluster)


async def several(cluster, node, request, count=3):
    """Return waiters that started one after the other."""
    waiters = []
    for _ in range(count):
        waiters.append(Waiter(cluster, Client(cluster, node), request))
        await settle()
    return waiters


async def waiting(client, queue_id=-1):
    request = PollingInfo(consumer_group="GID", topic="orders", queue_id=queue_id)
    return (await client.connection.ask(request)).polling_num


async def begun(cluster, **settings):
    """Return a broker with the topic orders of four empty queues, and a client."""
    node = await cluster.add_broker(**settings)
    node.broker.topics.create_for_send("orders", "TBW102", 4)
    return node, Client(cluster, node)


@simulated
async def test_a_message_wakes_one_pop_at_once_and_the_first_that_came(cluster):
    node, client = await begun(cluster)
    waiters = await several(cluster, node, pop_request(poll_time=60_000))
    assert await waiting(client) == 3
    for number in range(3):
        await trio.sleep(0.5)
        await client.send(b"x", queue_id=number)
        await settle()
        assert [waiter.at for waiter in waiters] == [500, 1000, 1500][: number + 1] + [None] * (2 - number)
    assert await waiting(client) == 0


@simulated
async def test_messages_of_one_batch_of_requests_wake_as_many(cluster):
    node, client = await begun(cluster)
    waiters = await several(cluster, node, pop_request(poll_time=60_000, max_msg_nums=1))
    node.broker.writer.write(_message(b"a"))
    node.broker.writer.write(_message(b"b"))
    node.broker.long_polls.answer_marked()
    await settle()
    assert [waiter.at is None for waiter in waiters] == [False, False, True]


def _message(body, queue_id=0):
    return NewMessage("orders", queue_id, body, {})


@simulated
async def test_pops_of_a_queue_and_of_all(cluster):
    node, client = await begun(cluster)
    one = Waiter(cluster, Client(cluster, node), pop_request(poll_time=60_000, queue_id=2))
    every = Waiter(cluster, Client(cluster, node), pop_request(poll_time=60_000))
    await settle()
    assert (await waiting(client, 2), await waiting(client)) == (1, 1)
    await client.send(b"first", queue_id=1)
    await settle()
    assert (one.answer, every.answer.msg_offset_info) == (None, "0 1 0")
    await client.send(b"second", queue_id=2)
    await settle()
    assert one.answer.msg_offset_info == "0 2 0"


@simulated
async def test_groups_are_woken_each(cluster):
    node, client = await begun(cluster)
    waiters = [
        Waiter(cluster, Client(cluster, node), pop_request(group=group, poll_time=60_000)) for group in "ab"
    ]
    await settle()
    await client.send(b"x")
    await settle()
    assert all(waiter.answer.body for waiter in waiters)


@simulated
async def test_a_pop_in_vain_ends_when_it_says_and_leaves_nothing(cluster):
    node, client = await begun(cluster)
    waiter = Waiter(cluster, Client(cluster, node), pop_request(poll_time=5_000))
    await trio.sleep(6)
    assert (waiter.answer.code, waiter.at) == (210, 4960)
    assert len(node.broker.long_polls) == 0
    assert node.broker.pop.state.waiting_pops._groups == {}
    assert list(node.broker.long_polls._watchers) == [REVIVE]


@simulated
async def test_a_filter_that_lets_nothing_pass_waits_on_and_passes_over(cluster):
    node, client = await begun(cluster)
    waiter = Waiter(cluster, Client(cluster, node), pop_request(poll_time=60_000, exp="B", exp_type="TAG"))
    await settle()
    for _ in range(3):
        await client.send(b"a", tags="A")
    await settle()
    assert (waiter.answer, node.broker.offsets.query_offset("GID", "orders", 0)) == (None, 3)
    await client.send(b"b", tags="B")
    await settle()
    assert waiter.answer.start_offset_info == "0 0 3"


@simulated
async def test_a_backlog_that_is_filtered_out_is_passed_over_before_waiting(cluster):
    node, client = await begun(cluster)
    await client.send(*(b"%d" % number for number in range(100)), tags="A")
    waiter = Waiter(cluster, Client(cluster, node), pop_request(poll_time=60_000, exp="B"))
    await client.send(b"b", tags="B")
    await settle()
    assert (waiter.at, waiter.answer.code) == (0, 0)


@simulated
async def test_closed_connections_do_not_take_messages(cluster):
    node, client = await begun(cluster)
    gone, other = Client(cluster, node), Client(cluster, node)
    waiters = [Waiter(cluster, gone, pop_request(poll_time=60_000))]
    await settle()
    waiters.append(Waiter(cluster, other, pop_request(poll_time=60_000)))
    await settle()
    gone.connection.close("gone")
    await settle()
    assert await waiting(client) == 1
    await client.send(b"x")
    await settle()
    assert [waiter.at for waiter in waiters] == [None, 0]


@simulated
async def test_too_many_that_wait(cluster):
    node, client = await begun(cluster, pop_polling_size=1)
    await several(cluster, node, pop_request(poll_time=60_000), 2)
    assert (await client.reply(poll_time=60_000)).code == 209
    assert (await client.reply(poll_time=3_000, group="other")).code == 210
    node, client = await begun(cluster, name="broker-b", max_pop_polling_size=0)
    assert (await client.reply(poll_time=60_000)).code == 209
    full = await client.connection.ask(notification(poll_time=60_000))
    assert (full.has_msg, full.polling_full) == (False, True)


@simulated
async def test_no_more_wait_than_all_requests_together_may(cluster):
    node, client = await begun(cluster, max_long_polls=1)
    (waiter,) = await several(cluster, node, pop_request(poll_time=60_000), 1)
    assert (await client.reply(poll_time=60_000, group="other")).code == 209
    full = await client.connection.ask(notification(poll_time=60_000))
    assert (full.has_msg, full.polling_full) == (False, True)
    await client.send(b"x")
    await settle()
    assert waiter.at == 0


@simulated
async def test_a_pop_or_notification_with_a_large_header_does_not_wait(cluster):
    node, client = await begun(cluster)
    for request in (pop_request(poll_time=60_000), notification(poll_time=60_000)):
        command = request.to_command()
        command.ext["unknown"] = "x" * (MAX_WAITING_HEADER_CHARS + 1)
        answer = await client.connection.ask_command(command, 1)
        assert answer.code == 209 or answer.ext["pollingFull"] == "true"
    for request in (pop_request(poll_time=60_000, exp="a || b"), notification(poll_time=60_000)):
        command = request.to_command()
        command.body = b"y" * 100_000
        client.connection.send_command(command, lambda _: None)
    await settle()
    held = [request for many in node.broker.long_polls._by_connection.values() for request in many]
    commands = [request.pop.command if hasattr(request, "pop") else request._call.command for request in held]
    assert [(command.body, command.ext) for command in commands] == [(b"", {})] * 2


@simulated
async def test_waiting_pops_hold_their_filter(cluster):
    node, client = await begun(cluster, max_filter_cache_bytes=1024 * 1024)
    cache = node.broker.filter_cache
    waiters = [
        Waiter(
            cluster,
            Client(cluster, node),
            pop_request(poll_time=60_000, exp=f"a = {number}", exp_type="SQL92"),
        )
        for number in range(40)
    ]
    await settle()
    refused = [waiter for waiter in waiters if waiter.answer is not None]
    assert {waiter.answer.code for waiter in refused} == {209}
    assert len(node.broker.long_polls) + len(refused) == 40
    assert (len(cache), len(cache._idle)) == (len(node.broker.long_polls), 0)
    await trio.sleep(61)
    assert (len(node.broker.long_polls), len(cache._idle)) == (0, len(cache))


@simulated
async def test_a_filtered_backlog_is_passed_over_in_steps(cluster, monkeypatch):
    node, client = await begun(cluster)
    store = node.broker.store
    for _ in range(10_000):
        store.append(NewMessage("orders", 0, b"x", b"TAGS\x01A\x02"))
    takes, take = [], PopHandler._take_messages

    def counted(handler, pop):
        takes.append(node.broker.offsets.query_offset("GID", "orders", 0))
        return take(handler, pop)

    monkeypatch.setattr(PopHandler, "_take_messages", counted)
    steps, run_step = [], LongPolls._run_step

    def counted_step(job):
        before = len(takes)
        is_left = run_step(job)
        steps.append(len(takes) - before)
        return is_left

    monkeypatch.setattr(LongPolls, "_run_step", staticmethod(counted_step))
    waiter = Waiter(cluster, Client(cluster, node), pop_request(poll_time=60_000, exp="B"))
    await settle()
    assert node.broker.offsets.query_offset("GID", "orders", 0) == 10_000
    assert max(steps) == 1
    assert len(takes) > 10
    await client.send(b"b", tags="B")
    await settle()
    assert waiter.answer.start_offset_info == "0 0 10000"


@simulated
async def test_notifications_are_as_many_as_messages_the_last_first(cluster):
    node, client = await begun(cluster)
    waiters = await several(cluster, node, notification(poll_time=60_000))
    await client.send(b"x", queue_id=3)
    await settle()
    assert [waiter.answer and waiter.answer.has_msg for waiter in waiters] == [None, None, True]
    await client.pop(invisible_time=600_000)
    await trio.sleep(61)
    assert [waiter.answer.has_msg for waiter in waiters] == [False, False, True]


@simulated
async def test_a_notification_of_messages_that_come_again(cluster):
    node, client = await begun(cluster)
    await client.send(b"x")
    await client.pop(invisible_time=3_000)
    waiter = Waiter(cluster, Client(cluster, node), notification(poll_time=60_000))
    await trio.sleep(5)
    assert (waiter.answer.has_msg, waiter.at) == (True, 3_000)


@simulated
async def test_pops_in_order_are_woken_by_acks_times_and_changes(cluster):
    node, client = await begun(cluster)
    await client.send(*(b"%d" % number for number in range(8)))

    def wait():
        return Waiter(
            cluster,
            Client(cluster, node),
            pop_request(poll_time=60_000, order=True, max_msg_nums=2, invisible_time=9_000),
        )

    out = await client.pop(order=True, max_msg_nums=2)
    waiters = [wait(), wait()]
    await trio.sleep(1)
    await client.ack(*out)
    await settle()
    first, second = sorted(waiters, key=lambda waiter: waiter.at is None)  # either may have come first
    assert (first.at, second.at) == (1_000, None)
    await trio.sleep(20)
    assert second.at == 10_000  # what the first has got is visible again
    assert second.answer.order_count_info.split(";")[-1] == "0 0 1"


@simulated
async def test_a_change_to_no_time_at_all_gives_messages_back_at_once(cluster):
    node, client = await begun(cluster)
    await client.send(b"a")
    (out,) = await client.pop(order=True, invisible_time=60_000)
    waiter = Waiter(cluster, Client(cluster, node), pop_request(poll_time=60_000, order=True))
    await trio.sleep(2)
    await client.change(out, 0)
    await settle()
    assert waiter.at == 2_000


@simulated
async def test_an_attempt_waits_behind_another_and_is_not_kept_back_by_it(cluster):
    node, client = await begun(cluster)
    await client.send(b"a", b"b")
    await client.pop(order=True, attempt_id="first", max_msg_nums=1)
    other = Waiter(
        cluster, Client(cluster, node), pop_request(poll_time=60_000, order=True, attempt_id="second")
    )
    await settle()
    assert bodies(await client.pop(order=True, attempt_id="first", max_msg_nums=1)) == [b"a"]
    assert other.answer is None


@simulated
async def test_no_pop_and_no_notification_waits_longer_than_the_broker_allows(cluster):
    node, _ = await begun(cluster, max_suspend_ms=2_000)
    longest = 2**63 - 1
    for times in (
        {"poll_time": 60_000},
        {"poll_time": longest},
        {"poll_time": longest, "born_time": longest},
    ):
        started = now(cluster)
        pop = Waiter(cluster, Client(cluster, node), pop_request(**times))
        told = Waiter(cluster, Client(cluster, node), notification(**times))
        await trio.sleep(2.1)
        assert (pop.at, told.at) == (started + 2_000, started + 2_000)
        assert (pop.answer.code, told.answer.has_msg) == (210, False)
