"""Calls that are passed on to the primary's Proxy: unchanged but for addresses, bounded, and ended cleanly."""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import cast

import pytest
import trio

from gateway.grpc_front import messages as m
from gateway.grpc_front.framing import frame_message
from gateway.grpc_front.http2_connection import CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES
from gateway.grpc_front.http2_frames import (
    MAX_WINDOW_BYTES,
    ErrorCode,
    Flag,
    Kind,
    encode_frame,
    encode_goodbye,
    encode_headers,
)
from gateway.grpc_front.request_size import MAX_FIELDS
from gateway.grpc_front.routes import endpoints_of
from gateway.grpc_front.tests.world import (
    Client,
    Stream,
    message,
    producer_settings,
    receive_request,
    send_request,
)
from gateway.shadow.clusters.endpoints import UpstreamTls
from gateway.shadow.grpc_forwarding.client_connection import ClientConnection
from gateway.shadow.grpc_forwarding.forwarded_call import (
    DEADLINE_GRACE_S,
    MAX_REQUESTS_PER_FRAME,
    MAX_TRANSLATED_REQUEST_BYTES,
    ForwardedCall,
)
from gateway.shadow.grpc_forwarding.proxy_connection import MAX_PING_S, SILENCE_S
from gateway.shadow.grpc_forwarding.service import CHECK_INTERVAL_S, GrpcForwarder
from gateway.shadow.grpc_forwarding.tests.fake_proxy import (
    OK_HEAD,
    PROXY_HOST,
    PROXY_PORT,
    Call,
    FakeProxy,
    World,
    opened,
    simulated,
)
from gateway.shadow.proxy.client_listener import MAX_CONCURRENT_DIALS
from gateway.shadow.proxy.settings import ListenSettings
from remoting.certificates import CertificateAuthority
from remoting.tls import server_context
from toolkit.settings import SettingsError

GATEWAY = endpoints_of(("10.0.1.1", 8081))
PROXY = endpoints_of((PROXY_HOST, PROXY_PORT))
DIALLED = endpoints_of(("gateway.example", 18081))
CANCEL, REFUSED_STREAM = 8, 7


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def echo_settings(call: Call) -> None:
    await call.answer(m.HeartbeatResponse(status=m.Status(code=m.OK)))


async def until(condition) -> None:
    while not condition():
        await trio.sleep(0.01)


def route(queues: int, endpoints: m.Endpoints = PROXY) -> m.QueryRouteResponse:
    answer = m.QueryRouteResponse(status=m.Status(code=m.OK))
    for number in range(queues):
        answer.message_queues.add(
            topic=m.Resource(name="orders"), id=number, broker=m.Broker(name="a", endpoints=endpoints)
        )
    return answer


async def start_receive(world: World) -> tuple[Client, Stream, Call]:
    """Start a receive of a new client; return them, and the call as the Proxy sees it."""
    client = world.client()
    stream = await client.start_receive()
    return client, stream, await world.proxy.call()


async def start_query(client: Client, endpoints: m.Endpoints | None = None) -> Stream:
    """Ask for a route."""
    request = m.QueryRouteRequest(topic=m.Resource(name="orders"), endpoints=endpoints)
    return await client.start("QueryRoute", request, m.QueryRouteResponse)


@asynccontextmanager
async def unread_send() -> AsyncIterator[tuple[World, Client, int]]:
    """Begin a send at a Proxy that reads nothing; yield the gateway, the client, and the number of the stream."""
    async with opened() as world:
        world.proxy.reads = False
        client = world.client()
        yield world, client, await client.begin("SendMessage", m.SendMessageResponse)


# -- what passes ---------------------------------------------------------------------------------------------------


@simulated
async def test_headers_pass_untouched_and_the_answer_comes_back_with_its_trailers():
    async with opened() as world:
        client = world.client(
            authorization="MQv2-HMAC-SHA1 Credential=clerk", x_mq_date_time="20261127T050000Z"
        )
        stream = await client.start("SendMessage", send_request(message()), m.SendMessageResponse)
        call = await world.proxy.call()
        await until(lambda: call.is_complete)
        assert call.headers["authorization"] == "MQv2-HMAC-SHA1 Credential=clerk"
        assert call.headers["x-mq-client-id"] == "client-1"
        assert call.headers["te"] == "trailers"
        assert (call.headers[":authority"], call.headers[":scheme"]) == (f"{PROXY_HOST}:{PROXY_PORT}", "http")
        assert call.request == send_request(message())
        answer = m.SendMessageResponse(status=m.Status(code=m.UNAUTHORIZED, message="no"))
        await call.answer(answer, trailers=[("grpc-status", "0"), ("x-proxy", "p1")])
        await stream.ended.wait()
        assert stream.answers == [answer]
        assert stream.headers["x-proxy"] == "p1"
        metrics = world.metrics()
        assert metrics["grpc_calls_total", "SendMessage", "UNAUTHORIZED"] == 1
        assert metrics["grpc_calls_running", "SendMessage"] == 0
        assert metrics["grpc_forward_connections",] == 1


@simulated
async def test_repeated_headers_stay_repeated():
    async with opened() as world:
        client = world.client()
        number = client.h2.get_next_available_stream_id()
        await client.begin("Heartbeat", m.HeartbeatResponse)
        client.h2.send_headers(
            number + 2,
            [
                *[(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", "/a/B")],
                *[("content-type", "application/grpc"), ("x-a", "1"), ("x-a", "2")],
            ],
        )
        await client.flush()
        call = await world.proxy.call(1)
        assert [value for name, value in call.fields if name == "x-a"] == ["1", "2"]
        assert call.headers[":path"] == "/a/B"
        assert world.metrics()["grpc_calls_running", "other"] == 1


@simulated
async def test_statuses_of_the_transport_pass():
    async with opened() as world:
        client = world.client()
        stream = await client.start("Heartbeat", m.HeartbeatRequest(), m.HeartbeatResponse)
        call = await world.proxy.call()
        head = [*OK_HEAD, ("grpc-status", "16"), ("grpc-message", "who are you")]
        call.connection.h2.send_headers(call.stream_id, head, end_stream=True)
        await call.connection.flush()
        await stream.ended.wait()
        assert (stream.status, stream.headers["grpc-message"]) == (16, "who are you")
        assert world.metrics()["grpc_calls_total", "Heartbeat", "UNAUTHENTICATED"] == 1


@simulated
async def test_messages_of_a_stream_come_as_the_proxy_sends_them():
    async with opened() as world:
        _, stream, call = await start_receive(world)
        call.connection.h2.send_headers(call.stream_id, OK_HEAD)
        for number in range(3):
            answer = m.ReceiveMessageResponse(message=message(body=b"%d" % number))
            await call.connection.send(call.stream_id, frame_message(answer.SerializeToString()))
            assert (await stream.next()).message.body == b"%d" % number
        call.connection.h2.send_headers(call.stream_id, [("grpc-status", "0")], end_stream=True)
        await call.connection.flush()
        await stream.ended.wait()
        assert stream.status == 0


@simulated
async def test_calls_that_are_not_grpc_do_not_reach_the_proxy():
    async with opened() as world:
        client = world.client()
        number = await client.begin("Heartbeat", m.HeartbeatResponse, content_type="text/html")
        await client.streams[number].ended.wait()
        assert client.streams[number].headers[":status"] == "415"
        assert not world.proxy.calls


# -- addresses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialled", "shown"), [(DIALLED, DIALLED), (None, GATEWAY)], ids=["named", "unnamed"]
)
@pytest.mark.parametrize("queues", [3, 5000])
@simulated
async def test_routes_name_the_gateway(dialled, shown, queues):
    """A long one is translated in slices, and its trailers wait for it."""
    async with opened() as world:
        client = world.client()
        stream = await start_query(client, dialled)
        call = await world.proxy.call()
        await until(lambda: call.is_complete)
        assert call.request.endpoints == (PROXY if dialled else m.Endpoints())
        await call.answer(route(queues))
        await stream.ended.wait()
        assert stream.answers == [route(queues, shown)]
        assert stream.status == 0
        assert world.metrics()["grpc_calls_total", "QueryRoute", "OK"] == 1


@simulated
async def test_assignments_name_the_gateway_and_receives_name_the_proxy():
    async with opened() as world:
        client = world.client()
        request = m.QueryAssignmentRequest(topic=m.Resource(name="orders"), endpoints=DIALLED)
        stream = await client.start("QueryAssignment", request, m.QueryAssignmentResponse)
        call = await world.proxy.call()
        answer = m.QueryAssignmentResponse(status=m.Status(code=m.OK))
        answer.assignments.add().message_queue.broker.endpoints.CopyFrom(PROXY)
        await call.answer(answer)
        await stream.ended.wait()
        queue = stream.answers[0].assignments[0].message_queue
        assert queue.broker.endpoints == DIALLED
        receive = receive_request()
        receive.message_queue.CopyFrom(queue)
        await client.start("ReceiveMessage", receive, m.ReceiveMessageResponse)
        call = await world.proxy.call(1)
        await until(lambda: call.is_complete)
        assert call.request.message_queue.broker.endpoints == PROXY


@simulated
async def test_settings_name_the_gateway_on_either_way():
    async with opened() as world:
        client = world.client()
        settings = producer_settings("orders")
        settings.access_point.CopyFrom(DIALLED)
        number = await client.begin("Telemetry", m.TelemetryCommand)
        await client.send(number, frame_message(m.TelemetryCommand(settings=settings).SerializeToString()))
        stream = client.streams[number]
        call = await world.proxy.call()
        await until(lambda: call.requests)
        proxy_settings = m.TelemetryCommand.FromString(call.requests[0]).settings
        assert proxy_settings.access_point == PROXY
        proxy_settings.metric.on = True
        proxy_settings.metric.endpoints.CopyFrom(PROXY)
        call.connection.h2.send_headers(call.stream_id, OK_HEAD)
        for command in (
            m.TelemetryCommand(settings=proxy_settings),
            m.TelemetryCommand(status=m.Status(code=m.OK)),
        ):
            await call.connection.send(call.stream_id, frame_message(command.SerializeToString()))
        client_settings = (await stream.next()).settings
        assert (client_settings.access_point, client_settings.metric.endpoints) == (DIALLED, DIALLED)
        assert (await stream.next()).status.code == m.OK
        # A collector elsewhere is not the Proxy, and stays.
        proxy_settings.metric.endpoints.CopyFrom(endpoints_of(("collector", 4317)))
        command = m.TelemetryCommand(settings=proxy_settings)
        await call.connection.send(call.stream_id, frame_message(command.SerializeToString()))
        assert (await stream.next()).settings.metric.endpoints == endpoints_of(("collector", 4317))


@simulated
async def test_the_advertised_host_is_told_to_clients_that_name_none():
    async with opened(advertise="mq.example") as world:
        stream = await start_query(world.client())
        await (await world.proxy.call()).answer(route(1))
        await stream.ended.wait()
        assert stream.answers == [route(1, endpoints_of(("mq.example", 8081)))]


@simulated
async def test_answers_that_are_no_messages_pass_as_they_are(monkeypatch):
    async with opened() as world:
        client = world.client()
        number = await client.begin("QueryRoute", m.QueryRouteResponse)
        await client.send(number, frame_message(b"\xff\xff"), end=True)
        stream = client.streams[number]
        answers = []
        monkeypatch.setattr(stream, "take", answers.append)
        call = await world.proxy.call()
        await until(lambda: call.is_complete)
        assert call.requests == [b"\xff\xff"]
        call.connection.h2.send_headers(call.stream_id, OK_HEAD)
        await call.connection.send(call.stream_id, frame_message(b"\xff\xff"))
        await until(lambda: answers)
        assert answers == [frame_message(b"\xff\xff")]


@simulated
async def test_requests_that_must_be_read_are_bounded():
    async with opened() as world:
        client = world.client()
        number = await client.begin("QueryRoute", m.QueryRouteResponse)
        await client.send(number, b"\0" + (MAX_TRANSLATED_REQUEST_BYTES + 1).to_bytes(4, "big"))
        await client.streams[number].ended.wait()
        assert client.streams[number].status == 8
        call = await world.proxy.call()
        await until(lambda: call.reset is not None)
        assert call.reset == CANCEL


EMPTY_SETTINGS = b"\x12\0"


@pytest.mark.parametrize(
    "requests",
    [frame_message(EMPTY_SETTINGS * (MAX_FIELDS + 1)), frame_message(b"") * (MAX_REQUESTS_PER_FRAME + 1)],
    ids=["fields", "messages"],
)
@simulated
async def test_what_one_frame_of_a_client_costs_is_bounded(requests):
    """Two bytes are a field, and gzip packs a thousand of them into one: they are all looked at in one turn."""
    async with opened() as world:
        client = world.client()
        number = await client.begin("Telemetry", m.TelemetryCommand)
        await client.send(number, requests)
        await client.streams[number].ended.wait()
        assert client.streams[number].status == 8
        assert (await world.proxy.call()).requests == []


@simulated
async def test_repeated_settings_are_those_that_a_proxy_reads():
    async with opened() as world:
        client = world.client()
        number = await client.begin("Telemetry", m.TelemetryCommand)
        settings = producer_settings("orders")
        settings.access_point.CopyFrom(DIALLED)
        command = m.TelemetryCommand(settings=settings).SerializeToString()
        await client.send(number, frame_message(command + EMPTY_SETTINGS * 8000))
        call = await world.proxy.call()
        await until(lambda: call.requests)
        settings.access_point.CopyFrom(PROXY)
        assert m.TelemetryCommand.FromString(call.requests[0]).settings == settings


@simulated
async def test_answers_that_wait_to_be_translated_are_bounded():
    """They count after the Proxy has ended them, too: only the gateway holds them then."""
    queues = 7000
    async with opened(frame_bytes=1024 * 1024) as world:
        answer_bytes = route(queues).ByteSize()
        client = world.client()
        streams: list[Stream] = []
        await settle()
        (connection,) = world.forwarder.server.connections
        async with world.forwarder._long_work:
            for number in range(2 * 1024 * 1024 // answer_bytes + 1):
                streams.append(await start_query(client))
                await (await world.proxy.call(number)).answer(route(queues))
                await settle()
                if number == 0:
                    assert connection.input_bytes == answer_bytes
            await streams[-1].ended.wait()
            assert streams[-1].status == 8
            client.h2.reset_stream(1, CANCEL)
            await client.flush()
            await settle()
            assert connection.input_bytes == (len(streams) - 2) * answer_bytes
        for stream in streams[1:-1]:
            await stream.ended.wait()
            assert stream.answers == [route(queues, GATEWAY)]
        assert connection.input_bytes == 0


@simulated
async def test_a_client_with_many_long_routes_waits_for_itself():
    async with opened() as world:
        greedy = world.client()
        async with world.forwarder._long_work:
            streams = [await start_query(greedy) for _ in range(20)]
            for number in range(20):
                await (await world.proxy.call(number)).answer(route(500))
            await settle()
            stream = await start_query(world.client("client-2"))
            await (await world.proxy.call(20)).answer(route(500))
            await settle()
        await stream.ended.wait()
        assert stream.answers == [route(500, GATEWAY)]
        assert sum(stream.ended.is_set() for stream in streams) <= 3
        for stream in streams:
            await stream.ended.wait()


# -- ends ----------------------------------------------------------------------------------------------------------


@simulated
async def test_a_client_that_gives_up_ends_the_call_at_the_proxy():
    async with opened() as world:
        client, _, call = await start_receive(world)
        client.h2.reset_stream(call.stream_id, CANCEL)
        await client.flush()
        await until(lambda: call.reset is not None)
        assert call.reset == CANCEL
        assert world.metrics()["grpc_calls_total", "ReceiveMessage", "CANCELLED"] == 1


@simulated
async def test_the_end_of_a_telemetry_stream_passes_either_way():
    """That of the client waits for its data, which the Proxy takes later. A client that stops waits for the answer."""
    async with opened() as world:
        world.proxy.reads = False
        client = world.client()
        number = await client.begin("Telemetry", m.TelemetryCommand)
        trace = m.ThreadStackTrace(thread_stack_trace="x" * 100_000)
        command = m.TelemetryCommand(thread_stack_trace=trace)
        await client.send(number, frame_message(command.SerializeToString()), end=True)
        call = await world.proxy.call()
        await until(lambda: call.connection.unread_bytes == 65_535)
        await settle()
        assert not call.is_complete
        world.proxy.reads = True
        call.connection.h2.acknowledge_received_data(65_535, number)
        await call.connection.flush()
        await until(lambda: call.is_complete)
        assert m.TelemetryCommand.FromString(call.requests[0]) == command
        await call.answer()
        stream = client.streams[number]
        await stream.ended.wait()
        assert stream.status == 0
        assert world.metrics()["grpc_calls_running", "Telemetry"] == 0


@simulated
async def test_a_reset_of_the_proxy_reaches_the_client():
    async with opened() as world:
        _, stream, call = await start_receive(world)
        call.connection.h2.reset_stream(call.stream_id, REFUSED_STREAM)
        await call.connection.flush()
        await stream.ended.wait()
        assert stream.reset


@simulated
async def test_a_client_that_leaves_takes_its_connection_along():
    async with opened() as world:
        client, _, call = await start_receive(world)
        await trio.aclose_forcefully(client.transport)
        await call.connection.closed.wait()
        await settle()
        assert world.metrics()["grpc_calls_running", "ReceiveMessage"] == 0
        assert world.metrics()["grpc_forward_connections",] == 0
        assert world.metrics()["grpc_forward_lost_connections_total",] == 0


@simulated
async def test_a_lost_proxy_ends_its_calls_and_its_clients_only():
    async with opened() as world:
        client = world.client()
        stream, telemetry = await client.start_receive(), await client.begin("Telemetry", m.TelemetryCommand)
        await until(lambda: len(world.proxy.calls) == 2)
        other = world.client("client-2")
        await other.start_receive()
        await until(lambda: len(world.proxy.calls) == 3)
        await world.proxy.calls[0].connection.close()
        await client.closed.wait()
        assert (stream.status, client.streams[telemetry].status) == (14, 14)
        assert client.goodbye is not None
        assert not other.closed.is_set()
        assert world.metrics()["grpc_forward_lost_connections_total",] == 1
        assert world.metrics()["grpc_calls_total", "ReceiveMessage", "UNAVAILABLE"] == 1


@simulated
async def test_a_proxy_that_is_down_is_tried_with_each_connection(caplog):
    async with opened() as world:
        world.proxy.is_down = True
        for _ in range(2):
            await world.client().closed.wait()
        assert world.metrics()["grpc_forward_failed_connects_total",] == 2
        assert sum("cannot be reached" in record.message for record in caplog.records) == 1
        world.proxy.is_down, world.proxy.answer = False, echo_settings
        assert (await world.client().call("Heartbeat", m.HeartbeatRequest())).status.code == m.OK
        assert "reachable again" in caplog.text


@simulated
async def test_a_goodbye_of_the_proxy_is_passed_on():
    """Calls that it carries out go on; later ones were not begun, so that the client may send them again."""
    async with opened() as world:
        client = world.client()
        first, second = await client.start_receive(), await client.start_receive()
        call, late = await world.proxy.call(0), await world.proxy.call(1)
        await call.connection.stream.send_all(encode_goodbye(call.stream_id, ErrorCode.NO_ERROR))
        await second.ended.wait()
        assert second.reset
        assert client.goodbye is not None
        assert late.stream_id > call.stream_id
        assert not first.ended.is_set()
        assert not client.closed.is_set()


@simulated
async def test_a_second_goodbye_of_the_proxy_promises_no_more_streams():
    """A Proxy that stops cleanly sends two. A stream between them is not begun, and its client must not wait for it."""
    async with opened() as world:
        client, _, call = await start_receive(world)
        for last_stream_id in (MAX_WINDOW_BYTES, call.stream_id):
            await call.connection.stream.send_all(encode_goodbye(last_stream_id, ErrorCode.NO_ERROR))
            await settle()
            assert client.goodbye.last_stream_id == call.stream_id
            await client.start_receive()
            await settle()
        await call.connection.close()
        await client.closed.wait()
        assert client.goodbye.last_stream_id == call.stream_id
        assert len(world.proxy.calls) == 1


@simulated
async def test_an_answer_before_the_end_of_its_request():
    async with opened() as world:
        client = world.client()
        number = await client.begin("SendMessage", m.SendMessageResponse)
        call = await world.proxy.call()
        await call.answer(m.SendMessageResponse(status=m.Status(code=m.FORBIDDEN)))
        stream = client.streams[number]
        await stream.ended.wait()
        assert stream.answers[0].status.code == m.FORBIDDEN
        await until(lambda: call.reset is not None)
        assert call.reset == 0
        world.proxy.answer = echo_settings
        assert (await client.call("Heartbeat", m.HeartbeatRequest())).status.code == m.OK


@simulated
async def test_calls_that_are_over_leave_no_cycles():
    async with opened() as world:
        client = world.client()
        world.proxy.answer = echo_settings
        await client.call("Heartbeat", m.HeartbeatRequest())
        await settle()
        gc.collect()
        gc.disable()
        try:
            stream = await start_query(client)
            world.proxy.answer = None
            await (await world.proxy.call(1)).answer(route(3))
            await stream.ended.wait()
            await settle()
            assert not [entry for entry in gc.get_objects() if isinstance(entry, ForwardedCall)]
        finally:
            gc.enable()


# -- time ----------------------------------------------------------------------------------------------------------


@simulated
async def test_a_call_ends_some_time_after_its_deadline():
    async with opened() as world:
        client = world.client()
        stream = await client.start("Heartbeat", m.HeartbeatRequest(), m.HeartbeatResponse, grpc_timeout="3S")
        begin_s = trio.current_time()
        call = await world.proxy.call()
        assert call.headers["grpc-timeout"] == "3S"
        call.connection.proxy.is_mute = True
        await stream.ended.wait()
        assert stream.status == 4
        assert (
            3 + DEADLINE_GRACE_S
            <= trio.current_time() - begin_s
            <= 3 + DEADLINE_GRACE_S + CHECK_INTERVAL_S + 1
        )


@simulated
async def test_a_proxy_that_has_stopped_answering_is_left():
    async with opened() as world:
        client, _, call = await start_receive(world)
        await settle()
        begin_s = trio.current_time()
        world.proxy.is_mute = True
        stream = await client.start("Heartbeat", m.HeartbeatRequest(), m.HeartbeatResponse)
        await stream.ended.wait()
        assert stream.status == 14
        assert call.connection.pings == 1
        assert trio.current_time() - begin_s <= SILENCE_S + MAX_PING_S + 2 * CHECK_INTERVAL_S + 1


@simulated
async def test_a_quiet_proxy_that_answers_pings_is_kept():
    async with opened() as world:
        client, _, call = await start_receive(world)
        await settle()
        stream = await client.start("Heartbeat", m.HeartbeatRequest(), m.HeartbeatResponse)
        await trio.sleep(100)
        assert call.connection.pings == 1
        assert not stream.ended.is_set()


@simulated
async def test_a_proxy_that_does_not_greet_is_left():
    async with opened(connect_s=2.0) as world:
        world.proxy.is_mute = True
        begin_s = trio.current_time()
        await world.client().closed.wait()
        assert 2 <= trio.current_time() - begin_s < 3
        assert world.metrics()["grpc_forward_failed_connects_total",] == 1


@simulated
async def test_stopping_waits_for_calls_and_sends_clients_away():
    async with opened(drain_s=5.0) as world:
        client = world.client()
        stream = await client.start("Heartbeat", m.HeartbeatRequest(), m.HeartbeatResponse)
        await client.begin("Telemetry", m.TelemetryCommand)
        call = await world.proxy.call()
        world.nursery.start_soon(world.forwarder.stop)
        await until(lambda: client.goodbye is not None)
        await trio.sleep(1)
        await call.answer(m.HeartbeatResponse(status=m.Status(code=m.OK)))
        await client.closed.wait()
        assert stream.answers[0].status.code == m.OK
        assert stream.status == 0


# -- backpressure --------------------------------------------------------------------------------------------------


@simulated
async def test_a_proxy_that_does_not_read_stops_its_client_at_the_window():
    async with unread_send() as (world, client, number):
        with trio.move_on_after(0.5):
            await client.send(number, bytes(8 * 1024 * 1024))
        call = await world.proxy.call()
        await settle()
        (connection,) = world.forwarder.server.connections
        # h2 announces the smallest windows.
        assert len(call.data) <= 65_535
        assert connection.output_bytes <= STREAM_WINDOW_BYTES
        assert client.h2.local_flow_control_window(number) == 0
        # Other calls of this client still end.
        client.h2.reset_stream(number, CANCEL)
        await client.flush()
        await until(lambda: call.reset is not None)
        assert connection.output_bytes == 0


@simulated
async def test_tiny_frames_that_wait_take_little_more_memory_than_their_data():
    """An object of its own for each byte would take two hundred times as much as what is counted."""
    async with unread_send() as (world, client, number):
        await settle()
        await client.send(number, bytes(65_535))
        for _ in range(5000):
            client.h2.send_data(number, b"x")
        await client.flush()
        (connection,) = world.forwarder.server.connections
        await until(lambda: connection.output_bytes == 5000)
        stream = cast(ClientConnection, connection).proxy._streams[number]
        assert b"".join(stream.chunks) == b"x" * 5000
        assert len(stream.chunks) <= 10


@simulated
async def test_a_client_that_does_not_read_stops_the_proxy_and_nobody_else():
    async with opened() as world:
        slow, other = world.client(), world.client("client-2")
        slow_number = await slow.begin("ReceiveMessage", m.ReceiveMessageResponse)
        slow.h2.acknowledge_received_data = lambda *_: None
        call = await world.proxy.call()
        call.connection.h2.send_headers(call.stream_id, OK_HEAD)
        with trio.move_on_after(0.5):
            await call.connection.send(call.stream_id, frame_message(bytes(8 * 1024 * 1024)))
        await settle()
        assert call.connection.h2.local_flow_control_window(call.stream_id) == 0
        largest = max(connection.output_bytes for connection in world.forwarder.server.connections)
        assert 0 < largest <= STREAM_WINDOW_BYTES
        world.proxy.answer = echo_settings
        assert (await other.call("Heartbeat", m.HeartbeatRequest())).status.code == m.OK
        assert not slow.streams[slow_number].ended.is_set()


@simulated
async def test_windows_are_given_back_for_what_was_dropped():
    """Four of these would use up the connection's window otherwise."""
    async with opened() as world:
        world.proxy.reads = False
        client = world.client()
        for number in range(2 * CONNECTION_WINDOW_BYTES // STREAM_WINDOW_BYTES):
            stream_id = await client.begin("SendMessage", m.SendMessageResponse)
            with trio.move_on_after(0.3):
                await client.send(stream_id, bytes(STREAM_WINDOW_BYTES - 100))
            await world.proxy.call(number)
            client.h2.reset_stream(stream_id, CANCEL)
            await client.flush()
            await settle()
        assert not client.closed.is_set()
        assert client.h2.outbound_flow_control_window > CONNECTION_WINDOW_BYTES // 4


@simulated
async def test_large_messages_pass_either_way():
    body = bytes(range(256)) * 12_000
    async with opened() as world:
        client = world.client()
        stream = await client.start("SendMessage", send_request(message(body=body)), m.SendMessageResponse)
        call = await world.proxy.call()
        await until(lambda: call.is_complete)
        assert call.request.messages[0].body == body
        answer = m.SendMessageResponse(status=m.Status(code=m.OK, message="x" * len(body)))
        await call.answer(answer)
        await stream.ended.wait()
        assert stream.answers == [answer]


@simulated
async def test_more_data_than_the_window_allows_ends_the_connection(caplog):
    async with unread_send() as (world, client, number):
        await world.proxy.call()
        frame = (16_384).to_bytes(3, "big") + b"\0\0" + number.to_bytes(4, "big") + bytes(16_384)
        for _ in range(STREAM_WINDOW_BYTES // 16_384 + 5):
            with trio.move_on_after(1), suppress(trio.BrokenResourceError):
                await client.transport.send_all(frame)
        await client.closed.wait()
        assert any("than its window allows" in record.reason for record in caplog.records)


@simulated
async def test_the_proxys_limit_of_streams_is_that_of_its_clients():
    async with opened(grpc_streams=100) as world:
        world.proxy.max_streams = 7
        client, _, _ = await start_receive(world)
        await settle()
        assert client.h2.remote_settings.max_concurrent_streams == 7


@simulated
async def test_streams_of_one_connection_are_bounded():
    async with opened(grpc_streams=3) as world:
        client = world.client()
        for _ in range(3):
            await client.start_receive()
        await until(lambda: len(world.proxy.calls) == 3)
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/a/b"),
            ("content-type", "application/grpc"),
        ]
        await client.transport.send_all(
            encode_frame(Kind.HEADERS, Flag.END_HEADERS, 7, encode_headers(headers))
        )
        await client.closed.wait()
        assert len(world.proxy.calls) == 3


@simulated
async def test_few_connections_are_opened_at_a_time():
    async with opened(connect_s=2.0) as world:
        world.proxy.is_mute = True
        clients = [world.client() for _ in range(MAX_CONCURRENT_DIALS + 10)]
        await settle()
        assert len(world.proxy.connections) == MAX_CONCURRENT_DIALS
        for client in clients:
            await client.closed.wait()
        assert len(world.proxy.connections) == len(clients)


# -- the port ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_of_this_gateway_is_not_the_proxy(host):
    """Each connection would open the next one."""

    async def start() -> None:
        sockets = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = sockets[0].socket.getsockname()[1]
        listen = ListenSettings(host="127.0.0.1", grpc_port=0, grpc_forward_to=f"{host}:{port}")
        forwarder = GrpcForwarder(listen, UpstreamTls(), is_own_port=lambda number: number == port)
        async with trio.open_nursery() as nursery:
            with pytest.raises(SettingsError, match=r"listen\.grpc_forward_to: .* is a port of this gateway"):
                await forwarder.start(nursery)
        await sockets[0].aclose()

    trio.run(start)


@pytest.mark.parametrize("setting", ["connections", "connections_per_address"])
def test_a_refused_client_is_logged_with_the_setting(caplog, setting):
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            proxy = FakeProxy(nursery)
            listen = ListenSettings(
                host="127.0.0.1", grpc_port=0, grpc_forward_to="10.9.9.9:8081", **{setting: 1}
            )
            forwarder = GrpcForwarder(
                listen, UpstreamTls(), is_own_port=lambda _: False, open_plain=proxy.open
            )
            port = await forwarder.start(nursery)
            first = await trio.open_tcp_stream("127.0.0.1", port)
            assert await first.receive_some()
            second = await trio.open_tcp_stream("127.0.0.1", port)
            assert not await second.receive_some()
            await first.aclose()
            await second.aclose()
            nursery.cancel_scope.cancel()

    trio.run(run)
    (record,) = (record for record in caplog.records if record.message.startswith("connection refused"))
    assert (record.setting, record.limit) == (f"listen.{setting}", 1)


def test_tls_to_the_proxy_is_that_of_the_primary(tmp_path):
    """It offers HTTP/2, without which a gRPC server takes no connection, and verifies the Proxy's certificate."""
    authority = CertificateAuthority.create(tmp_path)
    files = authority.issue("proxy", ["127.0.0.1"])

    async def run(ca: str) -> str | None:
        context = server_context(files.certificate, files.key)
        context.set_alpn_protocols(["h2"])
        protocols: list[str | None] = []

        async def serve(stream: trio.SSLStream[trio.SocketStream]) -> None:
            with suppress(trio.BrokenResourceError):
                await stream.do_handshake()
                protocols.append(stream.selected_alpn_protocol())
                await stream.receive_some()

        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(
                partial(trio.serve_ssl_over_tcp, serve, 0, context, host="127.0.0.1")
            )
            port = listeners[0].transport_listener.socket.getsockname()[1]
            listen = ListenSettings(
                host="127.0.0.1", grpc_port=0, grpc_forward_to=f"127.0.0.1:{port}", connect_s=2.0
            )
            forwarder = GrpcForwarder(listen, UpstreamTls(enabled=True, ca=ca), is_own_port=lambda _: False)
            front_port = await forwarder.start(nursery)
            client = await trio.open_tcp_stream("127.0.0.1", front_port)
            while await client.receive_some():
                pass
            await client.aclose()
            nursery.cancel_scope.cancel()
        return protocols[0] if protocols else None

    assert trio.run(run, str(authority.files.certificate)) == "h2"
    assert trio.run(run, "") is None
