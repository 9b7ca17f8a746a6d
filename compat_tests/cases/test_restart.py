"""Data that survives when the server stops or is killed; these cases run last."""

from collections.abc import Callable

import pytest

from compat_tests.clients.typed import (
    bodies,
    connect,
    create_group,
    create_topic,
    pull,
    send_many,
    send_request,
)
from compat_tests.endpoints import Endpoint, NotPossible
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.requests.groups import GetSubscriptionGroupConfig
from remoting.requests.offsets import GetMaxOffset, QueryConsumerOffset, UpdateConsumerOffset
from remoting.requests.topics import GetTopicConfig


def restart(endpoint: Endpoint, end: Callable[[], None]) -> None:
    try:
        end()
    except NotPossible as reason:
        pytest.skip(str(reason))
    endpoint.start()


def read_all(broker: BlockingClient, topic: str) -> list[bytes]:
    found: list[bytes] = []
    while (reply := pull(broker, topic, len(found))).code == 0:
        found += bodies(reply)
    return found


@case("restart", "an orderly stop keeps messages, topics, groups and offsets")
def test_stop(endpoint: Endpoint, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 2)
    with connect(server.broker) as broker:
        group = create_group(broker, server.unique_name("group"), retry_max_times=5)
        replies = send_many(broker, topic, (str(i).encode() for i in range(300)))
        eventually(lambda: pull(broker, topic, 299).code == 0)
        broker.ask(UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=0, commit_offset=123))
    restart(endpoint, endpoint.stop)
    with connect(server.broker) as broker:
        assert sorted(read_all(broker, topic)) == sorted(str(i).encode() for i in range(300))
        assert broker.ask(GetMaxOffset(topic=topic, queue_id=0)).offset == len(replies)
        assert broker.ask(GetTopicConfig(topic=topic)).data.write_queue_nums == 2
        assert broker.ask(GetSubscriptionGroupConfig(group=group)).data.retry_max_times == 5
        query = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=0)
        assert broker.ask(query).offset == 123
        assert broker.ask(send_request(topic)).queue_offset == 300


@case("restart", "a killed server loses nothing it acknowledged")
def test_kill(endpoint: Endpoint, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 1)
    acknowledged: set[bytes] = set()
    with connect(server.broker) as broker:
        for start in range(0, 1000, 50):
            names = [f"{start + i}".encode() for i in range(50)]
            send_many(broker, topic, names)
            acknowledged |= set(names)
        restart(endpoint, endpoint.crash)
        with pytest.raises((RemotingClosed, RemotingTimeout, RequestError)):
            pull(broker, topic)
    with connect(server.broker) as broker:
        eventually(lambda: broker.ask(GetMaxOffset(topic=topic, queue_id=0)).offset >= len(acknowledged))
        found = read_all(broker, topic)
        assert len(found) == len(set(found))
        assert acknowledged == set(found)
        assert broker.ask(send_request(topic)).queue_offset == len(found)
