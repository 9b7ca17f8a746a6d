"""The list of namesrvs at the HTTP port: its content for each kind of client, and what is not served."""

import http.client
from typing import Any

import pytest
import trio

from gateway.config.process import NamesrvConfig, ProcessConfig, ServeConfig
from gateway.http_server.errors import ConsoleError
from gateway.process import address_server
from gateway.process.address_server import AddressServer
from gateway.process.http_endpoint import Readiness, build_http_endpoint
from gateway.runtime.metrics import MetricRegistry
from gateway.tests.configs import broker_config

CLIENT, HERE = "10.1.0.1", "10.0.0.1"


def configured(text: str = "auto", broker_ip: str = "auto", **process: Any) -> ServeConfig:
    settings = ProcessConfig(address_server_list=text, **process)
    return ServeConfig(
        process=settings, namesrv=NamesrvConfig(), brokers=(broker_config(broker_ip=broker_ip),)
    )


def serving(config: ServeConfig, port: int | None = 9876) -> AddressServer:
    return AddressServer(config, lambda: port, lambda: config.brokers[0].broker_ip)


def listed(
    config: ServeConfig, path: str = "/rocketmq/nsaddr", remote: str = CLIENT, local: str = HERE
) -> str:
    return serving(config).list_page(path, remote, local).content.decode()


@pytest.mark.parametrize("path", ["/rocketmq/nsaddr", "/rocketmq/nsaddr-unit", "/rocketmq/nsaddr-a.b_c%7C9"])
def test_the_own_namesrv_has_the_address_that_the_client_reached(path: str) -> None:
    assert listed(configured(), path) == "10.0.0.1:9876"


@pytest.mark.parametrize(("local", "text"), [("::1", "[::1]:9876"), ("::ffff:10.0.0.1", "10.0.0.1:9876")])
def test_addresses_of_ipv6(local: str, text: str) -> None:
    assert listed(configured(), local=local) == text


def test_an_advertised_host_wins() -> None:
    assert listed(configured(broker_ip="mq.example.org")) == "mq.example.org:9876"


def test_a_changed_advertised_host_is_listed_at_once() -> None:
    hosts = ["auto"]
    namesrvs = AddressServer(configured(), lambda: 9876, lambda: hosts[-1])
    assert namesrvs.list_page("/rocketmq/nsaddr", CLIENT, HERE).content == b"10.0.0.1:9876"
    hosts.append("mq.example.org")
    assert namesrvs.list_page("/rocketmq/nsaddr", CLIENT, HERE).content == b"mq.example.org:9876"


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("auto;b:9876;c:1", "10.0.0.1:9876;b:9876;c:1"),
        ("b:9876", "b:9876"),
        ("10.0.0.1:9876;auto;b:1;b:1", "10.0.0.1:9876;b:1"),
    ],
)
def test_the_setting_names_other_namesrvs(setting: str, text: str) -> None:
    assert listed(configured(setting)) == text


def test_the_host_of_a_container_gets_its_published_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_server, "find_default_gateway", lambda: "172.17.0.1")
    config = configured(published_ports=True)
    assert listed(config, remote="172.17.0.1", local="172.17.0.2") == "127.0.0.1:9876"
    assert listed(config, remote="172.17.0.9", local="172.17.0.2") == "172.17.0.2:9876"


def test_without_a_namesrv_there_is_no_own_address() -> None:
    with pytest.raises(ConsoleError, match="this process has no namesrv") as refused:
        serving(configured(), None).list_page("/rocketmq/nsaddr", CLIENT, HERE)
    assert refused.value.status == 404
    others = serving(configured("auto;b:1"), None)
    assert others.list_page("/rocketmq/nsaddr", CLIENT, HERE).content == b"b:1"


@pytest.mark.parametrize(
    "path", ["/rocketmq/nsaddrx", "/rocketmq/nsaddr/", "/rocketmq/nsaddr-", "/rocketmq/nsaddr-a/b"]
)
def test_other_paths_are_not_served(path: str) -> None:
    with pytest.raises(ConsoleError) as refused:
        listed(configured(), path)
    assert refused.value.status == 404


def test_a_name_is_bounded() -> None:
    assert listed(configured(), "/rocketmq/nsaddr-" + "a" * 255)
    with pytest.raises(ConsoleError):
        listed(configured(), "/rocketmq/nsaddr-" + "a" * 256)


def test_the_port_serves_the_list_without_token_and_under_any_host_name_by_get_only() -> None:
    async def main() -> None:
        config = configured("auto;b:9876", http_port=0, http_token="t0ken")
        namesrvs = serving(config)
        endpoint = build_http_endpoint(
            config.process, config.tls, MetricRegistry(), Readiness(list), namesrvs
        )
        assert endpoint is not None
        async with trio.open_nursery() as nursery:
            host, port = await nursery.start(endpoint.run)

            def ask(method: str, path: str) -> tuple[int, bytes, str | None]:
                client = http.client.HTTPConnection(host, port, timeout=10)
                client.request(method, path, headers={"Host": "jmenv.tbsite.net:8080"})
                answer = client.getresponse()
                return answer.status, answer.read(), answer.getheader("Content-Type")

            async def answer_to(method: str, path: str) -> tuple[int, bytes, str | None]:
                return await trio.to_thread.run_sync(ask, method, path)

            text = b"127.0.0.1:9876;b:9876"
            plain = "text/plain; charset=utf-8"
            assert await answer_to("GET", "/rocketmq/nsaddr") == (200, text, plain)
            assert await answer_to("GET", "/rocketmq/nsaddr-unit?nofix=1") == (200, text, plain)
            assert await answer_to("HEAD", "/rocketmq/nsaddr") == (200, b"", plain)
            for method in ("POST", "PUT", "DELETE", "OPTIONS"):
                assert (await answer_to(method, "/rocketmq/nsaddr-unit"))[0] == 405
            assert (await answer_to("GET", "/rocketmq/nsaddr/../metrics"))[0] == 404
            assert (await answer_to("GET", "/metrics"))[0] in (401, 403)
            nursery.cancel_scope.cancel()

    trio.run(main)
