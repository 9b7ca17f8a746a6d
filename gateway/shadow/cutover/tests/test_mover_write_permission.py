"""The write permission of a switched topic at the primary: taken, hidden from the gateway's clients, given back."""

import contextlib

import pytest
import trio

from gateway.http_server.errors import ConsoleError, OperationRefused
from gateway.shadow.cutover.tests.test_bypass_watch import send_past_the_gateway
from gateway.shadow.cutover.tests.test_console_routes import serve_routes
from gateway.shadow.cutover.tests.test_mover import C, M, P, broker, load, refusal_reason, take_step, world
from gateway.shadow.tests.two_clusters import two_clusters
from gateway.shadow.traffic.exchange import Side
from remoting.bodies.topics import TopicConfig
from remoting.requests.topics import GetTopicConfig, UpdateAndCreateTopic


async def permission(cluster, topic="orders"):
    """Return the permission of a topic at the broker, and in the routes of the namesrv."""
    config = (await cluster.ask_broker("broker-a", GetTopicConfig(topic=topic))).data
    return config.perm, {queue.perm for queue in (await cluster.route(topic)).queue_datas}


def set_unusual_settings(broker):
    """Make the topic one whose other settings would be lost by a careless update."""
    broker.topics.update(
        [
            TopicConfig(
                topic_name="orders",
                read_queue_nums=3,
                write_queue_nums=2,
                order=True,
                attributes={"+quota.send.messages": "1000000"},
            )
        ]
    )


@contextlib.asynccontextmanager
async def switched(primary, target):
    async with world(primary, target) as (gateway, nursery), load(gateway, nursery) as (producer, consumers):
        for wanted in (C, P):
            assert await take_step(gateway, "orders") is wanted
        yield gateway, producer, consumers


@two_clusters
async def test_only_the_write_permission_is_taken_and_given_back(primary, target):
    async with world(primary, target) as (gateway, _):
        for cluster in (primary, target):
            set_unusual_settings(broker(cluster))
        before = (await primary.ask_broker("broker-a", GetTopicConfig(topic="orders"))).data
        assert before.attributes == {"quota.send.messages": "1000000"}
        for wanted in (C, P):
            assert await take_step(gateway, "orders") is wanted
        move = await gateway.mover.take_write_permission("orders")
        assert move.taken_permissions == {"broker-a": 6}
        assert await permission(primary) == (4, {4})
        assert await permission(target) == (6, {6})
        taken = (await primary.ask_broker("broker-a", GetTopicConfig(topic="orders"))).data
        taken.perm = 6
        assert taken == before
        move = await gateway.mover.give_back_write_permission("orders")
        assert not move.is_read_only
        assert await permission(primary) == (6, {6})
        assert (await primary.ask_broker("broker-a", GetTopicConfig(topic="orders"))).data == before


@two_clusters
async def test_clients_of_the_gateway_notice_nothing_and_a_rollback_gives_it_back(primary, target):
    """`load` asserts that every message arrives in order: also those that the roll-back copies to the primary."""
    async with switched(primary, target) as (gateway, producer, _):
        await gateway.mover.take_write_permission("orders")
        assert gateway.hub.writable_routes == {"orders": {"broker-a"}}
        await trio.sleep(0.5)
        assert producer.sent[-1][2] is Side.TARGET
        await take_step(gateway, "orders", way="rollback")
        assert gateway.mover.move_file.get_move("orders").state is M
        assert gateway.hub.writable_routes == {}
        assert await permission(primary) == (6, {6})


@two_clusters
async def test_it_is_known_after_a_kill(primary, target):
    async with switched(primary, target) as (gateway, _, _):
        await gateway.mover.take_write_permission("orders")
        gateway.restart()
        assert gateway.hub.writable_routes == {"orders": {"broker-a"}}
        assert gateway.mover.move_file.get_move("orders").taken_permissions == {"broker-a": 6}
        await take_step(gateway, "orders", way="rollback")
        assert await permission(primary) == (6, {6})


@two_clusters
async def test_a_kill_before_the_topic_was_changed_is_mended_by_repeating(primary, target):
    async with world(primary, target) as (gateway, _):
        for wanted in (C, P):
            assert await take_step(gateway, "orders") is wanted
        primary.ask_broker, asking = _refuse_updates(primary.ask_broker), primary.ask_broker
        with pytest.raises(ConnectionError):
            await gateway.mover.take_write_permission("orders")
        primary.ask_broker = asking
        gateway.restart()
        assert await permission(primary) == (6, {6})
        assert (await gateway.mover.take_write_permission("orders")).taken_permissions == {"broker-a": 6}
        assert await permission(primary) == (4, {4})


def _refuse_updates(asking):
    async def ask_broker(broker, request, *more):
        if isinstance(request, UpdateAndCreateTopic):
            raise ConnectionError("killed")
        return await asking(broker, request, *more)

    return ask_broker


@two_clusters
async def test_a_rollback_that_cannot_give_it_back_changes_nothing(primary, target):
    async with switched(primary, target) as (gateway, producer, _):
        await gateway.mover.take_write_permission("orders")
        primary.ask_broker, asking = _refuse_updates(primary.ask_broker), primary.ask_broker
        assert "killed" in await refusal_reason(gateway, "orders", way="rollback")
        primary.ask_broker = asking
        move = gateway.mover.move_file.get_move("orders")
        assert (move.state, move.is_read_only) == (P, True)
        assert await permission(primary) == (4, {4})
        await take_step(gateway, "orders", way="rollback")
        assert await permission(primary) == (6, {6})


@two_clusters
async def test_it_is_refused_while_the_primary_takes_the_sends(primary, target):
    async with world(primary, target) as (gateway, _):
        with pytest.raises(OperationRefused, match="orders is MIRRORING: it can be made read-only"):
            await gateway.mover.take_write_permission("orders")
        with pytest.raises(OperationRefused, match="did not make orders read-only"):
            await gateway.mover.give_back_write_permission("orders")
        for wanted in (C, P):
            assert await take_step(gateway, "orders") is wanted
        request = UpdateAndCreateTopic(
            topic="orders", default_topic="TBW102", read_queue_nums=2, write_queue_nums=2, perm=4,
            topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False,
        )  # fmt: skip
        await primary.ask_broker("broker-a", request)
        with pytest.raises(OperationRefused, match="already, and not by the gateway"):
            await gateway.mover.take_write_permission("orders")


@two_clusters
async def test_the_finding_offers_it_and_says_when_it_was_taken(primary, target):
    async with world(primary, target) as (gateway, _):
        for wanted in (C, P):
            assert await take_step(gateway, "orders") is wanted
        await send_past_the_gateway(primary)
        await gateway.bypass.check_switched_topics()
        (problem,) = gateway.bypass.problems()
        assert "`rmq-gateway shadow read-only orders` makes their sends fail" in problem
        await gateway.mover.take_write_permission("orders")
        await gateway.bypass.check_switched_topics()
        (problem,) = gateway.bypass.problems()
        assert "They get errors since the topic is read-only at the primary" in problem


@two_clusters
async def test_through_the_console(primary, target):
    async with serve_routes(primary, target) as (console, _, _):
        advance, change = console["POST", "/cutover/advance"], console["POST", "/cutover/read-only"]
        with pytest.raises(ConsoleError, match="topic is missing"):
            await change({})
        with pytest.raises(ConsoleError, match="MIRRORING") as refused:
            await change({"topic": "orders"})
        assert refused.value.status == 409
        asked = {"topic": "orders", "to": "producers_switched", "wait_s": 30, "read_only": True}
        assert (await advance(asked))["done"]
        assert await permission(primary) == (4, {4})
        (move,) = console["GET", "/cutover"]({})["moves"]
        assert move["taken_permissions"] == {"broker-a": 6}
        assert await change({"topic": "orders", "undo": True}) == {
            "topic": "orders", "read_only": False, "brokers": []
        }  # fmt: skip
        assert await permission(primary) == (6, {6})
