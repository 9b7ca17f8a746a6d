"""Sending, and every refusal of a send, with our typed client."""

import time
import zlib

import pytest

from codec.batch import encode_batch
from codec.command import Command, encode_command
from codec.ids import decode_message_id
from codec.properties import properties_text
from compat_tests.clients.typed import (
    READ,
    batch_request,
    bodies,
    connect,
    create_topic,
    expect_refusal,
    messages,
    pull,
    read_first_message,
    send,
    send_many,
    send_plain,
    send_request,
)
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest, eventually, split_address
from remoting.blocking import BlockingClient
from remoting.requests.send import SendMessage


@case("send", "the answer contains id, queue and offset")
def test_reply(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    first, second = send(broker, topic, b"one", queue_id=2), send(broker, topic, b"two", queue_id=2)
    assert (first.queue_id, first.queue_offset) == (2, 0)
    assert (second.queue_id, second.queue_offset) == (2, 1)
    host, port, offset = decode_message_id(first.msg_id)
    assert port == split_address(server.broker)[1]
    assert host
    assert decode_message_id(second.msg_id)[2] > offset


@case("send", "code 10 with the old, long header names")
def test_old_code(broker: BlockingClient, topic: str) -> None:
    request = send_request(topic, b"old")
    names = ["producer_group", "topic", "default_topic", "default_topic_queue_nums", "queue_id", "sys_flag"]
    names += ["born_timestamp", "flag", "properties", "reconsume_times", "unit_mode", "batch"]
    reply = broker.ask(SendMessage(**{name: getattr(request, name) for name in names}, body=b"old"))
    assert (reply.queue_id, reply.queue_offset) == (0, 0)
    assert read_first_message(broker, topic).body == b"old"


@case("send", "queue id -1 lets the broker choose")
def test_any_queue(broker: BlockingClient, topic: str) -> None:
    assert send(broker, topic, queue_id=-1).queue_id in range(4)


@case("send", "flags, times, hosts and properties are stored as sent")
def test_stored(broker: BlockingClient, topic: str, server: ServerUnderTest) -> None:
    sent = {"TAGS": "red", "KEYS": "a b", "UNIQ_KEY": "7F000001000000000000000000000001", "own": "välue"}
    born = int(time.time() * 1000) - 5000
    send(broker, topic, "bödy".encode(), flag=9, born_timestamp=born, properties=sent, reconsume_times=0)
    message = read_first_message(broker, topic)
    assert message.body == "bödy".encode()
    assert (message.flag, message.born_timestamp, message.topic) == (9, born, topic)
    if server.kind in (
        "ours",
        "official",
    ):  # at other endpoints the client's address may be translated on the way
        assert message.born_host == broker.local
    assert abs(message.store_timestamp - time.time() * 1000) < 60_000
    assert {name: message.properties.get(name) for name in sent} == sent
    assert (message.unique_key, message.tags) == (sent["UNIQ_KEY"], "red")


@case("send", "the broker adds region, cluster, trace switch and, if missing, a unique key")
def test_added_properties(broker: BlockingClient, topic: str) -> None:
    send(broker, topic)
    properties = read_first_message(broker, topic).properties
    assert properties["MSG_REGION"] == "DefaultRegion"
    assert properties["TRACE_ON"] == "true"
    assert properties["CLUSTER"]
    assert len(properties["UNIQ_KEY"]) in (32, 56)  # 56 where the broker has an IPv6 address


@case("batch", "the answer has one id and one offset per message")
def test_batch(broker: BlockingClient, topic: str) -> None:
    content = [(str(i).encode(), {"TAGS": f"t{i}", "UNIQ_KEY": f"{i:032X}"}) for i in range(5)]
    reply = broker.ask(batch_request(topic, content, queue_id=1))
    ids = reply.msg_id.split(",")
    assert (len(ids), reply.queue_id, reply.queue_offset) == (5, 1, 0)
    found = eventually(lambda: (all_of := messages(pull(broker, topic, queue_id=1)))[4:] and all_of)
    assert [(m.body, m.tags, m.queue_offset) for m in found] == [
        (str(i).encode(), f"t{i}", i) for i in range(5)
    ]
    assert [m.physical_offset for m in found] == [decode_message_id(one)[2] for one in ids]
    assert broker.ask(batch_request(topic, content, queue_id=1)).queue_offset == 5


@case("send", "oneway send is stored and not answered")
def test_oneway(broker: BlockingClient, topic: str) -> None:
    broker.send_oneway(send_request(topic, b"oneway"))
    assert (
        read_first_message(broker, topic).body == b"oneway"
    )  # the client would fail on an unexpected answer
    broker.send_bytes(encode_command(send_request(topic, b"again").to_command(4711, oneway=True)))
    broker.send_bytes(encode_command(send_request(topic, b"third").to_command(4712)))
    assert broker.receive_command().opaque == 4712


@case("send", "a thousand sends in flight on one connection keep their order")
def test_pipeline(broker: BlockingClient, topic: str) -> None:
    # A broker may answer and store in any order, but must assign every offset once.
    replies = send_many(broker, topic, (str(i).encode() for i in range(1000)))
    assert sorted(reply.queue_offset for reply in replies) == list(range(1000))


@case("send", "an unknown topic is created from TBW102 with the requested number of queues")
def test_autocreate(broker: BlockingClient, server: ServerUnderTest) -> None:
    name = server.topic_name()
    assert send(broker, name, default_topic_queue_nums=3, queue_id=2).queue_offset == 0
    assert expect_refusal(broker, send_request(name, queue_id=3)).code == 29


@case("send", "refused: unknown topic with an unknown template topic (17)")
def test_no_template(broker: BlockingClient, server: ServerUnderTest) -> None:
    error = expect_refusal(
        broker, send_request(server.unique_name("missing"), default_topic=server.unique_name("none"))
    )
    assert error.code == 17
    assert "not exist, apply first please!" in (error.remark or "")


@case("send", "refused: queue out of range (29)")
def test_queue_range(broker: BlockingClient, topic: str) -> None:
    error = expect_refusal(broker, send_request(topic, queue_id=4))
    assert error.code == 29
    assert "request queueId[4] is illegal" in (error.remark or "")


@pytest.mark.parametrize("name", ["with space", "slash/ed", "ünïcode", "dot.ted", "a$b"])
@case("send", "refused: illegal characters in a topic name (29)")
def test_illegal_name(broker: BlockingClient, name: str) -> None:
    error = expect_refusal(broker, send_request(name))
    assert error.code == 29
    assert "illegal characters" in (error.remark or "")


@case("send", "refused: empty topic name (29)")
def test_blank_name(broker: BlockingClient) -> None:
    error = expect_refusal(broker, send_request(" "))
    assert (error.code, error.remark) == (29, "The specified topic is blank.")


@case("send", "refused: topic name over 127 characters (29)")
def test_long_name(broker: BlockingClient) -> None:
    error = expect_refusal(broker, send_request("t" * 128))
    assert error.code == 29
    assert "longer than" in (error.remark or "")


@pytest.mark.parametrize(
    "name", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"]
)
@case("send", "refused: system topics (16)")
def test_system_topic(broker: BlockingClient, name: str) -> None:
    error = expect_refusal(broker, send_request(name))
    assert error.code == 16
    assert f"Sending message to topic[{name}] is forbidden" in (error.remark or "")


@case("send", "accepted: a send to a topic without write permission; only clients check it, by the route")
def test_read_only(broker: BlockingClient, server: ServerUnderTest) -> None:
    name = server.topic_name()
    create_topic(server, name, 1, perm=READ)
    assert send(broker, name).queue_offset == 0


@case("bodies", "refused: body over 4 MiB (13)")
def test_big_body(broker: BlockingClient, topic: str) -> None:
    assert expect_refusal(broker, send_request(topic, bytes(4 * 1024 * 1024 + 1))).code == 13
    assert send(broker, topic, bytes(4 * 1024 * 1024 - 2000)).queue_offset == 0


@case("send", "refused: properties over 32,767 bytes (13)")
def test_big_properties(broker: BlockingClient, topic: str) -> None:
    assert expect_refusal(broker, send_request(topic, properties={"big": "p" * 32_800})).code == 13
    assert send(broker, topic, properties={"big": "p" * 32_000}).queue_offset == 0


@case("batch", "a batch with an entry that ends too early is refused and stores nothing")
def test_broken_batch(broker: BlockingClient, topic: str) -> None:
    good = encode_batch([(0, b"first", b""), (0, b"second", b"")])
    request = batch_request(topic, [(b"x", {})])
    request.body = good[:-3]
    assert expect_refusal(broker, request).code != 0
    assert send(broker, topic).queue_offset == 0


@case("delay", "a delayed message is stored elsewhere and delivered to its topic after the level's time")
def test_delay(broker: BlockingClient, topic: str) -> None:
    before = time.time()
    send(broker, topic, b"later", queue_id=3, properties={"DELAY": "1", "TAGS": "slow", "KEYS": "k"})
    message = messages(eventually(lambda: (r := pull(broker, topic, queue_id=3)).code == 0 and r, 30))[0]
    assert time.time() - before > 0.9
    assert (message.body, message.topic, message.queue_id, message.queue_offset) == (b"later", topic, 3, 0)
    assert (message.properties["REAL_TOPIC"], message.properties["REAL_QID"]) == (topic, "3")
    assert (message.tags, message.keys) == ("slow", ["k"])
    assert message.store_timestamp - message.born_timestamp >= 900


@case("delay", "level 0 and below: no delay")
def test_no_delay(broker: BlockingClient, topic: str) -> None:
    send(broker, topic, b"now", properties={"DELAY": "0"})
    assert read_first_message(broker, topic).body == b"now"


@case("send", "binary header: same answer")
def test_binary(server: ServerUnderTest, topic: str) -> None:
    with connect(server.broker, binary=True) as broker:
        assert send(broker, topic, b"binary", properties={"own": "välue"}).queue_offset == 0
        message = read_first_message(broker, topic)
    assert (message.body, message.properties["own"]) == (b"binary", "välue")


@case("bodies", "a compressed body is stored as it is")
def test_compressed(broker: BlockingClient, topic: str) -> None:
    packed = zlib.compress(b"long " * 1000)
    send(broker, topic, packed, sys_flag=1)
    message = read_first_message(broker, topic)
    assert (message.body, message.sys_flag & 1) == (packed, 1)
    assert message.decompressed_body() == b"long " * 1000


@case("bodies", "every byte value survives in a body")
def test_bytes(broker: BlockingClient, topic: str) -> None:
    every = bytes(range(256)) * 4
    for body in (every, b"\0", b"\xff" * 10):
        send(broker, topic, body)
    assert bodies(
        eventually(lambda: (r := pull(broker, topic)).code == 0 and len(messages(r)) == 3 and r)
    ) == [
        every,
        b"\0",
        b"\xff" * 10,
    ]


@case("send", "a header without topic is refused")
def test_missing_topic(broker: BlockingClient, topic: str) -> None:
    request = send_request(topic).to_command()
    del request.ext["b"]
    request.body = b"x"
    assert broker.send_command(request).code != 0
    assert send(broker, topic).queue_offset == 0


@case("send", "a queue id that is not a number is refused")
def test_not_a_number(broker: BlockingClient, topic: str) -> None:
    request = send_request(topic).to_command()
    request.ext["e"] = "zero"
    assert broker.send_command(request).code == 1
    assert send(broker, topic).queue_offset == 0


@case("send", "an empty header is refused")
def test_empty_header(broker: BlockingClient) -> None:
    assert send_plain(broker, 310).code != 0
    answer = broker.send_command(Command(10, body=b"x"))
    assert answer.code != 0


@case("send", "unknown header fields are ignored")
def test_unknown_fields(broker: BlockingClient, topic: str) -> None:
    request = send_request(topic).to_command()
    request.ext |= {"zz": "future", "traceparent": "00-1"}
    assert broker.send_command(request).code == 0


@case("send", "properties text without the last separator is understood")
def test_properties_without_end(broker: BlockingClient, topic: str) -> None:
    send(broker, topic, properties=properties_text({"TAGS": "x", "own": "1"}).rstrip("\x02"))
    message = read_first_message(broker, topic)
    assert (message.tags, message.properties["own"]) == ("x", "1")


@case(
    "send",
    "refused sends have region and trace switch as all answers, except for headers that cannot be read",
)
def test_header_of_refusals(broker: BlockingClient, topic: str) -> None:
    def header_of(**fields: str) -> tuple[int, set[str]]:
        command = send_request(topic).to_command()
        command.ext |= {name: value for name, value in fields.items() if value}
        for name in [name for name, value in fields.items() if not value]:
            del command.ext[name]
        answer = broker.send_command(command)
        return answer.code, set(answer.ext)

    always = {"MSG_REGION", "TRACE_ON"}
    assert header_of(e="99") == (29, always), "no such queue"
    assert header_of(b="a b") == (29, always), "no such topic name"
    assert header_of(b="SCHEDULE_TOPIC_XXXX") == (16, always), "a system topic"
    assert header_of(i="K\x01" + "v" * 40_000 + "\x02") == (13, always), "properties too long"
    assert header_of(e="x") == (1, set())
    assert header_of(b="") == (1, set())
