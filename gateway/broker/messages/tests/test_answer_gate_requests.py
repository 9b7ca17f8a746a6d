"""Requests whose answers wait for the disk besides sends: of consumers and of transactional producers."""

import pytest
import trio

from gateway.broker.messages.tests.test_group_commit import Disk
from gateway.tests.cluster import message, settle, simulated
from gateway.tests.transacting import Producer
from remoting.requests.pop import PopMessage
from remoting.requests.send import ConsumerSendMsgBack

SYNC = {"flush_disk_type": "SYNC_FLUSH", "sync_flush_timeout_ms": 3000}


class Asked:
    """A request under way, and the time at which its answer came, without a refusal."""

    def __init__(self, cluster, connection, request):
        self.answered_ms = None
        self._start_ms = cluster.clock.now_ms()
        cluster.nursery.start_soon(self._ask, cluster, connection, request)

    async def _ask(self, cluster, connection, request):
        await connection.ask(request, timeout_s=60)
        self.answered_ms = cluster.clock.now_ms() - self._start_ms


async def make_request(cluster, node, kind):
    """Return the connection and the request, whose message is not stored yet."""
    client = Producer(cluster, node)
    await client.beat()
    sent = await (client.half() if kind == "end transaction" else client.connection.ask(message()))
    if kind == "end transaction":
        return client.connection, client.end_request(sent)
    if kind == "send back":
        offset = int(sent.msg_id[-16:], 16)
        return client.connection, ConsumerSendMsgBack(offset=offset, group="GID", delay_level=0)
    return client.connection, PopMessage(
        consumer_group="GID", topic="orders", queue_id=0, max_msg_nums=8, invisible_time=60_000,
        born_time=cluster.clock.now_ms(), exp_type="TAG", exp="*",
    )  # fmt: skip


@pytest.mark.parametrize("ends_s", [1, 10])
@pytest.mark.parametrize("kind", ["send back", "end transaction", "pop"])
@simulated
async def test_the_answer_waits_for_the_disk_and_is_a_success_at_the_time_limit(cluster, kind, ends_s):
    node = await cluster.add_broker(**SYNC)
    disk = Disk(node.broker.store)
    node.broker.group_commit._run_blocking = disk.run
    connection, request = await make_request(cluster, node, kind)
    await settle()
    disk.stall()
    asked = Asked(cluster, connection, request)
    await settle()
    assert asked.answered_ms is None
    assert node.broker.answer_gate.held_count == 1
    await trio.sleep(ends_s)
    disk.go.set()
    await settle()
    assert asked.answered_ms == min(ends_s * 1000, 3000)
    assert connection.outstanding_requests == 0
