"""Real broker processes of a supervisor without a namesrv; the conformance suite has cases with clients."""

import socket

import pytest
import trio

from gateway.config.process import NamesrvConfig, ProcessConfig, ServeConfig
from gateway.process.supervision.broker_processes import BrokerProcesses
from gateway.process.supervision.restart_policy import BrokerStartError
from gateway.runtime.process import leaves
from gateway.tests.configs import broker_config

START_TIMEOUT_S = 60


def config(*ports: int) -> ServeConfig:
    brokers = tuple(
        broker_config(broker_name=f"broker-{number}", listen_port=port) for number, port in enumerate(ports)
    )
    process = ProcessConfig(host="127.0.0.1", memory=True, brokers=len(ports), processes=True)
    return ServeConfig(process=process, namesrv=NamesrvConfig(), brokers=brokers)


def test_processes_start_tell_their_state_and_stop(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        processes = BrokerProcesses(config(0, 0), None, None)
        with trio.fail_after(START_TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                addresses = await processes.start(nursery)
                assert set(addresses) == {"broker-0", "broker-1"}
                for address in addresses.values():
                    host, port = address.split(":")
                    socket.create_connection((host, int(port)), 10).close()
                assert await processes.find_troubles() == []
                metrics = await processes.remote_metrics()
                await processes.stop()
        ready = {each.labels["broker"]: each.value for each in metrics if each.name == "broker_process_ready"}
        assert ready == {"broker-0": 1.0, "broker-1": 1.0}
        assert {each.labels["broker"] for each in metrics if each.name == "connections"} == set(addresses)
        assert await processes.find_troubles() == ["broker-0: ending", "broker-1: ending"]

    trio.run(main)
    assert 'stopping broker=broker-1 signal="stopped by the supervisor"' in capsys.readouterr().err


def test_a_port_in_use_ends_the_server_and_all_processes(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        async def main() -> None:
            processes = BrokerProcesses(config(0, port), None, None)
            with trio.fail_after(START_TIMEOUT_S):
                async with trio.open_nursery() as nursery:
                    await processes.start(nursery)

        with pytest.raises(ExceptionGroup) as problems:
            trio.run(main)
    (problem,) = leaves(problems.value)
    assert isinstance(problem, BrokerStartError)
    assert str(problem).startswith(f"cannot listen on 127.0.0.1:{port} (listenPort): address already in use")
    assert "Error:" not in capsys.readouterr().err
