"""`rmq-gateway broker config …` and `rmq-gateway namesrv config …`."""

import json

import pytest

from gateway.admin.server_config import is_secret, mask_secrets
from gateway.admin.tests.local_server import LocalServer
from toolkit.settings import REDACTED


def test_settings_of_brokers(server: LocalServer) -> None:
    rows = server.read("broker", "config", "get", "brokername")
    assert rows == [
        {"server": "broker-a", "key": "brokerName", "value": "broker-a"},
        {"server": "broker-b", "key": "brokerName", "value": "broker-b"},
    ]
    assert len(server.read("broker", "config", "get", "--broker", "broker-a")) > 50
    server.run("broker", "config", "get", "no-such-key", code=4)


def test_a_broker_takes_a_setting_over(server: LocalServer) -> None:
    change = ["broker", "config", "set", "transactionCheckMax=7", "--broker", "broker-b", "--yes", "--json"]
    (row,) = json.loads(server.run(*change))
    assert (row["server"], row["now"], row["applied"]) == ("broker-b", "7", True)
    values = server.read("broker", "config", "get", "transactionCheckMax")
    assert [each["value"] == "7" for each in values] == [False, True]


def test_settings_of_namesrvs(server: LocalServer) -> None:
    (row,) = server.read("namesrv", "config", "get", "orderMessageEnable")
    assert (row["server"], row["value"]) == (server.namesrv, "false")
    text = server.run("namesrv", "config", "set", "orderMessageEnable=true", "--yes")
    assert text.split()[-5:] == [server.namesrv, "orderMessageEnable", "false", "true", "yes"]
    server.run("namesrv", "config", "set", "orderMessageEnable=false", "--yes")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("broker", "config", "set", "fileReservedTime"), 2, "expected KEY=VALUE"),
        (("broker", "config", "set", "fileReservedTime=1"), 2, "pass --yes"),
        (
            ("broker", "config", "set", "a=1", "--broker", "broker-z", "-y"),
            1,
            '--broker: "broker-z" is not known',
        ),
        (("broker", "config", "set", "fileReservedTime=soon", "-y"), 1, "refused UPDATE_BROKER_CONFIG"),
    ],
)
def test_refusals(server: LocalServer, arguments: tuple[str, ...], code: int, text: str) -> None:
    result = server.invoke(*arguments)
    assert (result.exit_code, text in result.output) == (code, True), result.output


@pytest.mark.parametrize(
    "name",
    [
        "tls.server.keyPassword", "initAuthenticationUser", "innerClientAuthenticationCredentials", "httpToken",
        "rocketmqSecretKey", "securityToken", "authenticationPasswd",
    ],
)  # fmt: skip
def test_secrets(name: str) -> None:
    assert is_secret(name)
    assert mask_secrets({name: "x"}) == {name: REDACTED}
    assert mask_secrets({name: ""}) == {name: ""}


@pytest.mark.parametrize(
    "name",
    ["brokerName", "secretKeyFile", "tls.server.keyPath", "tokenRefreshIntervalMs", "fileReservedTime"],
)
def test_settings_that_are_shown(name: str) -> None:
    assert mask_secrets({name: "x"}) == {name: "x"}
