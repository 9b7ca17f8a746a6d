"""Asking an address server, against real sockets."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from toolkit.address_server import MAX_LIST_BYTES, AddressServerError, address_server_url, fetch_namesrv_list


@contextmanager
def serve_bytes(*parts: bytes, pause_s: float = 0.0) -> Iterator[tuple[str, list[bytes]]]:
    """Answer one request with these parts; yield the URL and the requests received."""
    requests: list[bytes] = []

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            requests.append(connection.recv(4096))
            try:
                for part in parts:
                    connection.sendall(part)
                    time.sleep(pause_s)
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/rocketmq/nsaddr?nofix=1", requests
        thread.join()


def page(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("arguments", "url"),
    [
        (("jmenv.tbsite.net",), "http://jmenv.tbsite.net:8080/rocketmq/nsaddr"),
        (("10.0.0.1:9881",), "http://10.0.0.1:9881/rocketmq/nsaddr"),
        (("lists:80", "nsaddr-unit"), "http://lists:80/rocketmq/nsaddr-unit"),
    ],
)
def test_the_url_is_built_as_stock_clients_build_it(arguments: tuple[str, ...], url: str) -> None:
    assert address_server_url(*arguments) == url


@pytest.mark.parametrize(
    "answer",
    [
        page(b"a:1;b:2"),
        page(b"  a:1;b:2 \r\nmore\n"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na:1;\r\n3\r\nb:2\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\na:1;b:2",
    ],
)
def test_the_first_line_of_the_answer_is_the_list(answer: bytes) -> None:
    with serve_bytes(answer) as (url, requests):
        assert fetch_namesrv_list(url) == "a:1;b:2"
    assert requests[0].startswith(b"GET /rocketmq/nsaddr?nofix=1 HTTP/1.1\r\nHost: 127.0.0.1:")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (page(b"no", "404 Not Found"), "it answers with status 404"),
        (page(b" \n "), "the list is empty"),
        (page(b"<!DOCTYPE html>"), "the answer is not host:port"),
        (page(b"a:1\x1b[2J"), "the answer is not host:port"),
        (page(b"\xff"), "codec can't decode"),
        (page(b"a" * (MAX_LIST_BYTES + 1)), "the list is larger than 65536 bytes"),
        (b"SSH-2.0-x\r\n\r\n", "illegal status line"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na:1", "peer closed connection"),
        (b"", "closes the connection without an answer"),
    ],
)
def test_an_answer_without_a_list_is_told_with_its_address(answer: bytes, reason: str) -> None:
    with serve_bytes(answer) as (url, _), pytest.raises(AddressServerError) as refused:
        fetch_namesrv_list(url)
    assert f"address server {url}: " in str(refused.value)
    assert reason in str(refused.value)


def test_a_slow_answer_ends_with_the_time_limit() -> None:
    start_s = time.monotonic()
    with serve_bytes(*[b"x"] * 20, pause_s=0.05) as (url, _), pytest.raises(AddressServerError):
        fetch_namesrv_list(url, timeout_s=0.2)
    assert time.monotonic() - start_s < 5


@pytest.mark.parametrize("url", ["https://a/", "a:1", "http://", "http://a:x/", "http://a/\r\nX: y"])
def test_what_is_not_an_http_address_is_refused(url: str) -> None:
    with pytest.raises(AddressServerError, match="address server"):
        fetch_namesrv_list(url, timeout_s=0.2)
