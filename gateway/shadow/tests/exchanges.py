"""Test helper: exchanges for tests of the parts that observe traffic."""

from typing import Any

from codec.command import Command, encode_command
from gateway.shadow.traffic.exchange import Exchange


def make_exchange(
    code: int,
    request: bytes,
    answer: bytes | None,
    *,
    share_s: float = 0.0001,
    primary_s: float = 0.001,
    at_s: float = 100.0,
    **more: Any,
) -> Exchange:
    """Return an exchange with these frames."""
    given = {
        "connection": 1,
        "client": "10.0.0.1:50000",
        "upstream": "10.0.0.9:10911",
        "broker": "broker-a",
        "wall_ms": 1_700_000_000_000,
        "asked_s": at_s,
        "forwarded_s": at_s + share_s,
        "answered_s": at_s + share_s + primary_s,
    }
    return Exchange(code, request, answer, **{**given, **more})


def make_send_exchange(topic: str, *, code: int = 0, body: bytes = b"hello", **more: Any) -> Exchange:
    """Return a send as stock Java clients make it, with its answer."""
    request = Command(310, ext={"a": "producers", "b": topic, "e": "0"}, body=body)
    answer = Command(code, ext={"msgId": "0" * 32, "queueId": "0", "queueOffset": "7"})
    return make_exchange(310, encode_command(request), encode_command(answer), **more)


def make_pull_exchange(topic: str, *, code: int = 0, **more: Any) -> Exchange:
    """Return a pull with its answer."""
    request = Command(11, ext={"consumerGroup": "consumers", "topic": topic, "queueId": "0"})
    return make_exchange(11, encode_command(request), encode_command(Command(code)), **more)
