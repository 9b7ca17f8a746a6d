"""Messages that reach the primary past the gateway after their topic was switched: found, named, and refused."""

import pytest
import trio

from gateway.shadow.cutover import bypass_watch
from gateway.shadow.cutover.tests.test_mover import DONE, C, P, refusal_reason, take_step, world
from gateway.shadow.tests.two_clusters import two_clusters
from gateway.tests.cluster import message
from remoting.bodies.heartbeat import HeartbeatData, ProducerData
from remoting.requests.client import HeartBeat
from remoting.requests.send import SendMessageV2


async def announce_producer(primary):
    """Announce a producer as stock Java clients do: with the inner group that every client has."""
    groups = [ProducerData(group_name=name) for name in ("Shop", "CLIENT_INNER_PRODUCER")]
    data = HeartbeatData(client_id="shop@1", producer_data_set=groups)
    await primary.ask_broker("broker-a", HeartBeat(data=data))


async def send_past_the_gateway(primary, count=1):
    """Send as a producer that still has the primary's address."""
    await announce_producer(primary)
    for number in range(count):
        await primary.ask_broker("broker-a", message("orders", b"lost", queue_id=1, key=f"{number:032X}"))


async def never(*_):
    await trio.sleep_forever()


@two_clusters
async def test_the_next_step_is_refused_and_names_the_producer(primary, target):
    """Such messages reached nobody, and nothing said so."""
    async with world(primary, target) as (gateway, _):
        for wanted in (C, P):
            assert await take_step(gateway, "orders") is wanted
        await gateway.bypass.check_switched_topics()
        assert list(gateway.bypass.problems()) == []
        await send_past_the_gateway(primary, 3)
        await trio.sleep(1)
        await gateway.bypass.check_switched_topics()
        (problem,) = gateway.bypass.problems()
        assert problem.startswith("3 messages of orders were sent to the primary past the gateway")
        assert "by 10.9.0.1:" in problem
        assert "(group Shop, client shop@1)" in problem
        reason = await refusal_reason(gateway, "orders")
        assert reason.startswith("3 messages of orders were sent")
        (plan,) = await gateway.mover.plan_steps("orders")
        assert plan.checks[0].name == "bypass"
        assert await take_step(gateway, "orders", allow=["bypass"]) is DONE


@two_clusters
async def test_a_producer_is_named_once_its_heartbeat_has_come(primary, target):
    async with world(primary, target) as (gateway, _):
        for wanted in (C, P):
            assert await take_step(gateway, "orders") is wanted
        await primary.ask_broker("broker-a", message("orders", b"lost", queue_id=1))
        await gateway.bypass.check_switched_topics()
        assert "group Shop" not in next(gateway.bypass.problems())
        await announce_producer(primary)
        await gateway.bypass.check_switched_topics()
        assert "(group Shop, client shop@1)" in next(gateway.bypass.problems())


@two_clusters
async def test_messages_are_counted_once(primary, target):
    async with world(primary, target) as (gateway, _):
        for wanted in (C, P):
            assert await take_step(gateway, "orders") is wanted
        await send_past_the_gateway(primary, 2)
        for _ in range(3):
            await gateway.bypass.check_switched_topics()
        await send_past_the_gateway(primary, 400)
        await gateway.bypass.check_switched_topics()
        assert next(gateway.bypass.problems()).startswith("402 messages of orders")


@two_clusters
async def test_a_topic_that_came_back_is_forgotten(primary, target):
    async with world(primary, target) as (gateway, _):
        for wanted in (C, P):
            assert await take_step(gateway, "orders") is wanted
        await send_past_the_gateway(primary)
        await gateway.bypass.check_switched_topics()
        assert list(gateway.bypass.problems())
        await take_step(gateway, "orders", way="rollback")
        await gateway.bypass.check_switched_topics()
        assert list(gateway.bypass.problems()) == []


@two_clusters
async def test_copies_of_a_roll_back_that_failed_are_no_finding(primary, target):
    async with world(primary, target) as (gateway, _):
        for wanted in (C, P):
            assert await take_step(gateway, "orders") is wanted
        await gateway.bypass.check_switched_topics()
        await target.ask_broker("broker-a", message("orders", b"new", queue_id=0))
        gateway.checks.check_copied_back = never
        assert "sends must not wait longer" in await refusal_reason(gateway, "orders", way="rollback")
        await gateway.bypass.check_switched_topics()
        assert list(gateway.bypass.problems()) == []


@two_clusters
async def test_copies_of_two_failed_roll_backs_are_no_finding_in_a_long_queue(primary, target, monkeypatch):
    """The second attempt replaced the copies of the first one, which are not found by content there."""
    monkeypatch.setattr(bypass_watch, "MAX_COMPARED_PER_QUEUE", 0)
    async with world(primary, target) as (gateway, _):
        for wanted in (C, P):
            assert await take_step(gateway, "orders") is wanted
        gateway.checks.check_copied_back = never
        for number in range(2):
            await target.ask_broker("broker-a", message("orders", b"new", queue_id=0, key=f"U{number}"))
            assert "sends must not wait longer" in await refusal_reason(gateway, "orders", way="rollback")
            await gateway.bypass.check_switched_topics()
            assert list(gateway.bypass.problems()) == []


@two_clusters
async def test_copies_of_a_roll_back_are_not_accused_while_it_copies(primary, target):
    """`status` told operators that thousands of messages were sent past the gateway, by the gateway's own port."""
    async with world(primary, target) as (gateway, nursery):
        for wanted in (C, P):
            assert await take_step(gateway, "orders") is wanted
        await gateway.bypass.check_switched_topics()
        for number in range(20):
            key = f"U{number}"
            await target.ask_broker("broker-a", message("orders", b"new", queue_id=number % 2, key=key))
        asked, sent = primary.ask_broker, []

        async def stalling(name, request, timeout_s=None):
            reply = await asked(name, request, timeout_s)
            if isinstance(request, SendMessageV2):
                sent.append(request)
                if len(sent) > 9:
                    await trio.sleep_forever()
            return reply

        primary.ask_broker = stalling
        with trio.move_on_after(5):
            async with trio.open_nursery() as rolling_back:
                rolling_back.start_soon(gateway.mover.rollback, "orders")
                await trio.sleep(1)
                await gateway.bypass.check_switched_topics()
                assert list(gateway.bypass.problems()) == []
                await trio.sleep_forever()
        primary.ask_broker = asked
        await send_past_the_gateway(primary, 3)
        await gateway.bypass.check_switched_topics()
        assert len(sent) > 9
        # The answer to one copy of each queue was lost.
        assert next(gateway.bypass.problems()).startswith("3 messages of orders")


@pytest.mark.parametrize("restart", [False, True])
@two_clusters
async def test_messages_past_the_gateway_are_found_among_copies(primary, target, restart):
    async with world(primary, target) as (gateway, _):
        for wanted in (C, P):
            assert await take_step(gateway, "orders") is wanted
        await gateway.bypass.check_switched_topics()
        for number in range(600):
            await target.ask_broker("broker-a", message("orders", b"new", queue_id=1, key=f"U{number}"))
        asked, sent = primary.ask_broker, []

        async def mixing(name, request, timeout_s=None):
            if isinstance(request, SendMessageV2) and not sent:
                sent.append(await asked(name, message("orders", b"lost", queue_id=1, key="stray")))
            return await asked(name, request, timeout_s)

        primary.ask_broker = mixing
        gateway.checks.check_copied_back = never
        assert "sends must not wait longer" in await refusal_reason(gateway, "orders", way="rollback")
        primary.ask_broker = asked
        if restart:
            gateway.restart()
        await gateway.bypass.check_switched_topics()
        assert next(gateway.bypass.problems()).startswith("1 messages of orders were sent")
