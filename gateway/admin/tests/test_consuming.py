"""Reading queues: connections that break while messages are followed, and answers without messages."""

import pytest

from codec.errors import MessageFormatError
from gateway.admin import consuming
from gateway.admin.client import AdminClient
from gateway.admin.consuming import QueuePosition, ReadOptions, TopicReader
from gateway.admin.errors import AdminError, NotReached
from gateway.admin.settings import ConnectionSettings
from gateway.admin.tests.local_server import LocalServer
from remoting.requests.pull import PullMessageReply


def open_client(server: LocalServer) -> AdminClient:
    return AdminClient(ConnectionSettings(namesrv=[server.namesrv], timeout_s=30))


def test_followed_messages_go_on_after_a_broken_connection(
    server: LocalServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "RETRY_INTERVAL_S", 0.01)
    server.run("topic", "create", name, "-q", "1", "--broker", "broker-a")
    with open_client(server) as client, TopicReader(client, name, ReadOptions(follow=True)) as reader:
        messages = reader.read()
        for value in ("first", "second", "third"):
            server.run("produce", name, value)
            message, broker = next(messages)
            assert (message.body.decode(), broker) == (value, "broker-a")
            reader._connections[-1].abort()


@pytest.mark.parametrize("follow", [False, True])
def test_a_broker_that_is_gone_ends_the_reading(
    server: LocalServer, name: str, monkeypatch: pytest.MonkeyPatch, follow: bool
) -> None:
    monkeypatch.setattr(consuming, "RETRY_INTERVAL_S", 0.01)
    monkeypatch.setattr(consuming, "RECONNECT_S", 0.05)
    server.run("topic", "create", name, "-q", "1", "--broker", "broker-a")
    server.run("produce", name, "x")
    tries = []

    def fail(address: str) -> None:
        tries.append(address)
        raise NotReached(f"broker {address} cannot be reached")

    with open_client(server) as client, TopicReader(client, name, ReadOptions(follow=follow)) as reader:
        monkeypatch.setattr(client, "dial", fail)
        with pytest.raises(AdminError, match="cannot be reached"):
            list(reader.read())
    assert (len(tries) > 1) == follow


def test_a_damaged_message_ends_the_reading(
    server: LocalServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(body: bytes) -> None:
        raise MessageFormatError("wrong CRC")

    server.run("topic", "create", name, "-q", "1", "--broker", "broker-a")
    server.run("produce", name, "x")
    monkeypatch.setattr(consuming, "iter_messages", fail)
    with (
        open_client(server) as client,
        TopicReader(client, name, ReadOptions()) as reader,
        pytest.raises(
            AdminError, match="queue 0: a message at offset 0 or after it cannot be read: wrong CRC"
        ),
    ):
        list(reader.read())


def reply(code: int, next_offset: int) -> PullMessageReply:
    found = PullMessageReply(
        suggest_which_broker_id=0, next_begin_offset=next_offset, min_offset=0, max_offset=10
    )
    found.code = code
    return found


def test_answers_without_messages_move_on() -> None:
    position = QueuePosition("t", "broker-a", 0, 3, 10)
    assert position.accept(reply(20, 7)) == []
    assert (position.next_offset, position.is_done) == (7, False)
    assert position.accept(reply(21, 10)) == []
    assert position.is_done


def test_a_part_of_a_queue_that_cannot_be_read_does_not_hold_the_end_up() -> None:
    position = QueuePosition("t", "broker-a", 0, 3, 10)
    for _ in range(3):
        assert not position.is_done
        position.accept(reply(19, 3))
    assert position.is_done
