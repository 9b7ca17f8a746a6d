"""Finding messages by key, unique key and id, with our typed client."""

import time
from pathlib import Path
from typing import Any

import pytest

from codec.ids import decode_message_id
from codec.message import Message, decode_message, iter_messages
from compat_tests.clients.programs import run_mqadmin
from compat_tests.clients.typed import expect_refusal, pull, send
from compat_tests.jars import Unavailable
from compat_tests.marks import case, read_only
from compat_tests.plugin import skip_or_fail
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.errors import RequestError
from remoting.requests.query import QueryConsumeQueue, QueryMessage, ViewMessageById


def find(broker: BlockingClient, topic: str, key: str, **fields: Any) -> list[Message]:
    """Return the messages with a key; [] if there are none."""
    now = int(time.time() * 1000)
    values = {"max_num": 32, "begin_timestamp": now - 600_000, "end_timestamp": now + 600_000, **fields}
    try:
        reply = broker.ask(QueryMessage(topic=topic, key=key, **values))
    except RequestError as error:
        if error.code != 22:
            raise
        return []
    return list(iter_messages(reply.body))


@case("query", "by key: one of several keys of a message")
def test_key(broker: BlockingClient, topic: str) -> None:
    send(broker, topic, b"one", properties={"KEYS": "red green"})
    send(broker, topic, b"two", properties={"KEYS": "green blue"})
    found = eventually(lambda: (r := find(broker, topic, "green")) and len(r) == 2 and r)
    assert {message.body for message in found} == {b"one", b"two"}
    assert [message.body for message in find(broker, topic, "red")] == [b"one"]
    assert find(broker, topic, "gre") == []


@case("query", "by key: only in the requested topic")
def test_topics(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    another = server.topic_name()
    send(broker, topic, b"one", properties={"KEYS": "same"})
    send(broker, another, b"two", properties={"KEYS": "same"})
    assert [m.body for m in eventually(lambda: find(broker, topic, "same"))] == [b"one"]
    assert [m.body for m in eventually(lambda: find(broker, another, "same"))] == [b"two"]


@case("query", "by key: at most the requested number, the newest ones, oldest first")
def test_max_num(broker: BlockingClient, topic: str) -> None:
    for number in range(5):
        send(broker, topic, str(number).encode(), properties={"KEYS": "many"})
    found = eventually(lambda: (r := find(broker, topic, "many")) and len(r) == 5 and r)
    assert [message.body for message in found] == [b"0", b"1", b"2", b"3", b"4"]
    assert [message.body for message in find(broker, topic, "many", max_num=2)] == [b"3", b"4"]


@case("query", "by key: only within the requested time range")
def test_time(broker: BlockingClient, topic: str) -> None:
    send(broker, topic, b"x", properties={"KEYS": "timed"})
    eventually(lambda: find(broker, topic, "timed"))
    now = int(time.time() * 1000)
    assert find(broker, topic, "timed", begin_timestamp=now - 7_200_000, end_timestamp=now - 3_600_000) == []


@case("query", "by unique key")
def test_unique_key(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    unique = f"{abs(hash(topic)):032X}"
    send(broker, topic, b"unique", properties={"UNIQ_KEY": unique, "KEYS": "other"})
    (message,) = eventually(lambda: find(broker, topic, unique, unique_key_query=True))
    assert (message.body, message.unique_key) == (b"unique", unique)


@case("query", "refused: an unused key (22)")
def test_nothing(broker: BlockingClient, topic: str) -> None:
    now = int(time.time() * 1000)
    request = QueryMessage(topic=topic, key="none", max_num=1, begin_timestamp=0, end_timestamp=now)
    error = expect_refusal(broker, request)
    assert error.code == 22
    assert "can not find message" in (error.remark or "")


@case("query", "a message by its id")
def test_view(broker: BlockingClient, topic: str) -> None:
    reply = send(broker, topic, b"look at me", queue_id=1, properties={"TAGS": "t"})
    answer = broker.ask(ViewMessageById(topic=topic, offset=decode_message_id(reply.msg_id)[2]))
    message = decode_message(answer.body, 0)
    assert (message.body, message.topic, message.queue_id, message.tags) == (b"look at me", topic, 1, "t")


@read_only
@case("query", "refused: an id beyond the commit log (1)")
def test_view_beyond(broker: BlockingClient) -> None:
    error = expect_refusal(broker, ViewMessageById(offset=1 << 60))
    assert error.code == 1
    assert "can not find message by the offset" in (error.remark or "")


@case("query", "entries of a consume queue")
def test_consume_queue(broker: BlockingClient, topic: str) -> None:
    for tag in ("A", "B"):
        send(broker, topic, b"x", properties={"TAGS": tag})
    eventually(lambda: pull(broker, topic, 1).code == 0)
    data = broker.ask(QueryConsumeQueue(topic=topic, queue_id=0, index=0, count=10)).data
    assert (data.min_queue_index, data.max_queue_index) == (0, 2)
    assert [entry.tags_code for entry in data.queue_data] == [65, 66]


@pytest.mark.parametrize("count", [200])
@case("query", "a query finds messages that arrived after the previous query")
def test_follows(broker: BlockingClient, topic: str, count: int) -> None:
    for number in range(count):
        send(broker, topic, b"x", properties={"KEYS": f"key{number}"})
        if number % 67 == 0:
            find(broker, topic, f"key{number}")
    assert eventually(lambda: find(broker, topic, f"key{count - 1}"))
    assert find(broker, topic, "key0")


@case("query", "mqadmin queryMsgById finds a message by its id, which contains the broker's address")
def test_mqadmin_by_id(broker: BlockingClient, server: ServerUnderTest, topic: str, tmp_path: Path) -> None:
    sent = send(broker, topic, b"looked for", properties={"KEYS": "key-of-it"})
    _, port, _ = decode_message_id(sent.msg_id)
    assert server.broker.endswith(f":{port}")
    options = ["-n", server.namesrv, "-t", topic, "-i", sent.msg_id]
    try:
        printed = run_mqadmin(tmp_path / "admin", "queryMsgById", *options)
    except Unavailable as missing:
        skip_or_fail(str(missing))
    assert sent.msg_id in printed
    assert "key-of-it" in printed
    assert f":{port}" in printed  # the store host
