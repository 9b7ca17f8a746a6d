"""Servers in memory that a test controls over HTTP, with a stock Java client: moved time and injected faults.

One server and one JVM serve all cases; each begins with a reset.
"""

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from compat_tests.cases.conftest import has_queues, stock_client
from compat_tests.clients.grpc_api import StockGrpcClient
from compat_tests.clients.grpc_drivers import start_python_driver
from compat_tests.clients.java_api import JavaClient
from compat_tests.jars import Unavailable
from compat_tests.plugin import skip_or_fail
from compat_tests.server import eventually
from tools.processes import Gateway

DELAYED = "SCHEDULE_TOPIC_XXXX"
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
FIRST_RETRY_S = 10
LONGEST_DELAY_S = 2 * 3600


class Control:
    """The control API of a server."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/v1"

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        return self._fetch(f"{self._url}/{path}?{urllib.parse.urlencode(query)}", None)

    def post(self, path: str, **given: Any) -> dict[str, Any]:
        return self._fetch(f"{self._url}/{path}", json.dumps(given).encode())

    def wait_for(self, topic: str, count: int = 1) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("messages/wait", topic=topic, count=count, timeout_s=60)[
            "messages"
        ]
        return found

    @staticmethod
    def _fetch(url: str, data: bytes | None) -> dict[str, Any]:
        with urllib.request.urlopen(url, data, timeout=90) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    flags = ("--memory", "--control", "0", "--grpc-port", "0")
    with Gateway(tmp_path_factory.mktemp("double"), *flags) as running:
        yield running


@pytest.fixture(scope="module")
def stock(gateway: Gateway) -> Iterator[JavaClient]:
    with stock_client(gateway.namesrv) as client:
        yield client


@pytest.fixture
def control(gateway: Gateway, stock: JavaClient) -> Control:
    control = Control(gateway.ready["control"])
    control.post("reset")
    control.post("topics", topic="orders", queues=1)
    with stock.producer("warm_up") as producer:  # until the client has connected again
        eventually(lambda: has_queues(producer, "orders"), 90)
    return control


def send(stock: JavaClient, body: str, **fields: Any) -> list[dict[str, Any]]:
    with stock.producer(
        "producers", sendMsgTimeout=30_000
    ) as producer:  # a busy machine is slow to connect again
        return producer.send({"topic": "orders", "body": body, **fields})


def test_retry_comes_when_the_time_is_moved(stock: JavaClient, control: Control) -> None:
    with stock.push("GID_retry", "orders", failures=2) as consumer:
        send(stock, "again")
        for attempt in range(2):
            failed_s = time.monotonic()
            assert [each["reconsume"] for each in consumer.received(attempt + 1, 60)] == list(
                range(attempt + 1)
            )
            control.wait_for(DELAYED, attempt + 1)  # the client has sent it back
            control.post("advance", seconds=FIRST_RETRY_S * 3**attempt)
            deliveries = consumer.received(attempt + 2, 60)
            assert [each["reconsume"] for each in deliveries] == list(range(attempt + 2))
            if time.monotonic() - failed_s < FIRST_RETRY_S:
                break  # sooner than any retry without moved time
        else:
            pytest.fail("every retry took as long as without moved time")


def test_longest_delay_and_timer_are_due(stock: JavaClient, control: Control) -> None:
    with stock.push("GID_delay", "orders") as consumer:
        send(stock, "level", delay=18)
        send(stock, "timer", delay_s=LONGEST_DELAY_S - 10)
        control.post("advance", seconds=LONGEST_DELAY_S)
        assert {each["body"] for each in consumer.received(2, 60)} == {"level", "timer"}


def test_open_transaction_is_asked_about(stock: JavaClient, control: Control) -> None:
    with stock.transactions("producers_tx", heartbeatBrokerInterval=1000) as producer:
        producer.send({"topic": "orders", "body": "decided late", "properties": {"check": "COMMIT_MESSAGE"}})
        assert control.get("messages", topic="orders") == {"messages": []}

        def asked() -> list[dict[str, Any]]:
            control.post("advance", seconds=60)  # asks whoever has sent a heartbeat by now
            return producer.checks(1, 1)

        eventually(asked, 60)
        assert [each["body"] for each in control.wait_for("orders")] == ["decided late"]


def test_producer_survives_a_busy_broker_and_a_closed_connection(stock: JavaClient, control: Control) -> None:
    for action in ("flow-control", "close"):
        control.post("faults", action=action, request="send", topic="orders", times=1)
    assert send(stock, "third time")[0]["status"] == "SEND_OK"
    assert [each["hits"] for each in control.get("faults")["faults"]] == [1, 1]
    assert [each["body"] for each in control.get("messages", topic="orders")["messages"]] == ["third time"]


def test_lost_answer_makes_a_duplicate(stock: JavaClient, control: Control) -> None:
    control.post("faults", action="close-before-answer", request="send", times=1)
    assert send(stock, "twice")[0]["status"] == "SEND_OK"
    found = control.wait_for("orders", 2)
    assert [each["body"] for each in found] == ["twice", "twice"]
    assert found[0]["unique_key"] == found[1]["unique_key"]


def test_consumer_survives_half_answers_and_a_broker_that_goes(stock: JavaClient, control: Control) -> None:
    with stock.push("GID_hardy", "orders") as consumer:
        send(stock, "before")
        assert [each["body"] for each in consumer.received(1, 60)] == ["before"]
        control.post("faults", action="half-answer", request="pull", times=2)
        send(stock, "through")
        assert [each["body"] for each in consumer.received(2, 90)] == ["before", "through"]
        control.post("brokers/stop", keep_route=True)
        control.post("brokers/start")
        eventually(lambda: send(stock, "after"), 60)
        assert [each["body"] for each in consumer.received(3, 90)][-1] == "after"


def test_a_grpc_client_of_the_same_servers(gateway: Gateway, control: Control) -> None:
    assert control.get("addresses")["grpc"] == gateway.ready["grpc"]
    try:
        driver = start_python_driver("5.1.2")
    except Unavailable as missing:
        skip_or_fail(str(missing))
    with closing(driver), StockGrpcClient(driver, gateway.ready["grpc"]).producer("orders") as producer:
        producer.send({"topic": "orders", "body": "by gRPC"})
    assert [each["body"] for each in control.wait_for("orders")] == ["by gRPC"]
