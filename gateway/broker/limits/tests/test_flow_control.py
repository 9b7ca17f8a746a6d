"""Flow control and quotas as clients see them, on virtual time."""

import pytest
import trio

from codec.batch import encode_batch
from gateway.broker.limits.flow_control import max_wait_ms
from gateway.broker.processors.live_config import apply_broker_config
from gateway.tests.cluster import bodies, message, pull, simulated
from gateway.tests.configs import broker_config, change_config
from remoting.bodies.topics import TopicConfig
from remoting.errors import RequestError
from remoting.limits import ConnectionLimits
from remoting.local_connection import LocalConnection
from remoting.requests.admin import GetBrokerConfig
from remoting.requests.pull import PullMessage
from remoting.requests.send import SendBatchMessage, SendMessageV2

BUSY, RETRY = 2, 20
BATCH_FIELDS = (
    "producer_group", "topic", "default_topic", "default_topic_queue_nums", "queue_id", "sys_flag", "born_timestamp",
    "flag",
)  # fmt: skip


async def started(cluster, **settings):
    node = await cluster.add_broker(**settings)
    return node, cluster.dial(node.address)


async def refused(client, request):
    with pytest.raises(RequestError) as problem:
        await client.ask(request)
    return problem.value.code, problem.value.remark


def configure(broker, **settings):
    apply_broker_config(broker, change_config(broker.config, **settings))


def handlers(node):
    return dict(node.service.handlers)


# -- guards that are not there ----------------------------------------------------------------------------------


@simulated
async def test_no_request_passes_a_guard_unless_one_is_wanted(cluster):
    node, _ = await started(cluster)
    plain = handlers(node)
    configure(node.broker, send_quota_messages=5)
    changed = {code for code, handler in node.service.handlers.items() if handler is not plain[code]}
    assert changed == {10, 310, 320}
    configure(node.broker, send_quota_messages=0, pull_quota_bytes=5)
    changed = {code for code, handler in node.service.handlers.items() if handler is not plain[code]}
    assert changed == {11, 361, 200050}
    configure(node.broker, pull_quota_bytes=0)
    assert handlers(node) == plain


@simulated
async def test_a_plain_send_passes_only_the_guards_that_settings_and_topics_ask_for(cluster):
    node, _ = await started(cluster)
    flow, guards_of = node.broker.flow_control, node.service.guarded_handlers.guards_of
    assert guards_of(SendMessageV2.code) == []
    configure(node.broker, broker_fast_failure_enable=True, send_quota_messages=5)
    assert guards_of(SendMessageV2.code) == [flow.limit_waiting_time, flow.limit_send_rate]
    node.broker.topics.update([TopicConfig(topic_name="orders", attributes={"+quota.pull.bytes": "7"})])
    assert guards_of(PullMessage.code) == [flow.limit_waiting_time, flow.limit_pull_rate]


# -- time in the queue ------------------------------------------------------------------------------------------


@simulated
async def test_a_send_that_waited_too_long_is_refused_if_that_is_wanted(cluster):
    node, client = await started(cluster)
    waited_s = 0.25
    node.broker.flow_control.waited_s = lambda: waited_s
    await client.ask(message())
    configure(node.broker, broker_fast_failure_enable=True)
    remark = (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 250ms, "
        "size of queue: 0"
    )
    assert await refused(client, message()) == (BUSY, remark)
    assert bodies(await client.ask(pull())) == [b"hello"]
    await client.ask(GetBrokerConfig())
    configure(node.broker, wait_time_send_ms=251, wait_time_pull_ms=250, wait_time_admin_ms=250)
    await client.ask(message())
    assert (await refused(client, pull()))[0] == BUSY
    assert (await refused(client, GetBrokerConfig()))[0] == BUSY


@pytest.mark.parametrize(
    ("code", "limit_ms"),
    [(10, 1), (36, 1), (11, 2), (200050, 2), (361, 3), (34, 4), (37, 5), (200051, 6), (26, 7), (17, 7)],
)
def test_every_queue_has_its_own_limit(code, limit_ms):
    names = ("send", "pull", "lite_pull", "heartbeat", "transaction", "ack", "admin")
    config = broker_config(**{f"wait_time_{name}_ms": number for number, name in enumerate(names, 1)})
    assert max_wait_ms(config, code) == limit_ms


@simulated
async def test_a_local_call_of_a_timer_has_not_waited(cluster):
    node, _ = await started(cluster, broker_fast_failure_enable=True)
    node.broker.flow_control.waited_s = lambda: 60.0
    own, peer = ("10.1.0.1", 1), ("10.0.1.1", 10911)
    link = LocalConnection(node.service.handlers, own, peer, cluster.nursery, ConnectionLimits())
    await link.call(message(), None)
    released = await stall(node)
    await link.call(message(), None)
    await trio.sleep(1.6)
    with pytest.raises(RequestError, match="REJECTREQUEST"):
        await link.call(message(), None)
    released.set()
    await trio.sleep(0.01)


# -- the disk ---------------------------------------------------------------------------------------------------


async def stall(node):
    """Make every flush hang until the event it returns is set; a flush is running afterwards."""
    released = trio.Event()

    async def blocked(work):
        await released.wait()
        return work()

    node.broker.group_commit._run_blocking = blocked
    return released


@simulated
async def test_a_stalled_disk_refuses_sends_until_the_flush_ends(cluster):
    node, client = await started(cluster, broker_fast_failure_enable=True)
    released = await stall(node)
    await client.ask(message())
    await trio.sleep(1.4)
    await client.ask(message())
    await trio.sleep(0.2)
    assert await refused(client, message()) == (
        BUSY,
        "[REJECTREQUEST]system busy, start flow control for a while",
    )
    assert len(bodies(await client.ask(pull()))) == 2
    released.set()
    await trio.sleep(0.01)
    await client.ask(message())


@simulated
async def test_sends_that_wait_for_the_disk_are_bounded(cluster):
    node, client = await started(cluster, flush_disk_type="SYNC_FLUSH", send_queue_capacity=2)
    released = await stall(node)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(client.ask, message())
        await trio.sleep(0.1)
        assert await refused(client, message()) == (
            BUSY,
            "[OVERLOAD]system busy, start flow control for a while",
        )
        released.set()
    await client.ask(message())


# -- quotas -----------------------------------------------------------------------------------------------------


@simulated
async def test_sends_beyond_the_quota_are_refused_and_let_in_a_moment_later(cluster):
    _, client = await started(cluster, send_quota_messages=2)
    await client.ask(message())
    await client.ask(message())
    assert await refused(client, message()) == (
        BUSY,
        "[REJECTREQUEST]system busy, start flow control for a while, "
        "send quota of this broker: 2 messages per second",
    )
    await trio.sleep(0.5)
    await client.ask(message())


@simulated
async def test_the_quota_of_a_topic_leaves_its_neighbours_alone(cluster):
    node, client = await started(cluster)
    await client.ask(message())
    node.broker.topics.update([TopicConfig(topic_name="orders", attributes={"+quota.send.bytes": "10"})])
    await client.ask(message(body=b"x" * 10))
    code, remark = await refused(client, message())
    assert code == BUSY
    assert remark.endswith("send quota of topic[orders]: 10 bytes per second")
    await client.ask(message("other", b"x" * 100))


@simulated
async def test_every_message_of_a_batch_counts(cluster):
    _, client = await started(cluster, send_quota_messages=3)
    one = message()
    request = SendBatchMessage(
        **{field: getattr(one, field) for field in BATCH_FIELDS}, properties="", batch=True
    )
    request.body = encode_batch([(0, b"x", b"")] * 3)
    await client.ask(request)
    assert (await refused(client, message()))[0] == BUSY


@simulated
async def test_what_is_refused_for_another_reason_does_not_count(cluster):
    _, client = await started(cluster, send_quota_messages=1)
    assert (await refused(client, message(queue_id=99)))[0] != BUSY
    await client.ask(message())


async def filled(cluster, count=10, **settings):
    node, client = await started(cluster)
    for number in range(count):
        await client.ask(message(body=b"%d" % number))
    configure(node.broker, **settings)
    return node, client


@simulated
async def test_pulls_get_what_the_quota_leaves_and_then_wait(cluster):
    _, client = await filled(cluster, pull_quota_messages=4)
    assert len(bodies(await client.ask(pull()))) == 4
    before = trio.current_time()
    reply = await client.ask(pull(offset=4, wait_ms=15_000), timeout_s=20)
    assert bodies(reply) == [b"4"]
    assert 0.25 <= trio.current_time() - before <= 0.5


@simulated
async def test_a_pull_that_may_not_be_held_is_told_to_come_again(cluster):
    _, client = await filled(cluster, pull_quota_bytes=100)
    reply = await client.ask(pull())
    assert len(bodies(reply)) == 1
    before = trio.current_time()
    for _ in range(30):
        reply = await client.ask(pull(offset=1))
        if reply.code != RETRY:
            break
        assert (reply.next_begin_offset, reply.min_offset, reply.max_offset) == (1, 0, 10)
        assert "pull quota of this broker: 100 bytes per second" in reply.remark
    assert bodies(reply) == [b"1"]
    assert trio.current_time() - before >= 0.5


@simulated
async def test_a_live_consumer_gets_no_more_than_the_quota(cluster):
    node, client = await started(cluster, pull_quota_messages=5)
    await client.ask(message())
    got, offset = 0, 0
    with trio.move_on_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce, cluster.dial(node.address))
            while True:
                reply = await client.ask(pull(offset=offset, wait_ms=15_000), timeout_s=30)
                got, offset = got + len(bodies(reply)), reply.next_begin_offset
    assert 40 <= got <= 65


async def produce(client):
    while True:
        await client.ask(message())
        await trio.sleep(0.02)
