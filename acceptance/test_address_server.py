"""Stock clients, our brokers and our commands that find the namesrvs at an address server, and know nothing else."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat_tests.clients.programs import ProgramResult, run_command, run_go, run_java
from compat_tests.clients.typed import topic_request
from compat_tests.jars import Unavailable
from compat_tests.plugin import skip_or_fail
from compat_tests.server import eventually, split_address
from remoting.blocking import BlockingClient
from remoting.requests.namesrv import GetBrokerClusterInfo
from tools.processes import Gateway, environment

COUNT = 50
TIMEOUT_S = 150


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("server"), "--memory", "--set", "httpPort=0") as process:
        yield process
        assert "Traceback" not in process.output()


def with_java(profile: str) -> Callable[[str, str], ProgramResult]:
    def run(http: str, topic: str) -> ProgramResult:
        return run_java(profile, "-", topic, COUNT, TIMEOUT_S, {"rocketmq.namesrv.domain": http})

    return run


def with_java_subgroup(http: str, topic: str) -> ProgramResult:
    properties = {"rocketmq.namesrv.domain": http, "rocketmq.namesrv.domain.subgroup": "nsaddr-unit"}
    return run_java("client-5.5", "-", topic, COUNT, TIMEOUT_S, properties)


def with_go(http: str, topic: str) -> ProgramResult:
    return run_go(f"http://{http}/rocketmq/nsaddr", topic, COUNT, TIMEOUT_S)


CLIENTS = {
    "java-4.9.8": with_java("client-4.9"),
    "java-5.5.0": with_java("client-5.5"),
    "java-5.5.0-subgroup": with_java_subgroup,
    "go": with_go,
}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_stock_client_that_knows_nothing_else_sends_and_consumes(
    server: Gateway, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    topic = f"found-by-{name.replace('.', '-')}"
    with server.connect() as client:
        client.ask(topic_request(topic, 4))
    try:
        result = CLIENTS[name](server.ready["http"], topic)
    except Unavailable as missing:
        skip_or_fail(str(missing))
    assert (result.sent, result.distinct) == (COUNT, COUNT)


def brokers_of(namesrv: str) -> set[str]:
    with BlockingClient(*split_address(namesrv), timeout_s=15) as client:
        return set(client.ask(GetBrokerClusterInfo()).data.broker_addr_table)


def test_a_broker_follows_a_changing_list_without_a_restart(tmp_path: Path) -> None:
    """The list of the second address server replaces that of the first at the same port."""
    with (
        Gateway(tmp_path / "b", command="namesrv") as second,
        Gateway(tmp_path / "a", "--set", "httpPort=0", command="namesrv") as first,
    ):
        http = first.ready["http"]
        settings = {
            "fetchNamesrvAddrByAddressServer": "true",
            "rmqAddressServerDomain": http,
            "fetchNamesrvAddrInterval": "1000",
        }
        flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        with Gateway(tmp_path / "c", "--memory", *flags, command="broker") as broker:
            eventually(lambda: brokers_of(first.namesrv) == {"broker-a"}, timeout_s=60)
            assert brokers_of(second.namesrv) == set()
            port = http.rpartition(":")[2]
            first.kill()
            both = f"{second.namesrv};{first.namesrv}"
            with Gateway(
                tmp_path / "d",
                *("--set", f"httpPort={port}", "--set", f"addressServerList={both}"),
                command="namesrv",
            ):
                eventually(lambda: brokers_of(second.namesrv) == {"broker-a"}, timeout_s=60)
            assert broker.output().count("namesrvs not looked up") <= 2


def test_commands_ask_an_address_server(server: Gateway, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "gateway.commands.cli", "cluster", "info", "--json"]
    by_flag = run_command([*line, "--address-server", server.ready["http"]], 60, environment(tmp_path))
    assert "broker-a" in by_flag
    variables = environment(tmp_path, {"RMQ_GATEWAY_CLIENT_ADDRESS_SERVER": server.ready["http"]})
    assert run_command(line, 60, variables) == by_flag
