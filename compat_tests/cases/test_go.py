"""Features of rocketmq-client-go v2.1.2 other than plain messages and transactions."""

from collections.abc import Callable
from typing import Any

import pytest

from compat_tests.clients import programs
from compat_tests.clients.java_api import JavaClient
from compat_tests.jars import Unavailable
from compat_tests.marks import case
from compat_tests.plugin import skip_or_fail
from compat_tests.server import ServerUnderTest

TIMEOUT_S = 240


Deliveries = list[dict[str, Any]]


def show(server: ServerUnderTest, topic: str, feature: str) -> Deliveries:
    try:
        return programs.run_go_feature(server.namesrv, topic, feature, TIMEOUT_S)
    except Unavailable as missing:
        skip_or_fail(str(missing))


@pytest.fixture
def go(server: ServerUnderTest, topic: str) -> Callable[[str], Deliveries]:
    """A function that runs a feature of the Go program with a new topic and returns the deliveries in their order."""
    server.groups.append(f"{topic}_group")
    return lambda feature: show(server, topic, feature)


def numbers(deliveries: Deliveries) -> list[int]:
    return sorted(int(delivery["body"]) for delivery in deliveries)


@case("ordered", "Go: messages of one sharding key are in one queue and consumed in order")
def test_ordered(go: Callable[[str], Deliveries]) -> None:
    received = go("ordered")
    assert numbers(received) == list(range(60))
    for key in range(5):
        own = [delivery for delivery in received if int(delivery["body"]) % 5 == key]
        assert len({delivery["queue"] for delivery in own}) == 1
        assert [int(delivery["body"]) for delivery in own] == list(range(key, 60, 5))


@case("delay", "Go: level 2 is delivered no sooner than five seconds later")
def test_delay(go: Callable[[str], Deliveries]) -> None:
    received = go("delay")
    assert numbers(received) == [0, 1, 2, 3]
    assert min(delivery["wait_ms"] for delivery in received) >= 4900


@case("filter", "Go: tags, A || B")
def test_tags(go: Callable[[str], Deliveries]) -> None:
    received = go("tags")
    assert numbers(received) == [number for number in range(30) if number % 3 != 1]
    assert {delivery["tag"] for delivery in received} == {"red", "blue"}


@case("filter", "Go: SQL92")
def test_sql(go: Callable[[str], Deliveries]) -> None:
    assert numbers(go("sql")) == list(range(5, 15))


@case("batch", "Go: a batch goes to one queue with consecutive offsets")
def test_batch(go: Callable[[str], Deliveries]) -> None:
    received = go("batch")
    assert numbers(received) == list(range(20))
    assert len({delivery["queue"] for delivery in received}) == 1
    assert sorted(delivery["offset"] for delivery in received) == list(range(20))


@case("retry", "Go: a failed message comes again with its count increased")
def test_retry(go: Callable[[str], Deliveries]) -> None:
    received = go("retry")
    assert [(delivery["body"], delivery["times"]) for delivery in received] == [("0", 0), ("0", 1), ("0", 2)]


@case("reply", "Go: a request that a Java client answers")
def test_request(server: ServerUnderTest, java5: JavaClient, topic: str, group: str) -> None:
    with java5.push(group, topic, reply=True):
        (answer,) = show(server, topic, "request")
    assert answer["body"] == "re: question"
