"""The counts of RPCs as metrics."""

from gateway.grpc_front import messages as m
from gateway.grpc_front.rpc_counts import RpcCounts, name_code, rpc_metrics
from gateway.grpc_front.tests.world import message, open_front, producer_settings, send_request
from gateway.runtime.metrics import Distribution, LatencyHistogram
from gateway.tests.cluster import settle, simulated


def shown(front):
    """Return the values of the metrics of a front by name, method and code; a histogram has its number of calls."""
    return {
        (each.name, each.labels["method"], each.labels.get("code", "")): (
            each.histogram.count if isinstance(each, Distribution) else each.value
        )
        for each in front.service.metrics()
    }


@simulated
async def test_calls_are_counted_by_their_status_and_streams_while_they_are_open(cluster):
    front = await open_front(cluster)
    front.create_topic()
    assert shown(front) == {}
    client = front.client()
    await client.call("SendMessage", send_request(message()))
    await client.call("SendMessage", send_request(message("no-such-topic")))
    telemetry = await client.tell_settings(producer_settings("orders"))
    assert shown(front) == {
        ("grpc_calls_total", "SendMessage", "OK"): 1,
        ("grpc_calls_total", "SendMessage", "TOPIC_NOT_FOUND"): 1,
        ("grpc_calls_running", "SendMessage", ""): 0,
        ("grpc_call_seconds", "SendMessage", ""): 2,
        ("grpc_calls_running", "Telemetry", ""): 1,
    }
    number = next(number for number, stream in client.streams.items() if stream is telemetry)
    client.h2.end_stream(number)
    await client.flush()
    await settle()
    counts = shown(front)
    assert counts["grpc_calls_total", "Telemetry", "OK"] == 1
    assert counts["grpc_calls_running", "Telemetry", ""] == 0
    assert ("grpc_call_seconds", "Telemetry", "") not in counts


@simulated
async def test_a_receive_counts_with_the_status_that_it_sent_or_as_cancelled(cluster):
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    await client.call("SendMessage", send_request(message()))
    assert (await client.receive()).messages
    assert (await client.receive(poll_s=0)).code == m.MESSAGE_NOT_FOUND
    waiting = await client.start_receive()
    await settle()
    assert shown(front)["grpc_calls_running", "ReceiveMessage", ""] == 1
    number = next(number for number, stream in client.streams.items() if stream is waiting)
    client.h2.reset_stream(number)
    await client.flush()
    await settle()
    counts = shown(front)
    assert counts["grpc_calls_total", "ReceiveMessage", "OK"] == 1
    assert counts["grpc_calls_total", "ReceiveMessage", "MESSAGE_NOT_FOUND"] == 1
    assert counts["grpc_calls_total", "ReceiveMessage", "CANCELLED"] == 1
    assert counts["grpc_calls_running", "ReceiveMessage", ""] == 0


@simulated
async def test_what_the_transport_refuses_counts_with_the_status_of_grpc(cluster):
    front = await open_front(cluster)
    client = front.client()
    number = await client.begin("SendMessage", m.SendMessageResponse)
    await client.send(number, b"\0\0\0\0\1\xff", end=True)
    await client.streams[number].ended.wait()
    counts = shown(front)
    assert sum(value for (name, _, code), value in counts.items() if code == "INTERNAL") == 1
    assert counts["grpc_calls_running", "SendMessage", ""] == 0


def test_a_status_that_the_protocol_does_not_have_is_shown_as_a_number():
    assert [name_code(code) for code in (m.OK, 12345, "CANCELLED")] == ["OK", "12345", "CANCELLED"]


def test_methods_that_nobody_called_have_no_metrics():
    counts = RpcCounts()
    assert list(rpc_metrics({"SendMessage": counts})) == []
    counts.running = 1
    assert [metric.name for metric in rpc_metrics({"SendMessage": counts})] == ["grpc_calls_running"]
    assert isinstance(counts.latency, LatencyHistogram)
