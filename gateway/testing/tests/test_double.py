"""RocketMQ in memory: addresses, contents, waiting, lag, reset, and a broker that goes and returns."""

import threading
import zlib
from concurrent.futures import Future

import pytest
import trio

from codec.ids import decode_message_id
from codec.sysflag import COMPRESSED, COMPRESSION_ZLIB
from gateway.config.sources import ConfigError
from gateway.testing import RocketMQ, WaitTimeout
from gateway.testing.servers import UnknownBroker
from gateway.testing.tests.clients import Client, open_client, route_of
from remoting.errors import RemotingClosed, RequestError
from remoting.requests.admin import UpdateBrokerConfig


def test_namesrv_leads_to_broker(mq, client):
    client.send("orders")
    (broker,) = route_of(mq, "orders").broker_datas
    assert list(broker.broker_addrs.values()) == [mq.broker_address]
    assert mq.broker_addresses == {broker.broker_name: mq.broker_address}


def test_messages_are_listed_oldest_first(mq, client):
    for number in range(6):
        client.send("orders", b"%d" % number, queue_id=number % 4, tags="T", key=f"K{number}")
    found = mq.messages("orders")
    assert [each.body for each in found] == [b"%d" % number for number in range(6)]
    assert [each.unique_key for each in found] == [f"K{number}" for number in range(6)]
    assert {each.tags for each in found} == {"T"}
    assert mq.messages("unknown") == []


def test_bodies_are_as_they_were_sent(mq, client):
    client.send("orders", zlib.compress(b"x" * 5000), sys_flag=COMPRESSED | COMPRESSION_ZLIB)
    (found,) = mq.messages("orders")
    assert found.body == b"x" * 5000


def test_created_topic_has_its_queues(mq):
    mq.create_topic("orders", queues=2, attributes={"message.type": "FIFO"})
    (queues,) = route_of(mq, "orders").queue_datas
    assert (queues.read_queue_nums, queues.write_queue_nums) == (2, 2)
    with pytest.raises(ValueError, match="unsupported key: no"):
        mq.create_topic("orders", attributes={"no.such": "1"})


def test_wait_returns_when_messages_arrive(mq, client):
    client.send("orders", b"first")
    sender = threading.Timer(0.02, lambda: client.send("orders", b"second"))
    sender.start()
    try:
        assert [each.body for each in mq.wait_for("orders", 2)] == [b"first", b"second"]
    finally:
        sender.join()


def test_wait_says_what_is_missing(mq, client):
    client.send("orders")
    with pytest.raises(WaitTimeout, match=r"topic orders has 1 of 3 messages after 0\.01 s"):
        mq.wait_for("orders", 3, timeout_s=0.01)


def test_lag_follows_committed_offsets(mq, client):
    client.beat("c1")
    assert mq.consumer_lag("GID") == 0
    for _ in range(3):
        client.send("orders")
    client.send("other")
    assert mq.consumer_lag("GID") == 3
    client.commit(2)
    assert mq.consumer_lag("GID") == 1
    assert mq.consumer_lag("GID", "other") == 1
    with pytest.raises(WaitTimeout, match="group GID has a lag of 1 messages"):
        mq.wait_until_consumed("GID", timeout_s=0.01)
    client.commit(3)
    mq.wait_until_consumed("GID")


def test_waiting_for_a_group_that_never_consumed_times_out(mq):
    with pytest.raises(WaitTimeout):
        mq.wait_until_consumed("unknown", timeout_s=0.01)


def test_reset_forgets_everything_but_addresses(mq, client):
    client.send("orders")
    mq.faults.add("error")
    mq.advance(3600)
    before = mq.namesrv_address, mq.broker_addresses
    mq.reset()
    assert (mq.namesrv_address, mq.broker_addresses) == before
    assert mq.messages("orders") == []
    assert mq.faults.active == ()
    assert client.is_closed_by_peer()
    with Client(mq) as again:
        sent = again.send("orders", b"new")
        assert sent.queue_offset == 0
    with pytest.raises(RequestError):
        route_of(mq, "no-such-topic")


def test_broker_goes_and_returns_with_its_messages(mq, client):
    client.send("orders", b"kept")
    mq.stop_broker()
    assert client.is_closed_by_peer()
    with pytest.raises(RemotingClosed, match="refused"):
        open_client(mq.broker_address)
    with pytest.raises(RequestError):
        route_of(mq, "orders")
    mq.start_broker()
    with Client(mq) as again:
        assert again.pull_bodies("orders") == [b"kept"]
    assert list(route_of(mq, "orders").broker_datas[0].broker_addrs.values()) == [mq.broker_address]


def test_route_of_a_stopped_broker_can_stay(mq, client):
    client.send("orders")
    mq.stop_broker(keep_route=True)
    assert list(route_of(mq, "orders").broker_datas[0].broker_addrs.values()) == [mq.broker_address]


def test_one_of_two_brokers_stops():
    with RocketMQ(brokers=2, settings={"brokerName": "b-a"}) as mq:
        mq.create_topic("orders")
        assert sorted(mq.broker_addresses) == ["b-a", "b-b"]
        with pytest.raises(UnknownBroker, match=r"None.*b-a, b-b"):
            mq.stop_broker()
        mq.stop_broker("b-a")
        assert [each.broker_name for each in route_of(mq, "orders").broker_datas] == ["b-b"]
        mq.stop_broker()
        with pytest.raises(UnknownBroker, match="running ones: none"):
            mq.stop_broker("b-a")
        mq.reset()
        mq.create_topic("orders")
        assert len(route_of(mq, "orders").broker_datas) == 2


def test_settings_reach_the_broker():
    settings = {"autoCreateTopicEnable": "false"}
    with (
        RocketMQ(settings=settings) as mq,
        Client(mq) as client,
        pytest.raises(RequestError, match="not exist"),
    ):
        client.send("orders")
    with pytest.raises(ConfigError, match="autoCreateTopic"):
        RocketMQ(settings={"autoCreateTopicEnabled": "false"})


def test_advertised_address_changes_while_the_broker_runs(mq, client):
    client.send("orders")
    client.ask(UpdateBrokerConfig(body=b"brokerIP1=198.51.100.7\nadvertisedPort=32768"))
    sent = client.send("orders")
    assert decode_message_id(sent.msg_id)[:2] == ("198.51.100.7", 32768)
    (broker,) = route_of(mq, "orders").broker_datas
    assert list(broker.broker_addrs.values()) == ["198.51.100.7:32768"]


def test_two_run_side_by_side(mq, client):
    with RocketMQ() as other, Client(other) as other_client:
        client.send("orders", b"here")
        other_client.send("orders", b"there")
        assert [each.body for each in mq.messages("orders")] == [b"here"]
        assert [each.body for each in other.messages("orders")] == [b"there"]


def test_closed_one_says_so():
    mq = RocketMQ().start()
    mq.close()
    mq.close()
    with pytest.raises(RuntimeError, match="not running"):
        mq.messages("orders")
    with mq:
        assert mq.messages("orders") == []


def test_closing_ends_a_wait_of_another_thread():
    mq = RocketMQ().start()
    is_waiting = threading.Event()
    ended: Future[str] = Future()

    async def wait_forever():
        is_waiting.set()
        await trio.sleep_forever()

    def wait():
        try:
            mq._await(wait_forever)
        except RuntimeError as error:
            ended.set_result(str(error))

    threading.Thread(target=wait, daemon=True).start()
    assert is_waiting.wait(60)
    mq.close()
    assert ended.result(60) == "the servers were closed meanwhile"


def test_start_that_fails_raises():
    with pytest.raises(OSError, match="cannot listen"), RocketMQ(host="192.0.2.1"):
        pass


@pytest.mark.parametrize(
    "setting",
    [
        "httpPort=0",
        "brokerProcesses=true",
        "metricsExporterType=LOG",
        "readyFile=/tmp/x",
    ],
)
def test_a_setting_that_would_have_no_effect_is_refused(setting):
    """They were ignored, and clients of the port waited for a server that was not there."""
    name, _, text = setting.partition("=")
    with pytest.raises(ConfigError, match=f"{name} would have no effect in the test double"):
        RocketMQ(settings={name: text})
