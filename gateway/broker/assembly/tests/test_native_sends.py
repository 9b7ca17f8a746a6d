"""Plain sends through the C extension, on a simulated cluster: when it takes them, and what limits it.

That it stores and answers what Python would is tested elsewhere, with many frames.
"""

import pytest
import trio

from codec.command import encode_command
from codec.native import native_module
from gateway.broker.processors.live_config import apply_broker_config
from gateway.tests.cluster import bodies, message, pull, settle, simulated
from gateway.tests.configs import change_config
from remoting.bodies.topics import TopicConfig
from remoting.errors import RequestError
from remoting.limits import ConnectionLimits
from remoting.requests.send import SendMessageV2

pytestmark = pytest.mark.skipif(native_module() is None, reason="needs the C extension")
BUSY = 2


async def started(cluster, **settings):
    """Return a broker and a connection whose first send, which Python handles, is done."""
    node = await cluster.add_broker(**settings)
    client = cluster.dial(node.address)
    await client.ask(message())
    assert node.service.native_sends.frames == 0
    return node, client


def configure(node, **settings):
    apply_broker_config(node.broker, change_config(node.broker.config, **settings))


async def ask_all(client, requests):
    """Send requests at once. Return the replies, and the refusals in their places."""
    outcomes = {}

    async def ask(number, request):
        try:
            outcomes[number] = await client.ask(request, timeout_s=60)
        except RequestError as error:
            outcomes[number] = error

    async with trio.open_nursery() as nursery:
        for number, request in enumerate(requests):
            nursery.start_soon(ask, number, request)
            await trio.lowlevel.checkpoint()
    return [outcomes[number] for number in range(len(requests))]


async def frames_taken(node, client, request=None):
    """Return how many frames of one more send were taken."""
    before = node.service.native_sends.frames
    await client.ask(request or message())
    return node.service.native_sends.frames - before


@simulated
async def test_plain_sends_are_taken_from_the_second_of_a_connection_on(cluster):
    node, client = await started(cluster)
    requests = [message(body=b"%d" % number, key=f"K{number}") for number in range(200)]
    replies = await ask_all(client, requests)
    assert node.service.native_sends.frames == 200
    assert sorted(reply.queue_offset for reply in replies) == list(range(1, 201))
    assert {reply.transaction_id for reply in replies} == {f"K{number}" for number in range(200)}
    for reply, request in zip(replies, requests, strict=True):
        assert bodies(await client.ask(pull(offset=reply.queue_offset, max_msg_nums=1))) == [request.body]
    count = node.broker.stats.stored["orders"]
    assert (count.messages, count.requests) == (201, 201)
    assert count.bytes == node.broker.store.max_physical_offset


@simulated
async def test_a_waiting_pull_gets_a_message_that_was_taken(cluster):
    node, client = await started(cluster)
    consumer = cluster.dial(node.address)
    replies = []

    async def wait():
        replies.append(await consumer.ask(pull(offset=1, wait_ms=10_000), timeout_s=60))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await settle()
        assert await frames_taken(node, client, message(body=b"woken")) == 1
    assert bodies(replies[0]) == [b"woken"]


@pytest.mark.parametrize(
    "settings",
    [
        {"native_sends": "off"},
        {"send_quota_messages": 1000},
        {"start_accept_send_timestamp_ms": 1},
        {"broker_permission": 4},
        {"region_id": "a\x02TAGS\x01b"},
    ],
)
@simulated
async def test_nothing_is_taken_while_something_else_decides(cluster, settings):
    node, client = await started(cluster)
    before = {name: getattr(node.broker.config, name, None) for name in settings}
    before |= {name: getattr(node.broker.config.flow, name) for name in settings if before[name] is None}
    assert await frames_taken(node, client) == 1
    configure(node, **settings)
    assert node.service.native_sends.take is None
    assert await frames_taken(node, client) == 0
    configure(node, **before)
    assert await frames_taken(node, client) == 1


@simulated
async def test_a_quota_of_a_topic_ends_it(cluster):
    node, client = await started(cluster)
    node.broker.topics.update([TopicConfig(topic_name="orders", attributes={"+quota.send.messages": "7"})])
    assert await frames_taken(node, client) == 0


@simulated
async def test_refusals_come_from_python(cluster):
    node, client = await started(cluster)
    node.broker.store.disk_full = True
    with pytest.raises(RequestError, match="nearly full"):
        await client.ask(message())
    node.broker.store.disk_full = False
    with pytest.raises(RequestError, match=r"queueId\[4\] is illegal"):
        await client.ask(message(queue_id=4))
    with pytest.raises(RequestError, match=r"SCHEDULE_TOPIC_XXXX.*forbidden"):
        await client.ask(message(topic="SCHEDULE_TOPIC_XXXX"))
    assert node.service.native_sends.frames == 0
    assert await frames_taken(node, client) == 1


@simulated
async def test_sends_that_waited_too_long_or_find_a_stalled_disk_are_refused(cluster):
    node, client = await started(cluster, broker_fast_failure_enable=True)
    assert await frames_taken(node, client) == 1
    node.broker.flow_control.waited_s = lambda: 0.2
    with pytest.raises(RequestError, match=r"TIMEOUT_CLEAN_QUEUE.*period in queue: 200ms"):
        await client.ask(message())
    node.broker.flow_control.waited_s = lambda: 0.199
    assert await frames_taken(node, client) == 1
    node.broker.group_commit._flush_started_s = trio.current_time() - 1.1
    with pytest.raises(RequestError, match="REJECTREQUEST"):
        await client.ask(message())


@simulated
async def test_changed_settings_reach_the_answer_and_the_message(cluster):
    node, client = await started(cluster)
    await client.ask(message())
    configure(node, region_id='moved"', trace_on=False)
    answer = await client.ask_command(message().to_command(), 3.0)
    assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ('moved"', "false")
    stored = node.broker.store.message_at(int(answer.ext["msgId"][16:], 16))
    assert b'MSG_REGION\x01moved"\x02TRACE_ON\x01false\x02' in bytes(stored)
    assert node.service.native_sends.frames == 2
    node.broker.hosts.advertise("10.9.9.9", "10.9.9.9", 4711)
    reply = await client.ask(message())
    assert reply.msg_id.startswith("0A090909" + f"{4711:08X}")
    assert node.service.native_sends.frames == 3


@simulated
async def test_the_limits_of_frames_and_bodies_stay_those_of_the_settings(cluster):
    node = await cluster.add_broker(
        limits=ConnectionLimits(max_frame_bytes=4096, max_header_bytes=400), max_message_size_bytes=2048
    )
    client = cluster.dial(node.address)
    await client.ask(message())
    assert await frames_taken(node, client, message(body=b"x" * 2048)) == 1
    with pytest.raises(RequestError, match="body"):
        await client.ask(message(body=b"x" * 2049))
    assert await frames_taken(node, client) == 1
    with pytest.raises(Exception, match="closed"):
        await client.ask(message(properties={"a": "b" * 300}))
    assert node.service.native_sends.frames == 2


# -- answers that wait ------------------------------------------------------------------------------------------


@simulated
async def test_answers_wait_for_the_flush_that_covers_their_messages(cluster):
    node, client = await started(cluster, flush_disk_type="SYNC_FLUSH")
    positions = []
    node.broker.group_commit.add_listener(positions.append, lambda error: None)
    replies = await ask_all(client, [message() for _ in range(100)])
    assert node.service.native_sends.frames == 100
    assert [reply.code for reply in replies] == [0] * 100
    assert positions[-1] == node.broker.store.max_physical_offset
    assert (node.broker.answer_gate.held_count, client.outstanding_requests) == (0, 0)


@simulated
async def test_an_answer_that_waits_too_long_says_that_its_message_is_not_on_the_disk(cluster):
    node, client = await started(cluster, flush_disk_type="SYNC_FLUSH", sync_flush_timeout_ms=500)
    node.broker.group_commit.request_flush = lambda: None
    began_s = trio.current_time()
    replies = await ask_all(client, [message(), message()])
    assert [reply.code for reply in replies] == [10, 10]
    assert trio.current_time() - began_s == pytest.approx(0.5, abs=0.02)
    assert sorted(reply.queue_offset for reply in replies) == [1, 2]


@pytest.mark.parametrize("limits", [{"send_queue_capacity": 3}, {"max_outstanding_requests": 3}])
@simulated
async def test_no_more_sends_wait_than_the_limits_allow(cluster, limits):
    connection_limits = {name: value for name, value in limits.items() if name == "max_outstanding_requests"}
    settings = {name: value for name, value in limits.items() if name not in connection_limits}
    node = await cluster.add_broker(
        limits=ConnectionLimits(**connection_limits),
        flush_disk_type="SYNC_FLUSH",
        sync_flush_timeout_ms=500,
        **settings,
    )
    client = cluster.dial(node.address)
    await client.ask(message())
    node.broker.group_commit.request_flush = lambda: None
    outcomes = await ask_all(client, [message() for _ in range(5)])
    refusals = [outcome for outcome in outcomes if isinstance(outcome, RequestError)]
    assert [(refusal.code, (refusal.remark or "")[:10]) for refusal in refusals] == [(BUSY, "[OVERLOAD]")] * 2
    assert node.service.native_sends.frames == 3
    assert node.broker.store.max_offset("orders", 0) == 4


@simulated
async def test_where_replicas_may_refuse_sends_are_taken_one_by_one(cluster):
    """Each message makes the gap to the slaves wider, which decides about the next one."""
    node, _ = await started(cluster, flush_disk_type="SYNC_FLUSH")
    flow_control, (connection, *_) = node.broker.flow_control, node.service.server.connections
    count_allowed = flow_control.limits_on_plain_sends(())
    assert count_allowed(connection) > 1
    node.broker.answer_gate.may_refuse = True
    assert count_allowed(connection) == 1


@simulated
async def test_a_send_that_does_not_want_to_wait_is_left_to_python(cluster):
    node, client = await started(cluster, flush_disk_type="SYNC_FLUSH")
    node.broker.group_commit.request_flush = lambda: None
    for properties in ({"WAIT": "false"}, {"XWAIT": "true", "WAIT": "false"}, {"WAIT": "trueish"}):
        assert await frames_taken(node, client, message(properties=properties)) == 0
    assert node.broker.store.max_offset("orders", 0) == 4


# -- other parts --------------------------------------------------------------------------------------------------


@simulated
async def test_sends_are_taken_for_the_parts_that_replace_the_first(cluster):
    node, client = await started(cluster)
    assert await frames_taken(node, client) == 1
    seen = []

    def between():
        seen.append(node.service.native_sends.take)

    await node.service.rebuild(lambda config: config, between)
    assert seen == [None]
    # Python opens the file of the queue.
    assert [await frames_taken(node, client) for _ in range(2)] == [0, 1]
    assert node.service.native_sends.frames == 2
    assert node.broker.store.max_offset("orders", 0) == 4


@simulated
async def test_a_topic_that_was_deleted_and_created_again_gets_a_new_queue(cluster):
    node, client = await started(cluster)
    await client.ask(message())
    node.broker.topics.delete("orders")
    node.broker.store.delete_topic("orders")
    await settle()
    await client.ask(message())
    reply = await client.ask(message())
    assert reply.queue_offset == 1


def test_the_code_of_the_request_is_the_one_that_the_guards_are_asked_for():
    assert SendMessageV2.code == 310


@simulated
async def test_an_interrupt_within_the_limits_is_not_lost_and_a_defect_of_them_ends_nothing(cluster):
    node, client = await started(cluster, broker_fast_failure_enable=True)
    await client.ask(message())
    (connection,) = node.service.server.connections
    frame = encode_command(message().to_command())
    take = node.service.native_sends.take

    def fail(error):
        def waited_s():
            raise error

        node.broker.flow_control.waited_s = waited_s

    fail(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        take(connection, frame, 0)
    fail(ValueError("a defect"))
    assert take(connection, frame, 0) is None
    node.broker.flow_control.waited_s = lambda: take(connection, frame, 0)  # called by itself
    assert take(connection, frame, 0) is None
    node.broker.flow_control.waited_s = lambda: 0.0
    assert take(connection, frame, 0)[0] == len(frame)
    assert node.service.native_sends.frames == 2
    with pytest.raises(ValueError, match="beyond the buffer"):
        take(connection, frame, len(frame) + 1)
