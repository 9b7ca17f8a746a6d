import json
import random
import socket

import h11
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import memory_stream_pair

from gateway.http_server.errors import ConsoleError
from gateway.http_server.http_connection import Page
from gateway.http_server.server import Console
from gateway.http_server.settings import ConsoleSettings, is_loopback
from gateway.runtime.metrics import Distribution, LatencyHistogram, Metric, MetricRegistry
from remoting.tests.longest_turn import short_turns
from remoting.tests.virtual import counting_turns, virtual
from toolkit.settings import SettingsError
from toolkit.toml_tables import load_table


def make_console(registry=None, **settings):
    made = Console(ConsoleSettings(port=0, **settings), registry or MetricRegistry(), "rocketmq_test_")

    async def slow(given):
        await trio.sleep(float(given["seconds"]))
        return {"slept": given["seconds"]}

    def refuse(given):
        raise ConsoleError("not now", 409)

    made.get("/echo", lambda given: given)
    made.post("/echo", lambda given: given)
    made.get("/slow", slow)
    made.post("/refuse", refuse)
    made.get("/broken", lambda given: {"x": 1 / 0})
    made.get("/page", lambda given: Page("text/html", b"<p>hello"))
    return made


async def send_request(served, request, *, chunks=1):
    """Send bytes on one connection; return status, headers and body of the answer."""
    here, there = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.serve_connection, there)
        for start in range(0, len(request), max(1, len(request) // chunks)):
            await here.send_all(request[start : start + max(1, len(request) // chunks)])
        data = b""
        while piece := await here.receive_some():
            data += piece
        await here.aclose()
    return parse_answer(data)


def parse_answer(data):
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "localhost")]))
    client.send(h11.EndOfMessage())
    client.receive_data(data)
    client.receive_data(b"")
    answer, body = client.next_event(), b""
    while isinstance(event := client.next_event(), h11.Data):
        body += bytes(event.data)
    return answer.status_code, dict(answer.headers), body


def build_request(method, target, body=b"", headers=()):
    usual = ["Host: localhost", "X-Requested-With: tests", f"Content-Length: {len(body)}"]
    lines = [f"{method} {target} HTTP/1.1", *usual, *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


@virtual
async def test_json_routes():
    served = make_console()
    status, headers, body = await send_request(served, build_request("GET", "/echo?topic=a%20b&n=1"))
    assert (status, json.loads(body)) == (200, {"topic": "a b", "n": "1"})
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"connection"] == b"close"
    status, _, body = await send_request(
        served, build_request("POST", "/echo", b'{"a": [1, null]}'), chunks=50
    )
    assert (status, json.loads(body)) == (200, {"a": [1, None]})
    assert json.loads((await send_request(served, build_request("POST", "/echo")))[2]) == {}


@virtual
async def test_async_routes_pages_and_errors():
    served = make_console()
    assert json.loads((await send_request(served, build_request("GET", "/slow?seconds=7")))[2]) == {
        "slept": "7"
    }
    status, headers, body = await send_request(served, build_request("GET", "/page"))
    assert (status, headers[b"content-type"], body) == (200, b"text/html", b"<p>hello")
    status, _, body = await send_request(served, build_request("POST", "/refuse"))
    assert (status, json.loads(body)) == (409, {"error": "not now"})
    status, _, body = await send_request(served, build_request("GET", "/broken"))
    assert (status, json.loads(body)) == (500, {"error": "ZeroDivisionError: division by zero"})
    assert (await send_request(served, build_request("DELETE", "/echo")))[0] == 405
    status, _, body = await send_request(served, build_request("GET", "/ecko"))
    assert status == 404
    assert "/echo" in json.loads(body)["error"]


@virtual
async def test_head_is_a_get_without_a_body():
    here, there = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(make_console().serve_connection, there)
        await here.send_all(b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await here.receive_some()
        assert head.startswith(b"HTTP/1.1 200")
        assert head.endswith(b"\r\n\r\n")
        await here.aclose()


@virtual
async def test_slow_answer_times_out():
    status, _, body = await send_request(
        make_console(answer_timeout_s=1), build_request("GET", "/slow?seconds=3600")
    )
    assert status == 504
    assert "answer_timeout_s" in json.loads(body)["error"]


@virtual
@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x00\x00\x10 no http at all\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: nine\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nX-Requested-With: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nX-Requested-With: x\r\nContent-Length: 3\r\n\r\n{a}",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nX-Requested-With: x\r\nContent-Length: 3\r\n\r\n[1]",
    ],
)
async def test_garbage_is_refused(garbage):
    status, _, body = await send_request(make_console(), garbage)
    assert status == 400
    assert json.loads(body)["error"]


@virtual
async def test_random_bytes_are_answered():
    chance, served = random.Random(5), make_console(request_timeout_s=1)
    whole = [
        build_request("POST", "/echo", b'{"a": 1}'),
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nX-Requested-With: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'4\r\n{"a"\r\n3\r\n:1}\r\n0\r\n\r\n',
        b"GET /echo HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]
    for _ in range(300):
        data = bytearray(chance.choice(whole))
        for _ in range(chance.randrange(4)):
            at = chance.randrange(len(data))
            data[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        status, _, _ = await send_request(served, bytes(data))
        assert status in (200, 400, 403, 404, 405, 408, 501)


@virtual
async def test_endless_headers_are_cut_off():
    status, _, _ = await send_request(
        make_console(), b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40_000
    )
    assert status == 431


@virtual
async def test_oversized_body_is_refused_early():
    served = make_console(max_request_bytes=1024)
    assert (await send_request(served, build_request("POST", "/echo", b'"' + b"x" * 1023)))[0] == 400
    assert (await send_request(served, build_request("POST", "/echo", b"x" * 1025)))[0] == 413


@virtual
async def test_expect_continue():
    here, there = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(make_console().serve_connection, there)
        await here.send_all(build_request("POST", "/echo", b"{}", ["Expect: 100-continue"])[:-2])
        assert (await here.receive_some()).startswith(b"HTTP/1.1 100")
        await here.send_all(b"{}")
        assert (await here.receive_some()).startswith(b"HTTP/1.1 200")
        await here.aclose()


@virtual
async def test_slow_client_gets_a_timeout():
    here, there = memory_stream_pair()
    started_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(make_console(request_timeout_s=5).serve_connection, there)
        await here.send_all(b"GET /echo HTTP/1.1\r\n")
        assert (await here.receive_some()).startswith(b"HTTP/1.1 408")
        assert trio.current_time() - started_s == 5
        await here.aclose()


@virtual
async def test_client_that_never_reads_is_dropped():
    here, there = trio.testing.lockstep_stream_pair()
    started_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(make_console(request_timeout_s=5).serve_connection, there)
        await here.send_all(build_request("GET", "/echo"))
    assert trio.current_time() - started_s == 5


@virtual
async def test_disconnected_clients_are_ignored():
    served = make_console()
    for sent in (b"", b"GET", b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{"):
        here, there = memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.serve_connection, there)
            await here.send_all(sent)
            await here.aclose()
    assert (await send_request(served, build_request("GET", "/healthz")))[0] == 200


@virtual
async def test_token_is_required_except_for_healthz():
    served = make_console(token="sesame")
    assert (await send_request(served, build_request("GET", "/echo")))[0] == 401
    assert (
        await send_request(served, build_request("GET", "/metrics", headers=["Authorization: Bearer no"]))
    )[0] == 401
    assert (
        await send_request(served, build_request("GET", "/echo", headers=["Authorization: Bearer sesame"]))
    )[0] == 200
    assert (await send_request(served, build_request("GET", "/healthz")))[0] == 200


@virtual
async def test_requests_of_web_pages_are_refused():
    status, _, _ = await send_request(
        make_console(), build_request("POST", "/echo", headers=["Origin: http://example.org"])
    )
    assert status == 403


@virtual
async def test_status_has_all_sections():
    served = make_console()
    served.add_section("mirror", lambda: {"streams": 2})
    assert json.loads((await send_request(served, build_request("GET", "/status")))[2]) == {
        "mirror": {"streams": 2}
    }
    with pytest.raises(ValueError, match="mirror"):
        served.add_section("mirror", dict)
    with pytest.raises(ValueError, match="/echo"):
        served.get("/echo", dict)


@virtual
async def test_metrics_can_be_parsed():
    registry, latencies = MetricRegistry(), LatencyHistogram()
    for seconds in (0.001, 0.001, 0.2):
        latencies.record(seconds)
    registry.register(
        lambda: [
            Metric("mirror_dropped_total", 3, "Dropped.", labels={"stream": 'a"b\n'}),
            Metric("mirror_waiting_messages", 7, "Waiting.", "gauge"),
            Metric("mirror_dropped_total", 4, "Dropped.", labels={"stream": "c"}),
            Distribution("forward_share_seconds", latencies, "The gateway's share.", {"code": "10"}),
            Distribution("rocketmq_finish", latencies, "Its unit is in its name.", unit="ms"),
            Metric("rocketmq_size", 1, "The unit is added.", "gauge", unit="bytes"),
            Metric("rocketmq_behind_bytes", 1, "The unit is there already.", "gauge", unit="bytes"),
        ]
    )

    async def ask_other_process():
        await trio.sleep(0.5)
        return [Metric("mirror_waiting_messages", 9, "Waiting.", "gauge", {"broker": "broker-b"})]

    registry.register_remote(ask_other_process)
    status, headers, body = await send_request(make_console(registry), build_request("GET", "/metrics"))
    assert status == 200
    assert headers[b"content-type"].startswith(b"text/plain; version=0.0.4")
    families = {each.name: each for each in text_string_to_metric_families(body.decode())}
    dropped = families["rocketmq_test_mirror_dropped"]
    assert (dropped.type, dropped.documentation) == ("counter", "Dropped.")
    assert {each.labels["stream"]: each.value for each in dropped.samples} == {'a"b\n': 3, "c": 4}
    waiting = families["rocketmq_test_mirror_waiting_messages"].samples
    assert [(each.labels, each.value) for each in waiting] == [({}, 7), ({"broker": "broker-b"}, 9)]
    shares = families["rocketmq_test_forward_share_seconds"]
    assert shares.type == "histogram"
    buckets = {float(each.labels["le"]): each.value for each in shares.samples if "le" in each.labels}
    assert buckets[float("inf")] == 3
    assert min(bound for bound, count in buckets.items() if count == 2) < 0.0021
    assert [each.value for each in shares.samples if each.name.endswith("_count")] == [3]
    assert "process_resident_memory_bytes" in families
    assert {each for each in families if each.startswith("rocketmq_") and "test" not in each} == {
        "rocketmq_finish_milliseconds", "rocketmq_size_bytes", "rocketmq_behind_bytes",
    }  # fmt: skip


async def _open_client(nursery, served):
    here, there = memory_stream_pair()
    nursery.start_soon(served.serve_connection, there)
    return here


@virtual
async def test_slow_clients_hold_up_nobody():
    """A hundred clients that never finish their request head, as one scanner opened them for half a minute."""
    served = make_console()
    async with trio.open_nursery() as nursery:
        slow = []
        for _ in range(100):
            here = await _open_client(nursery, served)
            await here.send_all(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
            slow.append(here)
        await trio.testing.wait_all_tasks_blocked()
        started_s = trio.current_time()
        assert (await send_request(served, build_request("GET", "/healthz")))[0] == 200
        assert (await send_request(served, build_request("GET", "/status")))[0] == 200
        assert trio.current_time() == started_s
        with trio.fail_after(1):
            assert await slow[0].receive_some() == b"", "the oldest idle connection is closed"
        nursery.cancel_scope.cancel()


def test_slow_clients_hold_up_nobody_on_a_real_port():
    async def main():
        served = make_console(max_connections=2)
        async with trio.open_nursery() as nursery:
            host, port = await nursery.start(served.run)
            slow = [await trio.open_tcp_stream(host, port) for _ in range(200)]
            with (
                short_turns(),
                trio.fail_after(4),
            ):  # less than request_timeout_s, after which the slow ones are gone
                for stream in slow:
                    await stream.send_all(b"GET /healthz HTTP/1.1\r\n")
                stream = await trio.open_tcp_stream(host, port)
                await stream.send_all(build_request("GET", "/healthz"))
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
            for each in (*slow, stream):
                await trio.aclose_forcefully(each)
            nursery.cancel_scope.cancel()

    trio.run(main)


@virtual
async def test_clients_that_do_not_read_hold_up_nobody():
    served = make_console(request_timeout_s=5)
    started_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            here, there = trio.testing.lockstep_stream_pair()
            nursery.start_soon(served.serve_connection, there)
            await here.send_all(build_request("GET", "/echo"))
        await trio.testing.wait_all_tasks_blocked()
        assert (await send_request(served, build_request("GET", "/status")))[0] == 200
        assert trio.current_time() == started_s
        nursery.cancel_scope.cancel()


@virtual
async def test_requests_beyond_the_limit_wait_then_are_refused():
    served = make_console(max_connections=2)
    async with trio.open_nursery() as nursery:
        answers = []

        async def ask():
            answers.append((await send_request(served, build_request("GET", "/slow?seconds=10")))[0])

        for _ in range(5):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert answers == [503], "two are worked on, two wait, and the fifth is refused"
        assert (await send_request(served, build_request("GET", "/healthz")))[0] == 200
    assert answers == [503, 200, 200, 200, 200]


@virtual
async def test_probe_needs_no_token():
    served = make_console(token="sesame")
    served.add_probe("/readyz", lambda given: {"ready": True})
    assert (await send_request(served, build_request("GET", "/readyz")))[0] == 200
    assert (await send_request(served, build_request("GET", "/readyz", headers=["Origin: http://x"])))[
        0
    ] == 200


@virtual
async def test_a_body_is_not_received_without_the_token():
    here, there = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(make_console(token="sesame").serve_connection, there)
        await here.send_all(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
        assert (await here.receive_some()).startswith(b"HTTP/1.1 401")
        await here.aclose()


@virtual
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9880", 200),
        ("127.0.0.1:9880", 200),
        ("[::1]:9880", 200),
        ("10.1.2.3", 200),
        ("evil.example:9880", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
        ("\xff", 403),
    ],
)
async def test_without_a_token_the_host_must_not_be_a_name(host, status):
    """A web page can make its own name resolve to this machine, and a browser sends no Origin with its GETs then."""
    request = f"GET /echo HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1")
    assert (await send_request(make_console(), request))[0] == status


@virtual
@pytest.mark.parametrize("target", ["http://[bad/", "//[", "/echo?" + "a=1&" * 3000, "/" + "x" * 9000, "*"])
async def test_hostile_targets_are_answered(target, caplog):
    status, _, body = await send_request(make_console(), build_request("GET", target))
    assert status in (200, 400, 404)
    assert len(body) < 1000 or status == 200
    assert not caplog.records


@virtual
async def test_a_body_in_tiny_chunks_yields_to_others():
    """Chunks of one byte cost the most; a receive must never carry so many that the loop stands still."""
    tiny = b"1\r\n \r\n" * 20_000
    head = (
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nX-Requested-With: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    served = make_console()
    here, there = memory_stream_pair()
    await here.send_all(head + tiny + b"2\r\n{}\r\n0\r\n\r\n")
    async with counting_turns() as turns, trio.open_nursery() as nursery:
        nursery.start_soon(served.serve_connection, there)
        assert (await here.receive_some()).startswith(b"HTTP/1.1 200")
        nursery.cancel_scope.cancel()
    assert turns.count >= len(tiny) / 8192


def test_other_addresses_require_users_or_a_token_and_encryption():
    assert is_loopback("127.0.0.2")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    table = {"host": "0.0.0.0"}
    with pytest.raises(SettingsError, match="set users or a token"):
        load_table(ConsoleSettings, table, "console")
    with pytest.raises(SettingsError, match="enforcing"):
        load_table(ConsoleSettings, {**table, "token": "t"}, "console")
    with pytest.raises(SettingsError, match="enforcing"):
        load_table(ConsoleSettings, {**table, "token": "t", "tls": {"mode": "permissive"}}, "console")
    load_table(ConsoleSettings, {**table, "token": "t", "tls": {"mode": "enforcing"}}, "console")
    load_table(ConsoleSettings, {**table, "token": "t", "plain_http": True}, "console")
    load_table(ConsoleSettings, {**table, "enabled": False}, "console")


def test_a_client_that_left_before_it_was_served_is_no_defect(caplog):
    async def main():
        sock = socket.socket()  # without a peer, like that of a client that has reset its connection
        await make_console()._serve_safely(sock)
        assert sock.fileno() == -1

    trio.run(main)
    assert not caplog.records
