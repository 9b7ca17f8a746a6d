"""The remoting protocol itself: codes, opaques, flags and header forms, at broker and namesrv."""

import json
import struct

import pytest

from codec.command import Command, encode_command
from compat_tests.clients.typed import (
    connect,
    pull,
    pull_request,
    send,
    send_heartbeat,
    send_plain,
    send_request,
)
from compat_tests.marks import case, read_only
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.errors import RemotingTimeout
from remoting.requests.namesrv import GetRouteInfoByTopic
from remoting.requests.offsets import GetMaxOffset

UNKNOWN_CODE = 29_999


def json_frame(body: bytes = b"", **fields: object) -> bytes:
    """A frame with exactly these header fields."""
    header = json.dumps(fields).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


@read_only
@case("wire", "unknown request code at the broker: 3")
def test_unknown_code(broker: BlockingClient) -> None:
    answer = send_plain(broker, UNKNOWN_CODE)
    assert answer.code == 3
    assert f"request type {UNKNOWN_CODE} not supported" in (answer.remark or "")


@read_only
@case("wire", "unknown request code at the namesrv: 3")
def test_unknown_code_namesrv(namesrv: BlockingClient) -> None:
    answer = send_plain(namesrv, UNKNOWN_CODE)
    assert answer.code == 3
    assert f"request type {UNKNOWN_CODE} not supported" in (answer.remark or "")


@read_only
@case("wire", "an unknown request that is oneway is not answered")
def test_unknown_oneway(broker: BlockingClient, topic: str) -> None:
    broker.send_bytes(encode_command(Command(UNKNOWN_CODE, opaque=1, flag=2)))
    broker.send_bytes(encode_command(GetMaxOffset(topic=topic, queue_id=0).to_command(2)))
    assert broker.receive_command().opaque == 2


@read_only
@case("wire", "a oneway request with an invalid header is not answered")
def test_wrong_oneway(broker: BlockingClient, topic: str) -> None:
    broker.send_bytes(encode_command(Command(30, opaque=1, flag=2, ext={"topic": topic, "queueId": "x"})))
    broker.send_bytes(encode_command(GetMaxOffset(topic=topic, queue_id=0).to_command(2)))
    assert broker.receive_command().opaque == 2


@read_only
@pytest.mark.parametrize("opaque", [0, 1, 2**31 - 1, -1, -(2**31)])
@case("wire", "any opaque is returned")
def test_opaque(broker: BlockingClient, topic: str, opaque: int) -> None:
    broker.send_bytes(encode_command(GetMaxOffset(topic=topic, queue_id=0).to_command(opaque)))
    answer = broker.receive_command()
    assert (answer.opaque, answer.code, answer.is_response) == (opaque, 0, True)


@read_only
@case("wire", "an answer without a request is ignored")
def test_stray_answer(broker: BlockingClient, topic: str) -> None:
    broker.send_bytes(encode_command(Command(0, opaque=123_456, flag=1)))
    assert broker.ask(GetMaxOffset(topic=topic, queue_id=0)).offset == 0


@read_only
@case("wire", "the same opaque twice: two answers")
def test_same_opaque(broker: BlockingClient, topic: str) -> None:
    frame = encode_command(GetMaxOffset(topic=topic, queue_id=0).to_command(5))
    broker.send_bytes(frame + frame)
    assert [broker.receive_command().opaque for _ in range(2)] == [5, 5]


@case("wire", "many requests in flight are matched by opaque")
def test_pipeline(broker: BlockingClient, topic: str) -> None:
    for number in range(3):
        send(broker, topic, queue_id=number)
    for number in range(3):
        eventually(lambda: pull(broker, topic, queue_id=number).code == 0)  # noqa: B023 - called in this iteration
    requests = [GetMaxOffset(topic=topic, queue_id=number % 4) for number in range(400)]
    replies = broker.pipeline(requests)
    assert [reply.offset for reply in replies] == [(1, 1, 1, 0)[number % 4] for number in range(400)]


@read_only
@case("wire", "a JSON header with the fewest fields a client may send")
def test_least(broker: BlockingClient, topic: str) -> None:
    ext = {"topic": topic, "queueId": "0"}
    broker.send_bytes(json_frame(code=30, flag=0, language="JAVA", opaque=9, version=0, extFields=ext))
    answer = broker.receive_command()
    assert (answer.opaque, answer.code, answer.ext["offset"]) == (9, 0, "0")


@read_only
@case("wire", "header fields as JSON numbers")
def test_numbers(broker: BlockingClient, topic: str) -> None:
    ext = {"topic": topic, "queueId": 0}
    broker.send_bytes(json_frame(code=30, flag=0, language="GO", opaque=10, version=317, extFields=ext))
    assert broker.receive_command().code == 0


@read_only
@case("wire", "extFields null, and unknown fields")
def test_null_ext(broker: BlockingClient) -> None:
    fields = {"code": UNKNOWN_CODE, "flag": 0, "language": "JAVA", "opaque": 11, "version": 1}
    broker.send_bytes(json_frame(**fields, extFields=None, future={"deep": [1, None]}))
    assert broker.receive_command().code == 3


@read_only
@pytest.mark.parametrize("language", ["JAVA", "GO", "CPP", "PYTHON", "NODE_JS", "OTHER", "RUST"])
@case("wire", "clients of every language are answered")
def test_language(broker: BlockingClient, topic: str, language: str) -> None:
    ext = {"topic": topic, "queueId": "0"}
    broker.send_bytes(json_frame(code=30, flag=0, language=language, opaque=12, version=1, extFields=ext))
    assert broker.receive_command().code == 0


@case("wire", "binary headers at the namesrv")
def test_binary_namesrv(server: ServerUnderTest, topic: str) -> None:
    with connect(server.namesrv, binary=True) as namesrv:
        assert namesrv.ask(GetRouteInfoByTopic(topic=topic)).data.queue_datas[0].write_queue_nums == 4


@read_only
@case("wire", "JSON and binary headers in turn on one connection")
def test_both(broker: BlockingClient, topic: str) -> None:
    for number in range(6):
        command = GetMaxOffset(topic=topic, queue_id=0).to_command(number, binary=number % 2 == 1)
        broker.send_bytes(encode_command(command))
        answer = broker.receive_command()
        assert (answer.opaque, answer.code) == (number, 0)


@case("wire", "a waiting pull does not delay other requests of its connection")
def test_not_held_up(broker: BlockingClient, topic: str) -> None:
    broker.send_bytes(encode_command(pull_request(topic, suspend_ms=15_000).to_command(1)))
    for opaque in range(2, 12):
        broker.send_bytes(encode_command(GetMaxOffset(topic=topic, queue_id=0).to_command(opaque)))
    assert sorted(broker.receive_command().opaque for _ in range(10)) == list(range(2, 12))


@case("wire", "the VIP port (broker port - 2) serves the same")
def test_vip(server: ServerUnderTest, topic: str) -> None:
    host, _, port = server.broker.rpartition(":")
    with connect(f"{host}:{int(port) - 2}") as client:
        assert send(client, topic, b"vip").queue_offset == 0
        send_heartbeat(client, "client@vip", server.unique_name("group"), topic)


@case("wire", "a connection that was idle for a while still works")
def test_idle(broker: BlockingClient, topic: str) -> None:
    with pytest.raises(RemotingTimeout):
        broker.receive_bytes(timeout_s=1.0)
    assert send(broker, topic).queue_offset == 0


@read_only
@case("wire", "a body where none is expected is ignored")
def test_extra_body(broker: BlockingClient, topic: str) -> None:
    command = GetMaxOffset(topic=topic, queue_id=0).to_command()
    command.body = b"surplus" * 100
    assert broker.send_command(command).code == 0


@case("wire", "an answer carries non-ASCII remarks")
def test_remark(broker: BlockingClient, server: ServerUnderTest) -> None:
    answer = broker.send_command(send_request("ünïcode").to_command())
    assert answer.code == 29
    assert "ünïcode" in (answer.remark or "")
