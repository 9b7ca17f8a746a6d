"""Requests made to take time or memory out of proportion to their bytes: each is refused at once."""

import gzip
import time

import pytest
import trio

from gateway.grpc_front import messages as m
from gateway.grpc_front.clients import CLIENTS
from gateway.grpc_front.framing import MAX_STATUS_CHARS, GrpcError, GrpcStatus, frame_message
from gateway.grpc_front.names import MAX_NAMESPACE_CHARS
from gateway.grpc_front.request_size import MAX_CONTROL_BYTES, MAX_FIELDS, check_field_count
from gateway.grpc_front.routes import MAX_ENDPOINTS_BYTES
from gateway.grpc_front.tests.world import (
    consumer_settings,
    message,
    open_front,
    producer_settings,
    receive_request,
    received,
    send_request,
)
from gateway.tests.cluster import simulated

MIB = 1024 * 1024
MAX_BLOCKED_S = 2.0
"""Far above what a refusal takes, and far below what each of these requests took."""


def part(number, data):
    """Encode a field of bytes, text or message."""
    size, head = len(data), bytearray([number << 3 | 2])
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(head) + bytes([size]) + data


def name(text):
    return m.Resource(name=text).SerializeToString()


async def ask(client, method, encoded, answer=None, *, packed=True):
    """Send an encoded request, and return its stream once it has ended."""
    data = gzip.compress(encoded) if packed else encoded
    kind = {"grpc_encoding": "gzip"} if packed else {}
    number = await client.begin(method, answer or getattr(m, f"{method}Response"), **kind)
    await client.send(number, bytes([packed]) + len(data).to_bytes(4, "big") + data, end=True)
    stream = client.streams[number]
    with trio.fail_after(60):
        await stream.ended.wait()
    return stream


BOMBS = {
    "empty messages": ("SendMessage", b"\x0a\x00" * MIB),
    "tiny messages": ("SendMessage", part(1, message(body=b"x").SerializeToString()) * 40_000),
    "user properties": ("SendMessage", part(1, part(1, name("orders")) + b"\x12\x00" * MIB)),
    "keys": ("SendMessage", part(1, part(1, name("orders")) + part(3, part(2, b"k") * MIB))),
    "acks": ("AckMessage", part(1, name("GID")) + part(2, name("orders")) + b"\x1a\x00" * 20_000),
    "topics": ("Telemetry", part(2, part(5, b"\x0a\x00" * 20_000))),
    "subscriptions": ("Telemetry", part(2, part(6, b"\x12\x00" * 20_000))),
}


@pytest.mark.parametrize("bomb", BOMBS)
@simulated
async def test_a_request_of_too_many_fields_is_refused_before_it_is_decoded(cluster, bomb):
    method, encoded = BOMBS[bomb]
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    await trio.sleep(0.01)
    begin_s = time.process_time()
    stream = await ask(client, method, encoded, m.TelemetryCommand if method == "Telemetry" else None)
    assert stream.status == GrpcStatus.RESOURCE_EXHAUSTED
    assert f"{MAX_FIELDS} fields" in stream.headers["grpc-message"]
    assert time.process_time() - begin_s < MAX_BLOCKED_S
    assert (await client.call("SendMessage", send_request(message()))).status.code == m.OK


def test_fields_are_counted_whatever_their_kinds():
    kinds = m.SendMessageRequest.DESCRIPTOR
    long_text = part(1, part(3, part(1, b"t" * MIB)))
    check_field_count(long_text, kinds)
    check_field_count(b"\xff" * MIB, kinds)  # no fields: the decoder refuses it
    for field in (
        b"\x08\x01",
        b"\x09" + bytes(8),
        b"\x0d" + bytes(4),
        b"\x98\x06\x01",
        b"\x0b\x0c",
        b"\x7a\x00",
    ):
        check_field_count(field * (MAX_FIELDS // 2), kinds)
        with pytest.raises(GrpcError):
            check_field_count(field * (MAX_FIELDS + 1), kinds)


@simulated
async def test_only_sends_are_as_long_as_a_frame(cluster):
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    await trio.sleep(0.01)
    long = m.QueryRouteRequest(topic=m.Resource(name="o" * MAX_CONTROL_BYTES))
    stream = await ask(client, "QueryRoute", long.SerializeToString())
    assert stream.status == GrpcStatus.RESOURCE_EXHAUSTED
    answer = await client.call("SendMessage", send_request(message(body=b"x" * 90_000)))
    assert answer.status.code == m.OK


LONG_TEXTS = {
    "topic": part(1, part(1, name("o" * 8 * MIB)) + part(4, b"x")),
    "tag": part(1, message().SerializeToString() + part(3, part(1, b"t" * 8 * MIB))),
    "key": part(1, message().SerializeToString() + part(3, part(2, b"k" * 8 * MIB))),
    "message group": part(1, message(message_group="g" * 8 * MIB).SerializeToString()),
    "user property": part(
        1, message().SerializeToString() + part(2, part(1, b"p") + part(2, b"v" * 8 * MIB))
    ),
}


@pytest.mark.parametrize("text", LONG_TEXTS)
@simulated
async def test_a_long_text_is_refused_at_once_with_a_short_answer(cluster, text):
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    await trio.sleep(0.01)
    begin_s = time.process_time()
    stream = await ask(client, "SendMessage", LONG_TEXTS[text])
    assert time.process_time() - begin_s < MAX_BLOCKED_S
    (answer,) = stream.answers
    assert m.BAD_REQUEST < answer.status.code < m.INTERNAL_ERROR
    assert len(answer.status.message) <= MAX_STATUS_CHARS


@simulated
async def test_the_status_of_an_rpc_quotes_no_long_text(cluster):
    front = await open_front(cluster)
    settings = consumer_settings()
    settings.subscription.subscriptions[0].expression.expression = "|" * 60_000
    stream = await front.client().tell_settings(settings)
    await stream.ended.wait()
    assert stream.status == GrpcStatus.INVALID_ARGUMENT
    assert len(stream.headers["grpc-message"]) <= 3 * MAX_STATUS_CHARS


@simulated
async def test_a_route_does_not_repeat_long_names_for_each_queue(cluster):
    front = await open_front(cluster)
    front.create_topic(queues=64)
    client = front.client()
    long_host = m.Endpoints(scheme=m.IPv4, addresses=[m.Address(host="h" * MAX_ENDPOINTS_BYTES, port=1)])
    topic = m.Resource(name="orders")
    answer = await client.call("QueryRoute", m.QueryRouteRequest(topic=topic, endpoints=long_host))
    assert (answer.status.code, len(answer.message_queues)) == (m.ILLEGAL_ACCESS_POINT, 0)
    topic.resource_namespace = "n" * (MAX_NAMESPACE_CHARS + 1)
    answer = await client.call("QueryRoute", m.QueryRouteRequest(topic=topic))
    assert (answer.status.code, len(answer.message_queues)) == (m.ILLEGAL_TOPIC, 0)


@simulated
async def test_unknown_kinds_of_clients_and_odd_versions_are_no_failures(cluster, caplog):
    front = await open_front(cluster)
    front.create_topic()
    stream = await front.client().tell_settings(consumer_settings(kind=77))
    await stream.ended.wait()
    assert (stream.status, "77" in stream.headers["grpc-message"]) == (GrpcStatus.INVALID_ARGUMENT, True)
    client = front.client("c", **{"x-mq-client-version": "9" * 5000})
    number = await client.begin("ReceiveMessage", m.ReceiveMessageResponse, grpc_timeout="1S")
    await client.send(number, frame_message(receive_request().SerializeToString()), end=True)
    await client.streams[number].ended.wait()
    assert received(client.streams[number]).code == m.ILLEGAL_POLLING_TIME
    assert "Traceback" not in caplog.text


@simulated
async def test_a_connection_keeps_nothing_of_clients_that_have_left(cluster):
    front = await open_front(cluster)
    front.create_topic()
    (of_first,) = await connections_of(front, front.client("first"))
    before = len(of_first._close_callbacks)
    client = front.client("one")
    await client.tell_settings(producer_settings("orders"))
    for number in range(8):
        client.metadata["x-mq-client-id"] = f"client-{number}"
        await client.tell_settings(producer_settings("orders"))
        answer = await client.call("NotifyClientTermination", m.NotifyClientTerminationRequest())
        assert answer.status.code == m.OK
    (connection,) = set(front.service.server.connections) - {of_first}
    assert len(connection._close_callbacks) <= before + 2
    assert len(connection.state.get(CLIENTS)) == 1


async def connections_of(front, client):
    """Return the server's connections once this client's is among them."""
    await client.call("QueryRoute", m.QueryRouteRequest(topic=m.Resource(name="orders")))
    return list(front.service.server.connections)


@simulated
async def test_a_larger_window_in_new_settings_lets_an_answer_go_on(cluster):
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    await trio.sleep(0.01)
    client.h2.update_settings({4: 0})  # No window for streams that are opened from now on
    await client.flush()
    stream = await client.start("SendMessage", send_request(message()), m.SendMessageResponse)
    await trio.sleep(0.5)
    assert not stream.ended.is_set()
    client.h2.update_settings({4: 65_535})
    await client.flush()
    with trio.fail_after(5):
        await stream.ended.wait()
    assert stream.answers[0].status.code == m.OK


@simulated
async def test_headers_of_answers_are_not_remembered(cluster):
    front = await open_front(cluster)
    client = front.client()
    await trio.sleep(0.01)
    client.h2.update_settings({1: 2**32 - 1})
    await client.flush()
    for number in range(200):  # Each answer has a header of its own text
        opened = await client.begin(f"nothing-{number}", m.QueryRouteResponse)
        await client.send(opened, b"", end=True)
        await client.streams[opened].ended.wait()
    assert client.h2.decoder.header_table._current_size == 0
