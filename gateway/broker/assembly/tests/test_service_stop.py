"""A broker that stops: waiting requests are answered, and clients are sent away."""

from contextlib import suppress
from typing import Any

import pytest
import trio

from codec.command import Command
from codec.constants import VERSION_NAMES, ResponseCode
from gateway.broker.limits.go_away import MAX_LINGER_S, QUIET_S
from gateway.tests.cluster import message, pull, settle, simulated
from gateway.tests.popping import notification, pop_request
from remoting.declare import Request
from remoting.errors import RemotingClosed
from remoting.requests.offsets import GetMaxOffset

V4_9_8, V5_3_1, V5_3_2 = map(VERSION_NAMES.index, ("V4_9_8", "V5_3_1", "V5_3_2"))
"""The last version before GO_AWAY, and the first with it. Source: NettyRemotingAbstract, 5.4.0."""


def sent_by(version: int, request: Request[Any]) -> Command:
    command = request.to_command()
    command.version = version
    return command


async def note_answer(answers: list[int], client, request: Request[Any]) -> None:
    answers.append((await client.ask_command(request.to_command(), 60)).code)


@simulated
async def test_waiting_requests_are_answered_at_a_stop(cluster):
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    await client.ask(message())
    now = cluster.clock.now_ms()
    answers: list[int] = []
    waiting = (
        pull(offset=1, wait_ms=30_000),
        pop_request(queue_id=1, poll_time=30_000, born_time=now),
        notification(queue_id=1, poll_time=30_000, born_time=now),
    )
    for request in waiting:
        cluster.nursery.start_soon(note_answer, answers, client, request)
    await settle()
    start = trio.current_time()
    await node.stop()
    assert sorted(answers) == [0, ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT]
    assert trio.current_time() - start == pytest.approx(QUIET_S, abs=0.1)


@simulated
async def test_clients_are_sent_away_while_old_ones_are_served(cluster):
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    await client.ask(message())
    cluster.nursery.start_soon(node.stop)
    await settle()

    async def code(version: int, request: Request[Any]) -> int:
        return (await client.ask_command(sent_by(version, request), 5)).code

    assert await code(V5_3_2, message()) == ResponseCode.GO_AWAY
    assert await code(V5_3_1, message()) == ResponseCode.SUCCESS
    assert await code(V5_3_2, GetMaxOffset(topic="orders", queue_id=0)) == ResponseCode.GO_AWAY
    assert await code(V4_9_8, pull()) == ResponseCode.GO_AWAY, "the next one would wait"
    with pytest.raises(RemotingClosed, match="please go away"):
        await client.ask(GetMaxOffset(topic="orders", queue_id=0))


@simulated
async def test_a_stop_ends_although_clients_come_back_all_the_time(cluster):
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    start = trio.current_time()
    cluster.nursery.start_soon(node.stop)
    await settle()
    with suppress(RemotingClosed):
        while (await client.ask_command(pull().to_command(), 5)).code == ResponseCode.GO_AWAY:
            await trio.sleep(QUIET_S / 3)
    assert client.closed
    assert trio.current_time() - start == pytest.approx(MAX_LINGER_S, abs=0.2)


@simulated
async def test_nobody_connects_to_a_broker_that_stops(cluster):
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    cluster.nursery.start_soon(node.stop)
    await settle()
    late = cluster.dial(node.address)
    with pytest.raises(RemotingClosed):
        await late.ask(GetMaxOffset(topic="orders", queue_id=0))
    assert not client.closed


@simulated
async def test_a_stop_without_clients_does_not_linger(cluster):
    node = await cluster.add_broker()
    start = trio.current_time()
    await node.stop()
    assert trio.current_time() - start < QUIET_S


@simulated
async def test_settings_that_change_during_a_stop_do_not_serve_clients_again(cluster):
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    cluster.nursery.start_soon(node.stop)
    await settle()
    node.broker.flow_control.reconfigure(node.broker.config)
    assert (await client.ask_command(pull().to_command(), 5)).code == ResponseCode.GO_AWAY
