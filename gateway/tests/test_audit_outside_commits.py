"""Commits of others than a group's consumers leave a line in the audit log: the first of each connection and group."""

import logging

import pytest

from gateway.auth.audit import DONE, AuditLog
from gateway.tests.cluster import Cluster, Node, simulated
from gateway.tests.test_audit_lines import CLIENT_HOST, take_lines
from remoting.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.requests.client import HeartBeat, UnregisterClient
from remoting.requests.offsets import UpdateConsumerOffset


async def start_broker(cluster: Cluster) -> Node:
    def is_member(group: str, connection: Connection) -> bool:
        return node.broker.clients.is_member(group, connection)

    node = await cluster.add_broker(guard=AuditLog("broker-a", is_member=is_member).guard())
    return node


async def join(connection: Connection, *groups: str) -> None:
    subscription = SubscriptionData(topic="TBW102", sub_version=1)
    consumers = [
        ConsumerData(
            group_name=group,
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            subscription_data_set=[subscription],
        )
        for group in groups
    ]
    await connection.ask(HeartBeat(data=HeartbeatData(client_id="c", consumer_data_set=consumers)))


def commit(group: str, queue_id: int = 0) -> UpdateConsumerOffset:
    return UpdateConsumerOffset(consumer_group=group, topic="TBW102", queue_id=queue_id, commit_offset=7)


@simulated
async def test_a_move_of_a_group_leaves_one_line_for_each_connection(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    node = await start_broker(cluster)
    consumer = cluster.dial(node.address)
    await join(consumer, "one", "two")
    for _ in range(2):
        outsider = cluster.dial(node.address, host=CLIENT_HOST)
        for queue_id in range(3):
            for group in ("one", "two"):
                await outsider.ask(commit(group, queue_id))
        lines = take_lines(caplog)
        assert [line["change"] for line in lines] == [
            f"consumerGroup={group}; topic=TBW102; queueId=0; commitOffset=7" for group in ("one", "two")
        ]
        for line in lines:
            assert (line["request"], line["result"]) == ("UPDATE_CONSUMER_OFFSET", DONE)
            assert line["remote"] == CLIENT_HOST


@simulated
async def test_consumers_leave_no_line(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    node = await start_broker(cluster)
    consumer = cluster.dial(node.address)
    await join(consumer, "one")
    await consumer.ask(commit("one"))
    again = cluster.dial(
        node.address
    )  # a consumer that has reconnected and commits before its next heartbeat
    again.send_oneway(commit("one"))
    with pytest.raises(RequestError):
        await again.ask(commit("unknown"))
    assert take_lines(caplog) == []
    await consumer.ask(UnregisterClient(client_id="c", consumer_group="one"))
    await consumer.ask(commit("one"))
    assert len(take_lines(caplog)) == 1
