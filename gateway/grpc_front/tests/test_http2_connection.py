"""The transport with hostile and broken peers: each ends its own connection, and nobody else's."""

import random

import pytest
import trio
from h2.exceptions import ProtocolError
from trio.testing import memory_stream_pair

from gateway.grpc_front import messages as m
from gateway.grpc_front.framing import frame_message
from gateway.grpc_front.http2_connection import FREE_RESETS, MAX_SETTINGS_FRAMES, Http2Connection
from gateway.grpc_front.http2_frames import encode_headers
from gateway.grpc_front.service import SERVICE
from gateway.grpc_front.tests.world import MAX_STREAMS, Client, message, open_front, send_request
from gateway.tests.cluster import settle, simulated
from remoting.limits import ConnectionLimits
from remoting.transport import StreamTransport

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def headers_of(method):
    return encode_headers([
        (":method", "POST"), (":scheme", "http"), (":path", SERVICE + method), ("x-mq-client-id", "c"),
        ("content-type", "application/grpc"),
    ])  # fmt: skip


HEADERS, TELEMETRY = headers_of("SendMessage"), headers_of("Telemetry")


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def padded(kind, flags, stream, payload, padding=5):
    return frame(kind, flags | 8, stream, bytes((padding,)) + payload + bytes(padding))


async def is_closed_after(front, data):
    """Send bytes as a new peer, and return whether the server closed the connection."""
    here, there = memory_stream_pair()
    front.cluster.nursery.start_soon(front.service.server.serve_transport, StreamTransport(there))
    with trio.move_on_after(5):
        try:
            await here.send_all(data)
            while await here.receive_some(1 << 16):
                pass
        except trio.BrokenResourceError:
            pass
        return True
    await here.aclose()
    return False


async def still_serves(front):
    front.create_topic()
    answer = await front.client().call("SendMessage", send_request(message()))
    return answer.status.code == m.OK


@simulated
async def test_bytes_that_are_not_http2_end_the_connection(cluster):
    front = await open_front(cluster)
    settings = frame(4, 0, 0)
    hostile = {
        "http 1": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        "remoting": b'\0\0\0\x10\0\0\0\x0c{"code":105}',
        "data on a stream that nobody opened": PREFACE + settings + frame(0, 0, 1, b"data"),
        "headers on an even stream": PREFACE + settings + frame(1, 4, 2, b"\x82"),
        "damaged header block": PREFACE + settings + frame(1, 4, 1, b"\xff\xff\xff\xff\xff"),
        "frame too large": PREFACE + settings + b"\xff\xff\xff\0\0\0\0\0\1" + bytes(20_000),
        "window of zero": PREFACE + settings + frame(8, 0, 0, b"\0\0\0\0"),
        "window overflow": PREFACE + settings + frame(8, 0, 0, b"\x7f\xff\xff\xff") * 2,
        "endless settings": PREFACE + settings * (MAX_SETTINGS_FRAMES + 1),
        "endless headers": PREFACE + settings + frame(1, 0, 1, b"\0") + frame(9, 0, 1, b"") * 200,
        "long headers": PREFACE + settings + frame(1, 0, 1, b"\0") + frame(9, 0, 1, bytes(16_384)) * 5,
        "long headers, packed": PREFACE
        + settings
        + frame(1, 4, 1, b"\x40\1x\x7f\x81\x1e" + b"y" * 4000 + b"\xbe" * 100),
    }
    for name, data in hostile.items():
        assert await is_closed_after(front, data), name
    assert await still_serves(front)


OPEN = frame(4, 0, 0) + frame(1, 4, 1, HEADERS)
VIOLATIONS = {
    "no settings first": frame(1, 4, 1, HEADERS),
    "settings on a stream": frame(4, 0, 0) + frame(4, 0, 1),
    "settings cut off": frame(4, 0, 0, b"\0\4\0"),
    "settings acknowledged with bytes": frame(4, 0, 0) + frame(4, 1, 0, b"\0\4\0\0\0\1"),
    "settings: window": frame(4, 0, 0, b"\0\4\x80\0\0\0"),
    "settings: frame size": frame(4, 0, 0, b"\0\5\0\0\0\1"),
    "settings: push": frame(4, 0, 0, b"\0\2\0\0\0\2"),
    "settings: windows overflow": OPEN
    + frame(8, 0, 1, b"\x7f\0\0\0")
    + frame(4, 0, 0, b"\0\4\x7f\xff\xff\xff"),
    "headers on stream 0": frame(4, 0, 0) + frame(1, 4, 0, HEADERS),
    "another frame amid headers": frame(4, 0, 0) + frame(1, 0, 1, HEADERS) + frame(0, 0, 1),
    "continuation of another stream": frame(4, 0, 0) + frame(1, 0, 1, HEADERS) + frame(9, 4, 3),
    "continuation of nothing": OPEN + frame(9, 4, 1),
    "priority cut off in headers": frame(4, 0, 0) + frame(1, 0x24, 1, b"\0\0"),
    "too much padding of headers": frame(4, 0, 0) + frame(1, 0xC, 1, b"\7abc"),
    "too much padding of data": OPEN + frame(0, 8, 1, b"\4abc"),
    "padding of nothing": OPEN + frame(0, 8, 1),
    "data after the end": frame(4, 0, 0) + frame(1, 5, 1, TELEMETRY) + frame(0, 0, 1, b"x"),
    "data on stream 0": OPEN + frame(0, 0, 0, b"x"),
    "headers that do not end a request": OPEN + frame(1, 4, 1, HEADERS),
    "capital letters": frame(4, 0, 0) + frame(1, 5, 1, HEADERS + b"\0\1X\1y"),
    "header of a connection": frame(4, 0, 0) + frame(1, 5, 1, HEADERS + b"\0\7upgrade\1y"),
    "pseudo-header after others": frame(4, 0, 0) + frame(1, 5, 1, HEADERS + b"\0\x0a:authority\1y"),
    "pseudo-header twice": frame(4, 0, 0) + frame(1, 5, 1, b"\x83\x83"),
    "unknown pseudo-header": frame(4, 0, 0) + frame(1, 5, 1, b"\0\2:x\1y"),
    "no path": frame(4, 0, 0) + frame(1, 5, 1, b"\x83\x86"),
    "te": frame(4, 0, 0) + frame(1, 5, 1, HEADERS + b"\0\2te\4gzip"),
    "reset of stream 0": OPEN + frame(3, 0, 0, b"\0\0\0\1"),
    "reset of an idle stream": OPEN + frame(3, 0, 3, b"\0\0\0\1"),
    "reset cut off": OPEN + frame(3, 0, 1, b"\0"),
    "ping on a stream": OPEN + frame(6, 0, 1, bytes(8)),
    "ping cut off": OPEN + frame(6, 0, 0, bytes(7)),
    "goodbye on a stream": OPEN + frame(7, 0, 1, bytes(8)),
    "goodbye cut off": OPEN + frame(7, 0, 0, bytes(7)),
    "window cut off": OPEN + frame(8, 0, 0, b"\1"),
    "window of an idle stream": OPEN + frame(8, 0, 5, b"\0\0\0\1"),
    "window of a stream grows by 0": OPEN + frame(8, 0, 1, bytes(4)),
    "window of a stream overflows": OPEN + frame(8, 0, 1, b"\x7f\xff\xff\xff"),
    "priority of nothing": OPEN + frame(2, 0, 0, bytes(5)),
    "priority cut off": OPEN + frame(2, 0, 1, bytes(4)),
    "push": OPEN + frame(5, 4, 1, bytes(4)),
}


@pytest.mark.parametrize("violation", VIOLATIONS)
@simulated
async def test_violations_of_the_protocol_end_the_connection(cluster, violation, caplog):
    front = await open_front(cluster)
    assert await is_closed_after(front, PREFACE + VIOLATIONS[violation])
    reasons = [record.reason for record in caplog.records if "bad frame" in record.message]
    assert len(reasons) == 1
    assert reasons[0].startswith("HTTP/2: ")
    assert await still_serves(front)


ENCODED = frame_message(send_request(message()).SerializeToString())
CONVERSATIONS = {
    "plain": frame(1, 4, 1, HEADERS) + frame(0, 1, 1, ENCODED),
    "padding": padded(1, 4, 1, HEADERS) + padded(0, 1, 1, ENCODED),
    "priority": frame(1, 0x24, 1, bytes(5) + HEADERS) + frame(2, 0, 1, bytes(5)) + frame(0, 1, 1, ENCODED),
    "continuations": frame(1, 0, 1, HEADERS[:7]) + frame(9, 0, 1, HEADERS[7:20]) + frame(9, 4, 1, HEADERS[20:])
    + frame(0, 1, 1, ENCODED),
    "data in pieces": frame(1, 4, 1, HEADERS)
    + b"".join(frame(0, 0, 1, ENCODED[at : at + 1]) for at in range(len(ENCODED))) + frame(0, 1, 1),
    "trailers": frame(1, 4, 1, HEADERS) + frame(0, 0, 1, ENCODED) + frame(1, 5, 1, b"\0\1a\1b"),
    "unknown kinds and flags": frame(0xFA, 0xFF, 3, b"?") + frame(1, 0xD0 | 4, 1, HEADERS) + frame(0, 0xF1, 1, ENCODED),
    "goodbye before the request ends": frame(1, 4, 1, HEADERS) + frame(7, 0, 0, bytes(8)) + frame(0, 1, 1, ENCODED),
    "a stream that is over": frame(1, 4, 1, HEADERS) + frame(3, 0, 1, bytes(4)) + frame(0, 0, 1, b"late")
    + frame(8, 0, 1, b"\0\0\0\1") + frame(1, 4, 3, HEADERS) + frame(0, 1, 3, ENCODED),
}  # fmt: skip


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("chunk", [1, 7, 10_000])
@simulated
async def test_requests_in_every_form_are_answered(cluster, conversation, chunk):
    front = await open_front(cluster)
    front.create_topic()
    here, there = memory_stream_pair()
    front.cluster.nursery.start_soon(front.service.server.serve_transport, StreamTransport(there))
    data = PREFACE + frame(4, 0, 0) + CONVERSATIONS[conversation] + frame(6, 0, 0, b"the end.")
    for at in range(0, len(data), chunk):
        await here.send_all(data[at : at + chunk])
    answer = b""
    with trio.fail_after(5):
        while frame(6, 1, 0, b"the end.") not in answer:
            answer += await here.receive_some(1 << 16)
    assert encode_headers([("grpc-status", "0")]) in answer
    assert b"\x08\xa0\x9c\x01\x12\x02OK" in answer
    assert sum(front.broker.store.max_offset("orders", queue) for queue in range(4)) == 1


@simulated
async def test_windows_are_given_back_before_they_are_used_up(cluster):
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    await trio.sleep(0.01)
    with trio.fail_after(5):
        large = await client.call("SendMessage", send_request(message(body=bytes(3 * 1024 * 1024))))
        assert large.status.code == m.MESSAGE_BODY_TOO_LARGE
        for _ in range(60):
            answer = await client.call("SendMessage", send_request(message(body=bytes(90_000))))
            assert answer.status.code == m.OK
    (connection,) = front.service.server.connections
    assert isinstance(connection, Http2Connection)
    assert connection.open_streams == 0


@simulated
async def test_windows_that_grow_a_thousand_times_are_used_once_per_piece(cluster, monkeypatch):
    """Each pass over the answers that wait for a window looks at up to a thousand streams."""
    passes = []
    send_queued = Http2Connection._send_queued

    def count_passes(connection):
        passes.append(connection)
        send_queued(connection)

    monkeypatch.setattr(Http2Connection, "_send_queued", count_passes)
    front = await open_front(cluster)
    await is_closed_after(front, PREFACE + frame(4, 0, 0) + frame(8, 0, 0, b"\0\0\0\1") * 1000)
    assert 1 <= len(passes) <= 5


@simulated
async def test_random_bytes_and_mutated_requests_end_at_most_their_connection(cluster):
    front = await open_front(cluster)
    front.create_topic()
    recorder = Client(front)
    sent = []
    send_all = recorder.transport.send_all

    async def record(data):
        sent.append(bytes(data))
        await send_all(data)

    recorder.transport.send_all = record
    await recorder.call("SendMessage", send_request(message()))
    good = b"".join(sent)
    generator = random.Random(11)
    for _ in range(300):
        data = bytearray(good)
        for _ in range(generator.randrange(1, 8)):
            at = generator.randrange(len(data))
            match generator.randrange(3):
                case 0:
                    data[at] = generator.randrange(256)
                case 1:
                    del data[at : at + generator.randrange(20)]
                case _:
                    data[at:at] = generator.randbytes(generator.randrange(20))
            data = data or bytearray(b"x")
        await is_closed_after(front, bytes(data))
    assert await still_serves(front)
    assert front.service._running.count == 0


@simulated
async def test_more_streams_than_allowed_end_the_connection(cluster):
    front = await open_front(cluster)
    client = front.client()

    async def flood():
        for _ in range(MAX_STREAMS + 2):
            await client.begin("Telemetry", m.TelemetryCommand)
            client.h2.remote_settings.max_concurrent_streams = 1000
            await trio.sleep(0.01)

    with pytest.raises((trio.BrokenResourceError, ProtocolError)):
        await flood()
    assert await still_serves(front)


@simulated
async def test_a_peer_that_opens_streams_only_to_reset_them_is_sent_away(cluster):
    front = await open_front(cluster)
    client = front.client()

    async def flood():
        for _ in range(FREE_RESETS + 50):
            number = await client.begin("Telemetry", m.TelemetryCommand)
            client.h2.reset_stream(number)
            await client.flush()
            await trio.sleep(0.01)

    with pytest.raises((trio.BrokenResourceError, ProtocolError)):
        await flood()
    assert await still_serves(front)


@simulated
async def test_unfinished_requests_of_one_connection_are_limited(cluster):
    front = await open_front(cluster, limits=ConnectionLimits(max_frame_bytes=100_000, large_read_bytes=1000))
    client = front.client()
    await trio.sleep(0.01)
    unfinished = frame_message(b"x" * 90_000)[:60_000]

    async def flood():
        for _ in range(10):
            number = await client.begin("SendMessage", m.SendMessageResponse)
            for at in range(0, len(unfinished), 16_000):
                await client.send(number, unfinished[at : at + 16_000])
                await trio.sleep(0.01)

    with pytest.raises((trio.BrokenResourceError, ProtocolError)):
        await flood()
    assert await still_serves(front)


@simulated
async def test_a_message_over_the_limit_is_refused_and_the_connection_goes_on(cluster):
    front = await open_front(cluster, limits=ConnectionLimits(max_frame_bytes=10_000))
    front.create_topic()
    client = front.client()
    await trio.sleep(0.01)
    stream = await client.start(
        "SendMessage", send_request(message(body=b"x" * 11_000)), m.SendMessageResponse
    )
    await stream.ended.wait()
    assert stream.status == 8
    assert "frameMaxLength" in stream.headers["grpc-message"]
    assert (await client.call("SendMessage", send_request(message()))).status.code == m.OK


@simulated
async def test_requests_that_are_not_grpc_are_answered_as_http(cluster):
    front = await open_front(cluster)
    client = front.client()
    number = await client.begin("QueryRoute", m.QueryRouteResponse, content_type="text/plain")
    await client.streams[number].ended.wait()
    assert client.streams[number].headers[":status"] == "415"
    number = await client.begin("QueryRoute", m.QueryRouteResponse, **{":method": "GET"})
    await client.streams[number].ended.wait()
    assert client.streams[number].headers[":status"] == "405"


@simulated
async def test_methods_that_are_not_served_are_unimplemented(cluster):
    front = await open_front(cluster)
    client = front.client()
    for method in ("PullMessage", "SyncLiteSubscription", "Nothing"):
        number = await client.begin(method, m.PullMessageResponse)
        await client.streams[number].ended.wait()
        assert client.streams[number].status == 12
        assert method in client.streams[number].headers["grpc-message"]


@simulated
async def test_answers_wait_for_the_windows_of_the_client(cluster):
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    await trio.sleep(0.01)
    await client.receive(poll_s=5)
    for number in range(4):
        answer = await client.call("SendMessage", send_request(message(body=bytes([number]) * 50_000)))
        assert answer.status.code == m.OK
    got = []
    while len(got) < 4:
        got += (await client.receive()).bodies
    assert sorted(got) == [bytes([number]) * 50_000 for number in range(4)]


@simulated
async def test_a_deadline_ends_an_rpc(cluster):
    front = await open_front(cluster)
    client = front.client()
    number = await client.begin("Telemetry", m.TelemetryCommand, grpc_timeout="300m")
    await client.streams[number].ended.wait()
    assert client.streams[number].status == 4


@simulated
async def test_a_stop_sends_clients_away_and_lets_rpcs_end(cluster):
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    stream = await client.start_receive(poll_s=20)
    await trio.sleep(0.5)
    await front.service.stop()
    await stream.ended.wait()
    assert stream.answers[0].status.code == m.MESSAGE_NOT_FOUND
    assert client.goodbye is not None
    await client.closed.wait()


async def open_raw(front, data):
    """Send bytes as a new peer; return its end of the connection and the server's."""
    here, there = memory_stream_pair()
    before = set(front.service.server.connections)
    front.cluster.nursery.start_soon(front.service.server.serve_transport, StreamTransport(there))
    await here.send_all(PREFACE + frame(4, 0, 0) + data)
    await settle()
    (connection,) = set(front.service.server.connections) - before
    return here, connection


def stored_count(front):
    return sum(front.broker.store.max_offset("orders", queue) for queue in range(4))


@simulated
async def test_streams_after_goodbye_are_not_carried_out(cluster):
    """The client sends them again elsewhere: it was told that they are not."""
    front = await open_front(cluster)
    front.create_topic()
    here, connection = await open_raw(front, frame(1, 4, 1, HEADERS) + frame(0, 1, 1, ENCODED))
    connection.announce_end()
    await here.send_all(frame(1, 4, 3, HEADERS) + frame(0, 1, 3, ENCODED))
    await settle()
    assert stored_count(front) == 1
    assert not connection.closed


@simulated
async def test_headers_of_waiting_requests_count_as_input(cluster):
    front = await open_front(cluster)
    long_header = encode_headers([("x", "y" * 10_000)])
    _, connection = await open_raw(
        front, b"".join(frame(1, 4, number, HEADERS + long_header) for number in range(1, 21, 2))
    )
    assert connection.input_bytes > 100_000


@simulated
async def test_too_many_unfinished_requests_are_refused_one_by_one(cluster):
    front = await open_front(cluster, limits=ConnectionLimits(max_frame_bytes=100_000, large_read_bytes=1000))
    front.create_topic()
    client = front.client()
    await trio.sleep(0.01)
    unfinished = frame_message(b"x" * 90_000)[:60_000]
    numbers = [await client.begin("SendMessage", m.SendMessageResponse) for _ in range(6)]
    for at in range(0, len(unfinished), 16_000):
        for number in numbers:
            if not client.streams[number].ended.is_set():
                await client.send(number, unfinished[at : at + 16_000])
                await trio.sleep(0.01)
    refusals = [client.streams[number].status for number in numbers if client.streams[number].ended.is_set()]
    assert refusals
    assert set(refusals) == {8}
    (connection,) = front.service.server.connections
    assert connection.input_bytes <= 2 * 100_000 + 20_000
    assert (await client.call("SendMessage", send_request(message()))).status.code == m.OK


@simulated
async def test_two_messages_of_a_unary_request_get_one_answer(cluster):
    front = await open_front(cluster)
    front.create_topic()
    here, connection = await open_raw(front, frame(1, 4, 1, HEADERS) + frame(0, 1, 1, ENCODED + ENCODED))
    answer = await here.receive_some(1 << 16)
    assert answer.count(encode_headers([("grpc-status", "0")])) == 1
    assert encode_headers([("grpc-status", "12")]) not in answer
    assert (connection.open_streams, connection.output_bytes) == (0, 0)


@simulated
async def test_an_answer_that_waits_for_a_window_is_given_up_with_its_stream(cluster):
    front = await open_front(cluster)
    front.create_topic()
    no_window = frame(4, 0, 0, b"\0\4\0\0\0\0")
    unread_before = Http2Connection.unread_bytes
    _, connection = await open_raw(
        front, no_window + frame(1, 4, 1, HEADERS) + frame(0, 0, 1, ENCODED + ENCODED)
    )
    assert connection.output_bytes == 0
    assert Http2Connection.unread_bytes == unread_before


@simulated
async def test_a_message_after_the_end_of_a_telemetry_stream_is_ignored(cluster):
    front = await open_front(cluster)
    front.create_topic()
    settings = frame_message(m.TelemetryCommand(settings=m.Settings(client_type=77)).SerializeToString())
    _, connection = await open_raw(front, frame(1, 4, 1, TELEMETRY))
    connection._streams[1].handler.stop_reading()
    connection._streams[1].handler.receive(settings)
    assert not connection.closed


@simulated
async def test_late_trailers_are_counted_like_resets(cluster):
    front = await open_front(cluster)
    flood = frame(1, 5, 1, HEADERS) + frame(1, 5, 1, b"\x20" * 100) * (FREE_RESETS + 5)
    assert await is_closed_after(front, PREFACE + frame(4, 0, 0) + flood)


@simulated
async def test_a_smaller_table_of_headers_is_taken_note_of(cluster):
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    await trio.sleep(0.01)
    client.h2.update_settings({1: 0})
    await client.flush()
    await trio.sleep(0.01)
    for _ in range(2):
        assert (await client.call("SendMessage", send_request(message()))).status.code == m.OK


@simulated
async def test_a_peer_that_does_not_read_does_not_hold_up_a_stop(cluster):
    front = await open_front(cluster)
    _, connection = await open_raw(front, frame(6, 0, 0, bytes(8)) * 1000)
    connection._sending = True
    begin_s = trio.current_time()
    await front.service.stop()
    assert trio.current_time() - begin_s < 30


@simulated
async def test_trailers_take_note_of_a_table_that_became_smaller_after_the_headers(cluster):
    front = await open_front(cluster)
    here, connection = await open_raw(front, frame(4, 0, 0, b"\0\4\0\0\0\0") + frame(1, 4, 1, TELEMETRY))
    connection.send_headers(1, HEADERS)
    connection.send_data(1, b"waits")
    await here.send_all(frame(4, 0, 0, b"\0\1\0\0\0\0"))
    await settle()
    connection.send_trailers(1, encode_headers([("grpc-status", "0")]))
    await here.send_all(frame(8, 0, 1, b"\0\0\1\0"))
    await settle()
    answer = await here.receive_some(1 << 16)
    assert b"\x20" + encode_headers([("grpc-status", "0")]) in answer
