"""Calls of etcd's JSON gateway, against a server that answers as it is told."""

from collections.abc import Callable

import pytest
import trio

from gateway.controller.etcd_client import EtcdClient, EtcdEndpoint, EtcdRefusal
from gateway.controller.store import StoreUnavailable

Script = Callable[[str], bytes | None]
"""Returns the answer to a request, given its text; None to answer nothing and hang."""


def http(body: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


def call(
    *scripts: Script | None, user: str = "", calls: int = 1, timeout_s: float = 20.0
) -> tuple[list[object], list[str]]:
    """Call the members that follow these scripts; return the outcomes and the requests. None: nobody listens."""
    outcomes: list[object] = []
    requests: list[str] = []

    async def serve(script: Script, stream: trio.SocketStream) -> None:
        data = b""
        while b"\r\n\r\n" not in data or not data.endswith(b"}"):
            data += await stream.receive_some()
        requests.append(data.decode())
        answer = script(data.decode())
        if answer is None:
            await trio.sleep_forever()
        else:
            await stream.send_all(answer)
            await stream.aclose()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            endpoints = []
            for script in scripts:
                (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
                port = listener.socket.getsockname()[1]
                endpoints.append(EtcdEndpoint("127.0.0.1", port, is_encrypted=False))
                if script is None:
                    await listener.aclose()
                else:
                    handler = lambda stream, script=script: serve(script, stream)  # noqa: E731
                    nursery.start_soon(trio.serve_listeners, handler, [listener])
            client = EtcdClient(endpoints, user, "secret" if user else "", timeout_s=timeout_s)
            for _ in range(calls):
                try:
                    outcomes.append(await client.call("/v3/kv/range", {"key": "YQ=="}))
                except (EtcdRefusal, StoreUnavailable) as problem:
                    outcomes.append(problem)
            nursery.cancel_scope.cancel()

    trio.run(run)
    return outcomes, requests


def test_a_call_is_a_json_request() -> None:
    outcomes, requests = call(lambda _: http('{"count": "1"}'))
    assert outcomes == [{"count": "1"}]
    assert requests[0].startswith("POST /v3/kv/range HTTP/1.1\r\n")
    assert requests[0].endswith('{"key": "YQ=="}')


def test_a_member_that_does_not_listen_is_passed_over() -> None:
    outcomes, _ = call(None, lambda _: http("{}"))
    assert outcomes == [{}]


def test_a_member_that_hangs_is_asked_last_from_then_on() -> None:
    outcomes, _ = call(lambda _: None, lambda _: http('{"count": "2"}'), calls=2, timeout_s=1.0)
    assert isinstance(outcomes[0], StoreUnavailable), "it may have carried the call out"
    assert str(outcomes[0]).endswith(": no answer in time"), "nothing speaks for TLS"
    assert outcomes[1] == {"count": "2"}


def test_without_any_member_the_store_is_unavailable() -> None:
    outcomes, _ = call(None, None)
    assert "no etcd member answers" in str(outcomes[0])


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        http("not JSON"),
        http("[]"),
        http("{}")[:-1],
        b"SSH-2.0-nonsense\r\n\r\n",
        http('{"error": "etcdserver: no leader", "code": 14}', "503 Service Unavailable"),
    ],
)
def test_an_answer_that_cannot_be_used_is_an_unavailable_store(answer: bytes) -> None:
    outcomes, _ = call(lambda _: answer)
    assert isinstance(outcomes[0], StoreUnavailable)


def test_an_error_is_a_refusal_with_its_code() -> None:
    body = '{"error": "e", "message": "etcdserver: requested lease not found", "code": 5}'
    (outcome,), _ = call(lambda _: http(body, "404 Not Found"))
    assert isinstance(outcome, EtcdRefusal)
    assert (outcome.code, str(outcome)) == (5, "etcdserver: requested lease not found")


def test_the_answer_of_a_stream_is_taken_out_of_its_frame() -> None:
    assert call(lambda _: http('{"result": {"ID": "7", "TTL": "5"}}\n'))[0] == [{"ID": "7", "TTL": "5"}]


def test_a_token_that_etcd_forgot_is_asked_for_again() -> None:
    tokens = iter(("one", "two"))

    def script(request: str) -> bytes:
        if "/v3/auth/authenticate" in request:
            assert '"name": "me", "password": "secret"' in request
            return http(f'{{"token": "{next(tokens)}"}}')
        if "Authorization: two" in request:
            return http('{"count": "3"}')
        return http('{"error": "etcdserver: invalid auth token", "code": 16}', "401 Unauthorized")

    outcomes, requests = call(script, user="me")
    assert outcomes == [{"count": "3"}]
    assert len(requests) == 4


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://e:1", EtcdEndpoint("e", 1, is_encrypted=False)),
        ("https://e", EtcdEndpoint("e", 2379, is_encrypted=True)),
        ("http://[::1]:9", EtcdEndpoint("::1", 9, is_encrypted=False)),
    ],
)
def test_addresses(url: str, endpoint: EtcdEndpoint) -> None:
    assert EtcdEndpoint.parse(url) == endpoint
    assert EtcdEndpoint.parse(f"http://{endpoint.authority}").host == endpoint.host


@pytest.mark.parametrize("url", ["e:1", "ftp://e:1", "http://e:1/path", "http://"])
def test_other_texts_are_no_addresses(url: str) -> None:
    with pytest.raises(ValueError, match="is not http"):
        EtcdEndpoint.parse(url)
