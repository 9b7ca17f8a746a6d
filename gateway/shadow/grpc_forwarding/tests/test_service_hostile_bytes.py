"""Bytes that are no HTTP/2 from either side: they end one session, and nothing else."""

import random
from contextlib import suppress

import pytest
import trio
from trio.testing import memory_stream_pair

from gateway.grpc_front import messages as m
from gateway.grpc_front.framing import frame_message
from gateway.grpc_front.http2_frames import PREFACE, Flag, Kind, encode_frame, encode_headers, encode_settings
from gateway.grpc_front.tests.world import Client
from gateway.shadow.grpc_forwarding.tests.fake_proxy import Call, World, opened, simulated
from remoting.transport import StreamTransport

ROUNDS = 60
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/apache.rocketmq.v2.MessagingService/QueryRoute"),
    ("content-type", "application/grpc"),
]


async def answer_heartbeats(call: Call) -> None:
    if call.method == "Heartbeat":
        await call.answer(m.HeartbeatResponse(status=m.Status(code=m.OK)))


async def check_served(world: World, client: Client) -> None:
    assert (await client.call("Heartbeat", m.HeartbeatRequest())).status.code == m.OK
    assert world.metrics()["grpc_calls_running", "Heartbeat"] == 0


async def until_called(world: World, number: int) -> list[Call]:
    """Wait for the call of a connection that is opened after this number of others."""
    while True:
        calls = [call for call in world.proxy.calls if call.method == "QueryRoute"]
        if len(calls) > number:
            return calls[number:]
        await trio.sleep(0.01)


def damaged(frames: list[bytes], seed: int) -> bytes:
    """Return frames of which some are repeated, left out, cut, or have other bytes."""
    chance = random.Random(seed)
    stream = []
    for frame in frames:
        match chance.randrange(6):
            case 0:
                stream += [frame, frame]
            case 1:
                stream.append(frame[: chance.randrange(len(frame) + 1)])
            case 2:
                octets = bytearray(frame)
                for _ in range(chance.randrange(1, 4)):
                    octets[chance.randrange(len(octets))] = chance.randrange(256)
                stream.append(bytes(octets))
            case 3:
                pass
            case _:
                stream.append(frame)
    return b"".join(stream)


def client_frames() -> list[bytes]:
    request = m.QueryRouteRequest(topic=m.Resource(name="orders"))
    body = frame_message(request.SerializeToString())
    frames = [encode_settings({4: 70_000})]
    for stream_id in (1, 3, 5):
        frames += [
            encode_frame(Kind.HEADERS, Flag.END_HEADERS, stream_id, encode_headers(HEADERS)),
            encode_frame(Kind.DATA, Flag.END_STREAM, stream_id, body),
            encode_frame(Kind.WINDOW_UPDATE, 0, stream_id, (1000).to_bytes(4, "big")),
            encode_frame(Kind.RST_STREAM, 0, stream_id, (8).to_bytes(4, "big")),
        ]
    return [*frames, encode_frame(Kind.PING, 0, 0, bytes(8)), encode_frame(Kind.GOAWAY, 0, 0, bytes(8))]


def proxy_frames(stream_id: int) -> list[bytes]:
    answer = m.QueryRouteResponse(status=m.Status(code=m.OK))
    answer.message_queues.add(id=1, topic=m.Resource(name="orders"))
    head = encode_headers([(":status", "200"), ("content-type", "application/grpc")])
    ends = Flag.END_HEADERS | Flag.END_STREAM
    return [
        encode_settings({3: 100}),
        encode_frame(Kind.HEADERS, Flag.END_HEADERS, stream_id, head),
        encode_frame(Kind.DATA, 0, stream_id, frame_message(answer.SerializeToString())),
        encode_frame(Kind.HEADERS, ends, stream_id, encode_headers([("grpc-status", "0")])),
        encode_frame(Kind.RST_STREAM, 0, stream_id, bytes(4)),
        encode_frame(Kind.PING, 0, 0, bytes(8)),
        encode_frame(Kind.GOAWAY, 0, 0, bytes(8)),
    ]


@pytest.mark.parametrize("begins_well", [True, False])
@simulated
async def test_a_client(caplog, begins_well):
    async with opened() as world:
        world.proxy.answer = answer_heartbeats
        healthy = world.client("healthy")
        for seed in range(ROUNDS):
            client_end, gateway_end = memory_stream_pair()
            world.nursery.start_soon(world.forwarder.server.serve_transport, StreamTransport(gateway_end))
            with trio.move_on_after(1), suppress(trio.BrokenResourceError):
                start = PREFACE if begins_well else b""
                await client_end.send_all(start + damaged(client_frames(), seed))
                await trio.testing.wait_all_tasks_blocked()
            await trio.aclose_forcefully(client_end)
            await check_served(world, healthy)
        await trio.sleep(10)
        assert world.metrics().get(("grpc_calls_running", "QueryRoute"), 0) == 0
        assert len(world.forwarder.server.connections) == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@simulated
async def test_a_proxy(caplog, monkeypatch):
    async with opened() as world:
        world.proxy.answer = answer_heartbeats
        healthy = world.client("healthy")
        await check_served(world, healthy)
        for seed in range(ROUNDS):
            client = world.client("victim")
            client.h2.config.header_encoding = "latin-1"
            stream = await client.start("QueryRoute", m.QueryRouteRequest(), m.QueryRouteResponse)
            monkeypatch.setattr(stream, "take", lambda _: None)
            (call,) = await until_called(world, seed)
            with trio.move_on_after(1), suppress(trio.BrokenResourceError):
                await call.connection.stream.send_all(damaged(proxy_frames(call.stream_id), seed))
                await stream.ended.wait()
            await trio.aclose_forcefully(client.transport)
            await check_served(world, healthy)
        await trio.sleep(10)
        assert world.metrics().get(("grpc_calls_running", "QueryRoute"), 0) == 0
        assert len(world.forwarder.server.connections) == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
