"""The embedded target: serves when started, is restarted after SIGKILL, and ends with the gateway."""

import os
import signal

import pytest
import trio

from compat_tests.endpoints.ports import find_server_ports
from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.clusters.embedded_target import EmbeddedSettings, EmbeddedTarget
from gateway.shadow.clusters.endpoints import TargetSettings
from remoting.server import open_listeners
from toolkit.settings import SettingsError
from toolkit.toml_tables import load_table


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture
def settings(tmp_path):
    return EmbeddedSettings(str(tmp_path / "store"), *find_server_ports(brokers=2), brokers=2)


async def broker_names(settings):
    async with trio.open_nursery() as nursery:
        cluster = Cluster([settings.namesrv])
        await nursery.start(cluster.run)
        await cluster.refresh()
        nursery.cancel_scope.cancel()
    return sorted(cluster.brokers)


def test_target_is_restarted_after_a_kill_and_stopped(settings):
    async def main():
        embedded = EmbeddedTarget(settings)
        async with trio.open_nursery() as nursery:
            await nursery.start(embedded.run)
            assert await broker_names(settings) == ["broker-a", "broker-b"]
            first = embedded.pid
            os.kill(first, signal.SIGKILL)
            with trio.fail_after(60):
                while embedded.pid in (first, None) or not embedded._ready.exists():
                    await trio.sleep(0.02)
            assert await broker_names(settings) == ["broker-a", "broker-b"]
            last = embedded.pid
            nursery.cancel_scope.cancel()
        assert (is_gone(first), is_gone(last), embedded.restarts) == (True, True, 1)

    trio.run(main)


def test_gateway_that_ends_during_the_start_stops_the_target(settings):
    """Also if the target is ready already and the gateway has not noticed."""

    async def main():
        embedded = EmbeddedTarget(settings)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(embedded.run)
            with trio.fail_after(60):
                while embedded.pid is None:
                    await trio.lowlevel.checkpoint()
            first = embedded.pid
            while not embedded._ready.exists():
                os.sched_yield()  # Blocks the loop, so that the gateway cannot notice.
            nursery.cancel_scope.cancel()
        assert is_gone(first)

    trio.run(main)


def test_failed_start_is_an_error(settings):
    async def main():
        taken = open_listeners("127.0.0.1", settings.namesrv_port)[0]
        with taken, pytest.raises(OSError, match="did not start"):
            await EmbeddedTarget(settings).run()

    trio.run(main)


def test_embedded_target_replaces_namesrv_and_kind():
    found = load_table(TargetSettings, {"embedded": {"store": "s"}}, "target")
    assert (found.namesrv, found.kind) == (["127.0.0.1:9976"], "ours")
    with pytest.raises(SettingsError, match="either namesrv or embedded"):
        load_table(TargetSettings, {"namesrv": ["127.0.0.1:1"], "embedded": {"store": "s"}}, "target")


def test_secret_settings_are_not_on_the_command_line():
    given = {
        "initAuthenticationUser": '{"username":"root","password":"open sesame"}',
        "fileReservedTime": "5",
    }
    target = EmbeddedTarget(EmbeddedSettings(store="/store", settings=given))
    assert "open sesame" not in " ".join(target.command())
    assert "fileReservedTime=5" in target.command()
    assert target.secret_variables() == {
        "RMQ_GATEWAY_INIT_AUTHENTICATION_USER": given["initAuthenticationUser"]
    }
