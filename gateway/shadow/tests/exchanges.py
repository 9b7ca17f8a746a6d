"""Exchanges made up by tests of the parts that look at traffic; no tests."""

from codec.command import Command, encode_command
from gateway.shadow.traffic.exchange import Exchange


def exchange(code, request, answer, *, share_s=0.0001, primary_s=0.001, at_s=100.0, **more):
    """One exchange from whole frames."""
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


def sent(topic, *, code=0, body=b"hello", **more):
    """A send as stock Java clients make it, and its answer."""
    request = Command(310, ext={"a": "producers", "b": topic, "e": "0"}, body=body)
    answer = Command(code, ext={"msgId": "0" * 32, "queueId": "0", "queueOffset": "7"})
    return exchange(310, encode_command(request), encode_command(answer), **more)


def pulled(topic, *, code=0, **more):
    """A pull and its answer."""
    request = Command(11, ext={"consumerGroup": "consumers", "topic": topic, "queueId": "0"})
    return exchange(11, encode_command(request), encode_command(Command(code)), **more)
