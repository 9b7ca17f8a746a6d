"""Changing and listing the settings of a running server, as mqadmin and container recipes do."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from compat_tests.clients.typed import send
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest, eventually, split_address
from remoting.blocking import BlockingClient
from remoting.requests.admin import GetBrokerConfig, UpdateBrokerConfig
from remoting.requests.namesrv import GetNamesrvConfig, GetRouteInfoByTopic

BROKER_KEYS = {
    "brokerName": "", "brokerClusterName": "", "brokerId": "0", "brokerRole": "ASYNC_MASTER", "listenPort": "",
    "namesrvAddr": "", "brokerIP1": "", "brokerIP2": "", "haListenPort": "", "brokerPermission": "6",
    "rocketmqHome": "", "storePathRootDir": "", "storePathCommitLog": "", "flushDiskType": "ASYNC_FLUSH",
    "fileReservedTime": "", "deleteWhen": "04", "storeType": "default", "autoCreateTopicEnable": "true",
    "autoCreateSubscriptionGroup": "true", "defaultTopicQueueNums": "8", "maxMessageSize": "4194304",
    "messageDelayLevel": "", "sendMessageThreadPoolNums": "", "transactionTimeOut": "", "enableControllerMode": "false",
    "aclEnable": "false", "traceTopicEnable": "", "serverChannelMaxIdleTimeSeconds": "120", "slaveReadEnable": "false",
    "popConsumerKVServiceEnable": "false", "timerWheelEnable": "true", "inSyncReplicas": "1",
}  # fmt: skip
"""Keys that tools read, and their values where both servers of a run have the same; "" for any."""
NAMESRV_KEYS = {
    "rocketmqHome": "", "kvConfigPath": "", "configStorePath": "", "listenPort": "", "productEnvName": "center",
    "clusterTest": "false", "orderMessageEnable": "false", "enableAllTopicList": "true", "bindAddress": "",
    "scanNotActiveBrokerInterval": "5000", "serverWorkerThreads": "8", "enableControllerInNamesrv": "false",
}  # fmt: skip


def parse(body: bytes | memoryview) -> dict[str, str]:
    lines = (line.partition("=") for line in bytes(body).decode().splitlines())
    return {name: value for name, _, value in lines}


def broker_config(broker: BlockingClient) -> dict[str, str]:
    return parse(broker.ask(GetBrokerConfig()).body)


def update(broker: BlockingClient, **values: str) -> None:
    request = UpdateBrokerConfig()
    request.body = "".join(f"{name}={value}\n" for name, value in values.items()).encode()
    broker.ask(request)


@contextmanager
def changed(broker: BlockingClient, **values: str) -> Iterator[None]:
    """Change settings for the duration of a block."""
    before = broker_config(broker)
    update(broker, **values)
    try:
        yield
    finally:
        update(broker, **{name: before[name] for name in values})


@pytest.mark.parametrize("name", BROKER_KEYS)
@case("admin", "getBrokerConfig lists the official keys")
def test_broker_keys(broker: BlockingClient, name: str) -> None:
    listed = broker_config(broker)
    assert name in listed
    assert BROKER_KEYS[name] in ("", listed[name])


@pytest.mark.parametrize("name", NAMESRV_KEYS)
@case("namesrv", "getNamesrvConfig lists the official keys")
def test_namesrv_keys(namesrv: BlockingClient, name: str) -> None:
    listed = parse(namesrv.ask(GetNamesrvConfig()).body)
    assert name in listed
    assert NAMESRV_KEYS[name] in ("", listed[name])


@case("admin", "updateBrokerConfig takes brokerIP1, and listenPort and other keys with their present values")
def test_advertised_address(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    _, port = split_address(server.broker)
    before = broker_config(broker)
    same = {"listenPort": str(port), "brokerRole": "ASYNC_MASTER", "brokerName": before["brokerName"]}
    with changed(broker, brokerIP1="127.0.0.9", **same):
        assert broker_config(broker)["brokerIP1"] == "127.0.0.9"
    assert broker_config(broker) == before
    assert send(broker, topic).queue_offset == 0


@case("admin", "brokerPermission set by request is in the route at once")
def test_permission(broker: BlockingClient, namesrv: BlockingClient, topic: str) -> None:
    def permissions() -> set[int]:
        route = namesrv.ask(GetRouteInfoByTopic(topic=topic)).data
        return {queues.perm for queues in route.queue_datas}

    assert permissions() == {6}
    with changed(broker, brokerPermission="4"):
        eventually(lambda: permissions() == {4}, 5)
    eventually(lambda: permissions() == {6}, 5)
