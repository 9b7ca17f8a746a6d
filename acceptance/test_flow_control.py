"""Flow control and quotas of our server, changed while it runs, and the reactions of stock clients."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.cases.conftest import stock_client, warm_up
from compat_tests.clients.popping import POLLING_TIMEOUT, pop, pop_messages
from compat_tests.clients.programs import run_mqadmin
from compat_tests.clients.typed import (
    bodies,
    connect,
    create_group,
    expect_refusal,
    pull,
    send,
    send_many,
    send_request,
    topic_request,
)
from compat_tests.server import eventually
from remoting.blocking import BlockingClient
from remoting.requests.admin import UpdateBrokerConfig
from remoting.requests.offsets import GetMaxOffset
from tools.processes import Gateway

BUSY, RETRY = 2, 20
START = "start flow control for a while"


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with Gateway(tmp_path, "--memory", "--brokers", "2") as running:
        yield running


@pytest.fixture
def client(gateway: Gateway) -> Iterator[BlockingClient]:
    with gateway.connect() as connected:
        yield connected


def configure(client: BlockingClient, **settings: int | str) -> None:
    text = "".join(f"{name}={value}\n" for name, value in settings.items())
    client.ask(UpdateBrokerConfig(body=text.encode()))


# One message of this size uses up a quota of 1 byte per second for longer than any test takes.
LARGE = bytes(100_000)


def test_send_quota_set_and_lifted_while_running(client: BlockingClient) -> None:
    send(client, "t", LARGE)
    configure(client, sendQuotaBytes=1)
    send(client, "t", LARGE)
    refused = expect_refusal(client, send_request("t", b"x"))
    assert (refused.code, refused.remark) == (
        BUSY,
        f"[REJECTREQUEST]system busy, {START}, send quota of this broker: 1 bytes per second",
    )
    assert client.ask(GetMaxOffset(topic="t", queue_id=0)).offset == 2
    configure(client, sendQuotaBytes=0)
    send(client, "t", b"x")


def test_quota_of_one_topic_by_mqadmin(gateway: Gateway, client: BlockingClient, tmp_path: Path) -> None:
    arguments = ["-b", gateway.broker, "-t", "loud", "-r", "4", "-w", "4"]
    printed = run_mqadmin(tmp_path / "admin", "updateTopic", *arguments, "-a", "+quota.send.bytes=1")
    assert "success" in printed
    send(client, "loud", LARGE)
    refused = expect_refusal(client, send_request("loud", b"x"))
    assert refused.code == BUSY
    assert refused.remark.endswith("send quota of topic[loud]: 1 bytes per second")
    assert send(client, "quiet").queue_offset == 0
    client.ask(topic_request("loud", 4, attributes="-quota.send.bytes"))
    send(client, "loud")


def test_producers_go_to_another_broker(gateway: Gateway, client: BlockingClient) -> None:
    """Users of a stock producer do not notice that one broker's quota is used up."""
    for address in gateway.brokers.values():
        with connect(address) as broker:
            broker.ask(topic_request("spread", 2))
    configure(client, sendQuotaBytes=1)
    send(client, "uses_it_up", LARGE)
    with stock_client(gateway.namesrv, "5.4.0") as java:
        warm_up(java)
        with java.producer("p", RetryTimesWhenSendFailed=5) as producer:
            sent = producer.send_numbered("spread", 20)
    assert {each["status"] for each in sent} == {"SEND_OK"}
    assert client.ask(GetMaxOffset(topic="spread", queue_id=0)).offset == 0
    assert client.ask(GetMaxOffset(topic="spread", queue_id=1)).offset == 0


def test_pull_quota_holds_a_push_consumer_back_but_loses_nothing(
    gateway: Gateway, client: BlockingClient
) -> None:
    for address in gateway.brokers.values():
        with connect(address) as broker:
            broker.ask(topic_request("slow", 1))
    send_many(client, "slow", [b"%d" % number for number in range(60)])
    configure(client, pullQuotaMessages=20)
    with stock_client(gateway.namesrv, "5.4.0") as java, java.push("g", "slow") as consumer:
        received = consumer.received(60, 60)
    assert Counter(one["body"] for one in received) == Counter(map(str, range(60)))


def test_pull_beyond_the_quota_is_told_to_come_again(client: BlockingClient) -> None:
    create_group(client, "g")
    send_many(client, "t", [LARGE, b"second"])
    configure(client, pullQuotaBytes=1)
    assert bodies(pull(client, "t", max_msg_nums=1)) == [LARGE]
    again = pull(client, "t", 1)
    assert (again.code, again.next_begin_offset, again.max_offset) == (RETRY, 1, 2)
    configure(client, pullQuotaBytes=0)
    assert bodies(pull(client, "t", 1)) == [b"second"]


def test_pop_beyond_the_quota_ends_as_without_messages(client: BlockingClient) -> None:
    create_group(client, "g")
    client.ask(topic_request("t", 1))
    send_many(client, "t", [LARGE, b"second"])
    configure(client, pullQuotaBytes=1)
    assert [message.body for message in pop_messages(client, "t", "g", max_msg_nums=1)] == [LARGE]
    again = pop(client, "t", "g", poll_time=200)
    assert (again.code, again.remark) == (
        POLLING_TIMEOUT,
        "pull quota of this broker: 1 bytes per second, try again",
    )
    configure(client, pullQuotaBytes=0)
    assert [message.body for message in pop_messages(client, "t", "g")] == [b"second"]


def test_sends_that_wait_too_long_are_refused_and_not_stored(client: BlockingClient) -> None:
    """Many concurrent sends, only some of which are served within one millisecond."""
    configure(client, brokerFastFailureEnable="true", waitTimeMillsInSendQueue=1)
    accepted = 0

    def refused() -> str:
        nonlocal accepted
        commands = [send_request("t", b"x").to_command() for _ in range(256)]
        answers = client.send_commands(commands)
        accepted += sum(answer.code == 0 for answer in answers)
        return next((answer.remark or "" for answer in answers if answer.code == BUSY), "")

    remark = eventually(refused, 60)
    assert remark.startswith(f"[TIMEOUT_CLEAN_QUEUE]broker busy, {START}, period in queue: ")
    configure(client, brokerFastFailureEnable="false")
    assert client.ask(GetMaxOffset(topic="t", queue_id=0)).offset == accepted
