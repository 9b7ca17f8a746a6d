"""The HTTP port of a server: probes and metrics."""

import json
import urllib.error
import urllib.request

import pytest
import trio

from gateway.config.process import ProcessConfig
from gateway.console.errors import ConsoleError
from gateway.http_endpoint import Readiness, build_http_endpoint
from gateway.runtime.metrics import MetricRegistry
from gateway.runtime.supervise import TaskSupervisor
from remoting.tests.virtual import virtual
from toolkit.settings import SettingsError


def fail():
    raise OSError("no space left")


@virtual
async def test_a_process_is_ready_while_no_task_fails():
    tasks = TaskSupervisor("broker-a")
    readiness = Readiness(lambda: [tasks])
    assert await readiness.report({}) == {"ready": True}
    await tasks.attempt("save offsets", fail)
    with pytest.raises(
        ConsoleError, match=r"broker-a: save offsets .1 times in a row: OSError: no space left"
    ) as refused:
        await readiness.report({})
    assert refused.value.status == 503
    await tasks.attempt("save offsets", lambda: None)
    assert await readiness.report({}) == {"ready": True}
    readiness.is_stopping = True
    with pytest.raises(ConsoleError, match="stopping"):
        await readiness.report({})


def test_without_a_port_there_is_no_endpoint():
    assert build_http_endpoint(ProcessConfig(), MetricRegistry(), Readiness(list)) is None


def test_an_address_that_others_reach_needs_a_token():
    config = ProcessConfig(http_port=0, http_address="0.0.0.0")
    with pytest.raises(SettingsError, match=r"httpAddress=0.0.0.0 can be reached by others: set httpToken"):
        build_http_endpoint(config, MetricRegistry(), Readiness(list))


def test_probes_are_open_and_metrics_need_the_token():
    async def main():
        config = ProcessConfig(http_port=0, http_token="t0ken")
        endpoint = build_http_endpoint(config, MetricRegistry(), Readiness(list))
        async with trio.open_nursery() as nursery:
            host, port = await nursery.start(endpoint.run)

            def get(path, **headers):
                return trio.to_thread.run_sync(fetch, f"http://{host}:{port}{path}", headers)

            assert await get("/healthz") == (200, {"ok": True})
            assert await get("/readyz") == (200, {"ready": True})
            assert (await get("/metrics"))[0] == 401
            status, text = await get("/metrics", Authorization="Bearer t0ken")
            assert status == 200
            assert "rocketmq_gateway_console_evicted_connections_total 0.0" in text
            nursery.cancel_scope.cancel()

    trio.run(main)


@pytest.mark.parametrize("token", ["", "t0ken"])
def test_metrics_are_not_for_pages_under_a_name_of_their_own(token):
    """A web page may make its name resolve to this machine; probes reveal nothing and are asked for under any name."""

    async def main():
        config = ProcessConfig(
            http_port=0, http_token=token, http_hosts="metrics.example.org, other.example.org"
        )
        endpoint = build_http_endpoint(config, MetricRegistry(), Readiness(list))
        given = {"Authorization": f"Bearer {token}"} if token else {}
        async with trio.open_nursery() as nursery:
            host, port = await nursery.start(endpoint.run)

            async def status(path, **headers):
                url = f"http://{host}:{port}{path}"
                return (await trio.to_thread.run_sync(fetch, url, {**given, **headers}))[0]

            assert await status("/metrics") == 200
            assert await status("/metrics", Host="other.example.org:9881") == 200
            assert await status("/metrics", Host="evil.example") == 403
            assert await status("/metrics", Origin="http://evil.example") == 403
            assert await status("/healthz", Host="evil.example") == 200
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_the_endpoint_listens_on_loopback_by_default():
    endpoint = build_http_endpoint(ProcessConfig(http_port=0), MetricRegistry(), Readiness(list))
    assert endpoint.settings.host == "127.0.0.1"


def fetch(url, headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            status, text = error.code, error.read().decode()
    return status, json.loads(text) if text.startswith("{") else text
