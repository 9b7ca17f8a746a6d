"""The probe against a scripted server."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from compat_tests.endpoints.probe import Probe, ProbeRefused, broker_addresses, queue_count, wait_for_route

Answer = Callable[[dict[str, Any], bytes], list[tuple[dict[str, Any], bytes]]]
OFFICIAL_ROUTE = (
    '{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"broker-a"}],'
    '"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":8,"writeQueueNums":4}]}'
)


def frame(header: dict[str, Any], body: bytes) -> bytes:
    head = json.dumps(header).encode()
    return struct.pack(">II", 4 + len(head) + len(body), len(head)) + head + body


@contextmanager
def server(answer: Answer) -> Iterator[str]:
    """Answers every request of every connection; yields its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer, peer.makefile("rb") as reader:
                while len(prefix := reader.read(8)) == 8:
                    total, size = struct.unpack(">II", prefix)
                    rest = reader.read(total - 4)
                    for header, body in answer(json.loads(rest[:size]), rest[size:]):
                        peer.sendall(frame(header, body))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def reply(request: dict[str, Any], code: int = 0, **more: Any) -> dict[str, Any]:
    return {"code": code, "opaque": request["opaque"], "flag": 1, **more}


def test_asks_and_skips_what_is_not_the_answer() -> None:
    def answer(request: dict[str, Any], _body: bytes) -> list[tuple[dict[str, Any], bytes]]:
        assert request["extFields"] == {"topic": "T", "queueId": "3", "committed": "false"}
        from_server = {"code": 40, "opaque": request["opaque"], "flag": 2}
        late = {"code": 0, "opaque": request["opaque"] - 1, "flag": 1, "extFields": {"offset": "1"}}
        return [(from_server, b""), (late, b""), (reply(request, extFields={"offset": "12"}), b"")]

    with server(answer) as address, Probe(address) as probe:
        assert probe.max_offset("T", 3) == 12


def test_refusals_carry_code_and_remark() -> None:
    with (
        server(lambda request, _: [(reply(request, 17, remark="no topic"), b"")]) as address,
        Probe(address) as probe,
        pytest.raises(ProbeRefused, match="code 17: no topic"),
    ):
        probe.route("T")


def test_sends_the_body_and_required_fields() -> None:
    seen: list[tuple[dict[str, Any], bytes]] = []

    def answer(request: dict[str, Any], body: bytes) -> list[tuple[dict[str, Any], bytes]]:
        seen.append((request, body))
        return [(reply(request), b"")]

    with server(answer) as address, Probe(address) as probe:
        probe.send("T", b"hello")
    ((request, body),) = seen
    assert (request["code"], body) == (10, b"hello")
    assert request["extFields"]["topic"] == "T"


def test_a_closed_connection_is_an_os_error() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with Probe(f"127.0.0.1:{listener.getsockname()[1]}") as probe:
        listener.accept()[0].close()
        listener.close()
        with pytest.raises(ConnectionError):
            probe.route("T")


@pytest.mark.parametrize(
    "text", [OFFICIAL_ROUTE, OFFICIAL_ROUTE.replace("{0:", '{"0":').replace(",1:", ',"1":')]
)
def test_reads_routes_with_bare_and_quoted_keys(text: str) -> None:
    assert broker_addresses(text) == ["10.0.0.1:10911"]
    assert queue_count(text) == 4


def test_waits_until_the_broker_is_in_the_route() -> None:
    tries: list[int] = []

    def answer(request: dict[str, Any], _body: bytes) -> list[tuple[dict[str, Any], bytes]]:
        tries.append(1)
        if len(tries) < 3:
            return [(reply(request, 17, remark="not yet"), b"")]
        return [(reply(request), f'{{"brokerAddrs":{{0:"{address}"}}}}'.encode())]

    with server(answer) as address:
        assert wait_for_route(address, int(address.rpartition(":")[2]), 10) == address
    assert len(tries) == 3


def test_says_why_there_is_no_route() -> None:
    with (
        server(lambda request, _: [(reply(request, 17, remark="No route info"), b"")]) as address,
        pytest.raises(RuntimeError, match="No route info"),
    ):
        wait_for_route(address, None, 0.05)
