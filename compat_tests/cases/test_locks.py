"""Locks of queues for orderly consumption, with our typed client."""

from compat_tests.clients.typed import send_heartbeat
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest
from remoting.blocking import BlockingClient
from remoting.bodies.locks import LockBatchRequestBody, UnlockBatchRequestBody
from remoting.bodies.queues import MessageQueue
from remoting.requests.locks import LockBatchMq, UnlockBatchMq
from remoting.requests.namesrv import GetRouteInfoByTopic


def queues_of(namesrv: BlockingClient, topic: str) -> list[MessageQueue]:
    route = namesrv.ask(GetRouteInfoByTopic(topic=topic)).data
    name = route.queue_datas[0].broker_name
    return [MessageQueue(topic=topic, broker_name=name, queue_id=number) for number in range(4)]


def lock(client: BlockingClient, group: str, who: str, queues: list[MessageQueue]) -> set[int]:
    data = LockBatchRequestBody(consumer_group=group, client_id=who, mq_set=queues)
    return {queue.queue_id for queue in client.ask(LockBatchMq(data=data)).data.lock_okmq_set}


def unlock(client: BlockingClient, group: str, who: str, queues: list[MessageQueue]) -> None:
    client.ask(UnlockBatchMq(data=UnlockBatchRequestBody(consumer_group=group, client_id=who, mq_set=queues)))


@case("ordered", "queues are locked for one client of a group")
def test_lock(broker: BlockingClient, namesrv: BlockingClient, group: str, topic: str) -> None:
    queues = queues_of(namesrv, topic)
    assert lock(broker, group, "client@1", queues) == {0, 1, 2, 3}
    assert lock(broker, group, "client@2", queues) == set()
    assert lock(broker, group, "client@1", queues) == {0, 1, 2, 3}  # the holder extends its lease


@case("ordered", "only the queues that are free are locked")
def test_partly(broker: BlockingClient, namesrv: BlockingClient, group: str, topic: str) -> None:
    queues = queues_of(namesrv, topic)
    assert lock(broker, group, "client@1", queues[:2]) == {0, 1}
    assert lock(broker, group, "client@2", queues) == {2, 3}
    assert lock(broker, group, "client@1", queues) == {0, 1}


@case("ordered", "an unlocked queue is free for others")
def test_unlock(broker: BlockingClient, namesrv: BlockingClient, group: str, topic: str) -> None:
    queues = queues_of(namesrv, topic)
    lock(broker, group, "client@1", queues)
    unlock(broker, group, "client@1", queues[:1])
    assert lock(broker, group, "client@2", queues) == {0}


@case("ordered", "only the holder can unlock")
def test_unlock_by_other(broker: BlockingClient, namesrv: BlockingClient, group: str, topic: str) -> None:
    queues = queues_of(namesrv, topic)
    lock(broker, group, "client@1", queues)
    unlock(broker, group, "client@2", queues)
    assert lock(broker, group, "client@2", queues) == set()


@case("ordered", "groups do not lock each other out")
def test_groups(
    broker: BlockingClient, namesrv: BlockingClient, server: ServerUnderTest, group: str, topic: str
) -> None:
    queues = queues_of(namesrv, topic)
    assert lock(broker, group, "client@1", queues) == {0, 1, 2, 3}
    assert lock(broker, server.unique_name("group"), "client@2", queues) == {0, 1, 2, 3}


@case("ordered", "a lock is the client's, not the connection's")
def test_connection(
    broker: BlockingClient, other: BlockingClient, namesrv: BlockingClient, group: str, topic: str
) -> None:
    queues = queues_of(namesrv, topic)
    send_heartbeat(broker, "client@1", group, topic)
    lock(broker, group, "client@1", queues)
    assert lock(other, group, "client@1", queues) == {0, 1, 2, 3}
    assert lock(other, group, "client@2", queues) == set()


@case("ordered", "no queues, no locks")
def test_empty(broker: BlockingClient, group: str) -> None:
    assert lock(broker, group, "client@1", []) == set()
