"""Offsets of broadcasting clients, which the broker stores for clients that move to or from a proxy."""

import pytest

from compat_tests.clients.typed import batch_request, bodies, create_group, pull, send_heartbeat
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.errors import RequestError
from remoting.requests.offsets import QueryConsumerOffset

MOVED, PROXY_FOR_BROADCAST = 21, 1


@pytest.fixture
def broadcasting(broker: BlockingClient, server: ServerUnderTest, topic: str) -> str:
    """A broadcasting group whose client c@1 is the connection `broker`, with ten messages in queue 0."""
    group = create_group(broker, server.unique_name("group"))
    send_heartbeat(broker, "c@1", group, topic, message_model="BROADCASTING")
    broker.ask(
        batch_request(topic, [(b"%d" % number, {"UNIQ_KEY": f"{number:032X}"}) for number in range(10)])
    )
    eventually(lambda: pull(broker, topic, consumer_group=f"look_{group}").max_offset == 10)
    return group


def committed(client: BlockingClient, group: str, topic: str) -> int:
    """Return the offset stored for a broadcasting group; -1 if there is none."""
    ask = QueryConsumerOffset(
        consumer_group=f"{group}@broadcast", topic=topic, queue_id=0, set_zero_if_not_found=False
    )
    try:
        return client.ask(ask).offset
    except RequestError as error:
        if error.code != 22:
            raise
        return -1


def by_proxy(client: BlockingClient, topic: str, group: str, offset: int, client_id: str = "c@1"):
    return pull(
        client,
        topic,
        offset,
        consumer_group=group,
        request_source=PROXY_FOR_BROADCAST,
        proxy_froward_client_id=client_id,
    )


@case("offsets", "broadcasting: the broker stores the smallest offset at which its clients pull")
def test_kept(broker: BlockingClient, other: BlockingClient, topic: str, broadcasting: str) -> None:
    send_heartbeat(other, "c@2", broadcasting, topic, message_model="BROADCASTING")
    assert bodies(pull(broker, topic, 7, consumer_group=broadcasting))[0] == b"7"
    assert bodies(pull(other, topic, 4, consumer_group=broadcasting))[0] == b"4"
    eventually(lambda: committed(broker, broadcasting, topic) == 4, 30)
    assert bodies(pull(other, topic, 9, consumer_group=broadcasting)) == [b"9"]
    eventually(lambda: committed(broker, broadcasting, topic) == 7, 30)


@case("offsets", "broadcasting: a client that goes to a proxy is moved to its last offset")
def test_to_proxy(broker: BlockingClient, other: BlockingClient, topic: str, broadcasting: str) -> None:
    pull(broker, topic, 3, consumer_group=broadcasting)
    reply = by_proxy(other, topic, broadcasting, 8)
    assert (reply.code, reply.remark, reply.next_begin_offset) == (MOVED, "OFFSET_RESET", 3)
    assert (reply.min_offset, reply.max_offset) == (0, 0)
    assert bodies(by_proxy(other, topic, broadcasting, 3))[0] == b"3"


@case("offsets", "broadcasting: a client that comes from a proxy is moved to its last offset")
def test_from_proxy(broker: BlockingClient, other: BlockingClient, topic: str, broadcasting: str) -> None:
    assert bodies(by_proxy(other, topic, broadcasting, 5))[0] == b"5"
    reply = pull(broker, topic, 1, consumer_group=broadcasting)
    assert (reply.code, reply.next_begin_offset) == (MOVED, 5)
    assert bodies(pull(broker, topic, 5, consumer_group=broadcasting))[0] == b"5"


@case("offsets", "broadcasting: a proxy's client without an offset is given one")
def test_new_at_proxy(broker: BlockingClient, topic: str, broadcasting: str) -> None:
    reply = by_proxy(broker, topic, broadcasting, -1, "new@1")
    assert (reply.code, reply.next_begin_offset) == (MOVED, 0)
    assert bodies(by_proxy(broker, topic, broadcasting, 0, "new@1"))[0] == b"0"


@case("offsets", "broadcasting: other groups have no such offsets")
def test_clustering(broker: BlockingClient, other: BlockingClient, group: str, topic: str) -> None:
    send_heartbeat(broker, "c@1", group, topic)
    pull(broker, topic, 0, consumer_group=group)
    broadcasting = f"{group}_other"
    send_heartbeat(other, "c@2", broadcasting, topic, message_model="BROADCASTING")
    pull(other, topic, 0, consumer_group=broadcasting)
    eventually(lambda: committed(broker, broadcasting, topic) == 0, 30)
    assert committed(broker, group, topic) == -1
