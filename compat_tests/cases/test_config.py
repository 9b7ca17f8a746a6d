"""Changing and listing the settings of a running server, as mqadmin and container recipes do."""

import json
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from compat_tests.clients.typed import connect, send
from compat_tests.endpoints import official, ours
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.marks import case, needs_admin
from compat_tests.server import ServerUnderTest, eventually, split_address
from remoting.blocking import BlockingClient
from remoting.errors import RequestError
from remoting.requests.admin import GetBrokerConfig, UpdateBrokerConfig
from remoting.requests.namesrv import GetNamesrvConfig, GetRouteInfoByTopic

pytestmark = needs_admin("changes settings of the broker")

LISTING = Path(__file__).with_name("config_listing.toml")
"""The keys that official servers list with their defaults, and the keys that only ours lists with the reasons."""
ANY = "*"
"""Stands for a value that depends on the machine or on the run."""
SET_BY_RUN = {
    "official": {**official.BROKER_SETTINGS, **official.IDLE_SETTINGS},
    "ours": {**ours.BROKER_SETTINGS, **ours.FULL_DISK_SETTINGS},
}
"""Keys that the suite itself sets, by the kind of endpoint."""


@pytest.fixture(scope="module")
def recorded(request: pytest.FixtureRequest, recorded_server: ServerUnderTest) -> dict[str, Any]:
    """The content of the recording, renewed before with ``--record``."""
    server = recorded_server
    table = tomllib.loads(LISTING.read_text())
    if request.config.getoption("--record"):
        assert server.kind == "official", "only the official server is recorded"
        with connect(server.broker) as broker, connect(server.namesrv) as namesrv:
            table["broker"] = renewed(table["broker"], broker_config(broker))
            table["namesrv"] = renewed(table["namesrv"], parse(namesrv.ask(GetNamesrvConfig()).body))
        write_listing(table)
    return table


def renewed(old: dict[str, str], listed: dict[str, str]) -> dict[str, str]:
    """Return the listed values, but the old ones where a run decides them."""
    kept = {name for name in old if old[name] == ANY or name in SET_BY_RUN["official"]}
    return {name: old[name] if name in kept else value for name, value in sorted(listed.items())}


def write_listing(table: dict[str, Any]) -> None:
    text = LISTING.read_text()
    comment, _, rest = text.partition("[broker]\n")
    _, bar, reasons = rest.partition("\n[different.broker]")
    lines = [comment]
    for server in ("broker", "namesrv"):
        lines.append(f"[{server}]\n")
        lines += [f"{name} = {json.dumps(value)}\n" for name, value in table[server].items()]
        lines.append("\n")
    LISTING.write_text("".join(lines).rstrip("\n") + "\n" + bar + reasons)


def assert_lists_the_recorded(
    listed: dict[str, str], kind: str, recorded: dict[str, Any], server: str
) -> None:
    """Check that a listing has the official keys and values, and besides them only those that are excused."""
    official_values: dict[str, str] = recorded[server]
    different = {
        name: f"{listed.get(name, 'missing')!r}, officially {value!r}"
        for name, value in official_values.items()
        if name not in listed or (value not in (ANY, listed[name]) and name not in SET_BY_RUN.get(kind, {}))
    }
    excused_values = recorded["different"].get(server, {}) if kind == "ours" else {}
    assert {name: text for name, text in different.items() if name not in excused_values} == {}
    assert excused_values.keys() <= different.keys(), "a value no longer differs: remove it from the file"
    groups = [group for group in recorded["only_ours"] if server in group["servers"]]
    excused = {name for group in groups for name in group["keys"]} if kind == "ours" else set()
    assert listed.keys() - official_values.keys() == excused


def parse(body: bytes | memoryview) -> dict[str, str]:
    lines = (line.partition("=") for line in bytes(body).decode().splitlines())
    return {name: value for name, _, value in lines}


def broker_config(broker: BlockingClient) -> dict[str, str]:
    return parse(broker.ask(GetBrokerConfig()).body)


def update(broker: BlockingClient, **values: str) -> None:
    request = UpdateBrokerConfig()
    request.body = "".join(f"{name}={value}\n" for name, value in values.items()).encode()
    broker.ask(request)


BLACK_LIST = ("brokerConfigPath", "rocketmqHome", "configBlackList")
LIVE = {
    "fileReservedTime": "9", "deleteWhen": "03;15", "deleteFileBatchMax": "7", "diskMaxUsedSpaceRatio": "94",
    "flushIntervalCommitLog": "400", "syncFlushTimeout": "4000", "maxMessageSize": "4194000",
    "maxTransferCountOnMessageInMemory": "31", "maxTransferBytesOnMessageInMemory": "262000",
    "maxTransferCountOnMessageInDisk": "9", "maxTransferBytesOnMessageInDisk": "65000",
    "accessMessageInMemoryMaxRatio": "39", "defaultQueryMaxNum": "33", "maxFilterMessageSize": "16020",
    "regionId": "north", "traceOn": "false", "transactionTimeOut": "6100", "transactionCheckMax": "14",
    "transactionCheckInterval": "30100", "notifyConsumerIdsChangedEnable": "false", "longPollingEnable": "false",
    "rejectTransactionMessage": "true", "autoCreateSubscriptionGroup": "false", "timerStopEnqueue": "true",
    "enableCreateSysGroup": "false",
}  # fmt: skip
"""Official keys that both servers apply at once; what each does is held by tests of the feature."""


@contextmanager
def changed(broker: BlockingClient, **values: str) -> Iterator[None]:
    """Change settings for the duration of a block."""
    before = broker_config(broker)
    update(broker, **values)
    try:
        yield
    finally:
        update(broker, **{name: before[name] for name in values})


@case("admin", "getBrokerConfig lists every official key with the official default")
def test_broker_keys(broker: BlockingClient, server: ServerUnderTest, recorded: dict[str, Any]) -> None:
    assert_lists_the_recorded(broker_config(broker), server.kind, recorded, "broker")


@case("namesrv", "getNamesrvConfig lists every official key with the official default")
def test_namesrv_keys(namesrv: BlockingClient, server: ServerUnderTest, recorded: dict[str, Any]) -> None:
    listed = parse(namesrv.ask(GetNamesrvConfig()).body)
    assert_lists_the_recorded(listed, server.kind, recorded, "namesrv")


@case("admin", "updateBrokerConfig takes every listed key with its present value")
def test_present_values(broker: BlockingClient, recorded: dict[str, Any]) -> None:
    before = broker_config(broker)
    update(broker, **{name: before[name] for name in recorded["broker"] if name not in BLACK_LIST})
    assert broker_config(broker) == before


@pytest.mark.parametrize("name", BLACK_LIST)
@case("admin", "updateBrokerConfig refuses keys of the black list (16), whatever else comes with them")
def test_black_list(broker: BlockingClient, name: str) -> None:
    before = broker_config(broker)
    with pytest.raises(RequestError) as refused:
        update(broker, fileReservedTime="9", **{name: before.get(name, "")})
    assert (refused.value.code, refused.value.remark) == (16, "Can not update config in black list.")
    assert broker_config(broker) == before


@pytest.mark.parametrize("name", LIVE)
@case("admin", "keys that can change while the broker runs are listed with their new value")
def test_live(broker: BlockingClient, name: str) -> None:
    with changed(broker, **{name: LIVE[name]}):
        assert broker_config(broker)[name] == LIVE[name]


@case("admin", "updateBrokerConfig takes brokerIP1, and listenPort and other keys with their present values")
def test_advertised_address(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    _, port = split_address(server.broker)
    before = broker_config(broker)
    same = {"listenPort": str(port), "brokerRole": "ASYNC_MASTER", "brokerName": before["brokerName"]}
    with changed(broker, brokerIP1="127.0.0.9", **same):
        assert broker_config(broker)["brokerIP1"] == "127.0.0.9"
    assert broker_config(broker) == before
    assert send(broker, topic).queue_offset == 0


@case("admin", "updateBrokerConfig takes another listenPort, and announces it without listening on it")
def test_announced_port(
    broker: BlockingClient, namesrv: BlockingClient, server: ServerUnderTest, topic: str
) -> None:
    """As containers do whose published port is known after their start; brokerPermission registers at once."""
    _, port = split_address(server.broker)

    def ports() -> set[int]:
        brokers = namesrv.ask(GetRouteInfoByTopic(topic=topic)).data.broker_datas
        return {split_address(address)[1] for each in brokers for address in each.broker_addrs.values()}

    assert ports() == {port}
    other = find_server_ports()[1]
    broker.ask(UpdateBrokerConfig(body=f"listenPort={other}\nbrokerPermission=6".encode()))
    try:
        eventually(lambda: ports() == {other}, 60)
        assert send(broker, topic).queue_offset == 0
    finally:
        broker.ask(UpdateBrokerConfig(body=f"listenPort={port}\nbrokerPermission=6".encode()))
    eventually(lambda: ports() == {port}, 60)


@case("admin", "brokerPermission set by request is in the route at once")
def test_permission(broker: BlockingClient, namesrv: BlockingClient, topic: str) -> None:
    def permissions() -> set[int]:
        route = namesrv.ask(GetRouteInfoByTopic(topic=topic)).data
        return {queues.perm for queues in route.queue_datas}

    assert permissions() == {6}
    with changed(broker, brokerPermission="4"):
        eventually(lambda: permissions() == {4}, 5)
    eventually(lambda: permissions() == {6}, 5)
