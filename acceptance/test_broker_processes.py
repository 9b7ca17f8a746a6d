"""`serve --brokers N --processes`: each broker is a process of its own, under one namesrv and one supervisor."""

import fcntl
import json
import os
import re
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from acceptance.test_cluster import send_and_consume
from acceptance.workload import read_queue
from compat_tests.cases.conftest import JAVA_CLIENTS, stock_client
from compat_tests.clients.typed import connect, send, send_many
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.endpoints.process import ChildProcess, descendants
from compat_tests.server import eventually
from remoting.blocking import BlockingClient
from remoting.errors import RemotingClosed, RequestError
from remoting.requests.admin import GetBrokerConfig, UpdateBrokerConfig
from remoting.requests.namesrv import GetRouteInfoByTopic, RegisterBroker
from tools.processes import Gateway, ProcessEndedEarly, environment

BOTH = {"broker-a", "broker-b"}
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) ")


def serve(directory: Path, *arguments: str, **options) -> Gateway:
    """Start two broker processes, on disk unless the arguments say ``--memory``."""
    store = () if "--memory" in arguments else ("--store", str(directory / "store"))
    return Gateway(directory, "--brokers", "2", "--processes", *store, *arguments, **options)


def process_of(gateway: Gateway, broker: str) -> int:
    """Return the id of a broker's present process."""
    return int(re.findall(r"pid=(\d+)", gateway.lines(f"broker process started broker={broker} ")[-1])[0])


def is_alive(pid: int) -> bool:
    """Return False for a process that has ended, even if nobody has waited for it."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def route(gateway: Gateway, topic: str = "TBW102", host: str = "127.0.0.1") -> dict[str, str]:
    """Return the master addresses of a topic's brokers, as a client sees them that dials the namesrv at ``host``."""
    with connect(f"{host}:{gateway.namesrv.rpartition(':')[2]}") as client:
        try:
            data = client.ask(GetRouteInfoByTopic(topic=topic)).data
        except RequestError:
            return {}
    return {each.broker_name: each.broker_addrs[0] for each in data.broker_datas}


def get(gateway: Gateway, path: str) -> tuple[int, str]:
    """Return status and text of a page of the HTTP port."""
    try:
        with urllib.request.urlopen(f"http://{gateway.ready['http']}{path}", timeout=15) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def bodies(client: BlockingClient, topic: str) -> list[bytes]:
    return [each.body for each in read_queue(client, topic)]


@contextmanager
def dialled(gateway: Gateway, broker: str) -> Iterator[BlockingClient]:
    with connect(gateway.brokers[broker]) as client:
        yield client


# Start and stop


def test_one_ready_line_one_namesrv_one_sigterm(tmp_path: Path) -> None:
    with serve(tmp_path) as gateway:
        assert set(gateway.ready) == {"event", "pid", "namesrv", "brokers"}
        assert set(gateway.brokers) == BOTH
        pids = descendants(gateway.pid)
        assert len(pids) == 3, "a supervisor and two brokers"
        assert route(gateway) == gateway.brokers
        for broker in BOTH:
            with dialled(gateway, broker) as client:
                send(client, "sent", broker.encode())
        assert eventually(lambda: route(gateway, "sent") == gateway.brokers)
        assert gateway.stop() == 0
        assert not any(map(is_alive, pids))
        assert not gateway.lines("stopping at once")
        assert not gateway.lines("Traceback")
    assert not list(tmp_path.rglob("abort")), "every store was closed in order"


def test_a_ctrl_c_reaches_all_processes_and_ends_them_in_order(tmp_path: Path) -> None:
    with serve(tmp_path) as gateway:
        pids = descendants(gateway.pid)
        os.killpg(gateway.pid, signal.SIGINT)
        assert gateway.wait() == 0
        assert not any(map(is_alive, pids))
        assert not gateway.lines("stopping at once")
        assert not gateway.lines("Traceback")
    assert not list(tmp_path.rglob("abort"))


def test_a_second_signal_stops_all_at_once_and_in_order(tmp_path: Path) -> None:
    with serve(tmp_path, "--set", "shutdownWaitTimeSeconds=600") as gateway:
        held = process_of(gateway, "broker-a")
        os.kill(held, signal.SIGSTOP)
        gateway.signal(signal.SIGTERM)
        eventually(lambda: gateway.lines("stopping signal=SIGTERM"))
        gateway.signal(signal.SIGTERM)
        eventually(lambda: gateway.lines("stopping at once"))
        assert gateway.child.exit_code() is None, "it waits for its processes"
        os.kill(held, signal.SIGCONT)
        assert gateway.wait(20) == 0
    assert not list(tmp_path.rglob("abort"))


def test_a_sigterm_during_the_start_is_obeyed(tmp_path: Path) -> None:
    """The stop does not wait until the brokers are ready."""
    log = tmp_path / "serve.log"
    words = ["serve", "--brokers", "2", "--processes", "--memory", "--port", "0", "--broker-port", "0"]
    command = [sys.executable, "-m", "gateway.commands.cli", *words]
    child = ChildProcess("serve", command, log, environment(tmp_path))
    try:
        eventually(lambda: "broker process started broker=broker-b" in log.read_text(), 30)
        child.send_sigterm()
        assert child.wait(30) == 0
    finally:
        child.kill()
    assert "Traceback" not in log.read_text()


# The end of a process


def test_a_killed_broker_is_started_again_with_its_messages_while_the_other_goes_on(tmp_path: Path) -> None:
    with serve(tmp_path, "--set", "httpPort=0") as gateway:
        with dialled(gateway, "broker-a") as a, dialled(gateway, "broker-b") as b:
            sent = [f"message {number}".encode() for number in range(500)]
            send_many(a, "kept", sent)
            send(b, "kept", b"of b")
            killed = process_of(gateway, "broker-a")
            os.kill(killed, signal.SIGKILL)
            with locked(tmp_path / "store" / "broker-a"):
                # Starts fail, one after the other, until the store is free again.
                trouble = "broker-a: ended with exit status 1: another process has"
                eventually(lambda: trouble in get(gateway, "/readyz")[1], 30)
                assert get(gateway, "/readyz")[0] == 503
                assert route(gateway) == {"broker-b": gateway.brokers["broker-b"]}
                assert send(b, "kept", b"still here").queue_offset == 1
                with pytest.raises(RemotingClosed):
                    a.ask(GetBrokerConfig())
        eventually(lambda: get(gateway, "/readyz") == (200, '{"ready":true}'), 60)
        first, second, *_ = gateway.lines("will be started again")
        assert "ERROR" in first
        assert "broker=broker-a end=SIGKILL delay_s=1.0" in first
        assert 'broker=broker-a end="exit status 1" delay_s=2.0 reason="another process has' in second
        assert not gateway.lines("Error:"), "only the supervisor says what a failed start means"
        assert process_of(gateway, "broker-a") != killed
        assert route(gateway) == gateway.brokers, "it has its port again"
        with dialled(gateway, "broker-a") as a:
            assert bodies(a, "kept") == sent
            send(a, "kept", b"after")
        shown = re.findall(
            r'broker_process_restarts_total{broker="broker-a"} (\S+)', get(gateway, "/metrics")[1]
        )
        assert float(shown[0]) >= 2
        assert gateway.stop() == 0


@contextmanager
def locked(store: Path) -> Iterator[None]:
    """Hold the lock of a store, as soon as it is free."""

    def try_lock() -> bool:
        with suppress(OSError):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            return True
        return False

    with (store / "lock").open("r+b") as file:
        eventually(try_lock, every_s=0.005)
        yield


def test_a_broker_that_is_told_to_end_alone_is_started_again(tmp_path: Path) -> None:
    with serve(tmp_path) as gateway:
        os.kill(process_of(gateway, "broker-b"), signal.SIGTERM)
        eventually(lambda: gateway.lines('broker=broker-b end="exit status 0"'))
        eventually(lambda: route(gateway) == gateway.brokers, 30)
        assert gateway.stop() == 0


def test_no_broker_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    with serve(tmp_path) as gateway:
        pids = descendants(gateway.pid)
        with dialled(gateway, "broker-a") as client:
            send_many(client, "kept", [b"1", b"2", b"3"])
        # It cannot notice the end of its control channel.
        os.kill(process_of(gateway, "broker-b"), signal.SIGSTOP)
        os.kill(gateway.pid, signal.SIGKILL)
        eventually(lambda: not any(map(is_alive, pids)), 15)
    with serve(tmp_path) as again, dialled(again, "broker-a") as client:
        assert bodies(client, "kept") == [b"1", b"2", b"3"]


def test_a_store_is_opened_with_and_without_processes(tmp_path: Path) -> None:
    with serve(tmp_path) as gateway:
        for broker in BOTH:
            with dialled(gateway, broker) as client:
                send(client, "moved", broker.encode())
        assert gateway.stop() == 0
    assert {each.name for each in (tmp_path / "store").iterdir()} >= BOTH
    one = ["--brokers", "2", "--store", str(tmp_path / "store")]
    with Gateway(tmp_path, *one) as gateway:
        for broker in BOTH:
            with dialled(gateway, broker) as client:
                assert bodies(client, "moved") == [broker.encode()]
                send(client, "moved", b"back")
        assert gateway.stop() == 0
    with serve(tmp_path) as gateway:
        for broker in BOTH:
            with dialled(gateway, broker) as client:
                assert bodies(client, "moved") == [broker.encode(), b"back"]


# Errors that prevent a start


def test_a_taken_port_is_one_clear_error(tmp_path: Path) -> None:
    _, first = find_server_ports()
    port = first + 10
    with socket.socket() as taken:
        with suppress(OSError):  # taken by another process already, which is as good
            taken.bind(("127.0.0.1", port))
            taken.listen()
        with pytest.raises(ProcessEndedEarly) as refused:
            serve(tmp_path, "--memory", "--broker-port", str(first))
    assert refused.value.code == 1
    (error,) = [line for line in refused.value.output.splitlines() if line.startswith("Error:")]
    assert error == (
        f"Error: cannot listen on 127.0.0.1:{port} (listenPort): address already in use. "
        "Use another port, or 0 for a free one."
    )
    assert "Traceback" not in refused.value.output
    assert "started again" not in refused.value.output


def test_a_locked_store_is_one_clear_error(tmp_path: Path) -> None:
    with Gateway(tmp_path / "first", "--store", str(tmp_path / "store" / "broker-b")) as first:
        with pytest.raises(ProcessEndedEarly) as refused:
            serve(tmp_path)
        assert refused.value.code == 1
        (error,) = [line for line in refused.value.output.splitlines() if line.startswith("Error:")]
        assert "another process has" in error
        assert str(tmp_path / "store" / "broker-b") in error
        assert first.child.exit_code() is None


# What clients and operators see


def test_clients_get_the_address_by_which_they_came(tmp_path: Path) -> None:
    with serve(tmp_path, "--memory", "--host", "0.0.0.0", "--advertise", "auto") as gateway:
        ports = {name: address.rpartition(":")[2] for name, address in gateway.brokers.items()}
        assert route(gateway, host="127.0.0.2") == {name: f"127.0.0.2:{port}" for name, port in ports.items()}


def test_a_stranger_does_not_displace_a_broker(tmp_path: Path) -> None:
    with serve(tmp_path, "--memory") as gateway, connect(gateway.namesrv) as stranger:
        claim = RegisterBroker(
            broker_name="broker-a",
            broker_addr="6.6.6.6:1",
            cluster_name="DefaultCluster",
            ha_server_addr="6.6.6.6:2",
            broker_id=0,
        )
        with pytest.raises(
            RequestError, match="broker-a with broker id 0 is a broker of this namesrv's process"
        ):
            stranger.ask(claim)
        os.kill(process_of(gateway, "broker-a"), signal.SIGKILL)
        eventually(lambda: set(route(gateway)) == {"broker-b"})
        with suppress(RequestError):  # refused in another way if the broker is back already
            stranger.ask(claim)
        eventually(lambda: route(gateway) == gateway.brokers, 30)


def test_a_changed_setting_is_that_of_the_broker_that_was_asked(tmp_path: Path) -> None:
    with (
        serve(tmp_path, "--memory") as gateway,
        dialled(gateway, "broker-a") as a,
        dialled(gateway, "broker-b") as b,
    ):
        request = UpdateBrokerConfig()
        request.body = b"maxMessageSize=1000\n"
        a.ask(request)
        assert b"maxMessageSize=1000\n" in bytes(a.ask(GetBrokerConfig()).body)
        assert b"maxMessageSize=1000\n" not in bytes(b.ask(GetBrokerConfig()).body)


def test_one_page_of_metrics_for_all_processes(tmp_path: Path) -> None:
    with serve(tmp_path, "--memory", "--set", "httpPort=0") as gateway:
        assert json.loads(get(gateway, "/readyz")[1]) == {"ready": True}
        with dialled(gateway, "broker-a") as client:
            send(client, "sized", b"x")
            text = get(gateway, "/metrics")[1]
        samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert samples['rocketmq_gateway_connections{broker="broker-a",part="broker-a"}'] == "1.0"
        assert samples['rocketmq_gateway_connections{broker="broker-b",part="broker-b"}'] == "0.0"
        assert re.search(r'rocketmq_message_size_bucket{[^}]*topic="sized"[^}]*} 1.0', text)
        assert 'rocketmq_gateway_connections{part="namesrv"}' in samples
        for broker in BOTH:
            assert samples[f'rocketmq_gateway_broker_process_ready{{broker="{broker}"}}'] == "1.0"
            name = "rocketmq_gateway_broker_process_resident_memory_bytes"
            assert float(samples[f'{name}{{broker="{broker}"}}']) > 1e7
        assert text.count("# TYPE rocketmq_gateway_connections gauge") == 1


def test_log_lines_are_whole_and_name_their_broker(tmp_path: Path) -> None:
    with serve(tmp_path, "--memory", "--log-level", "debug") as gateway:
        for number in range(50):
            for broker in BOTH:
                with dialled(gateway, broker) as client:
                    send(client, f"topic{number}", b"x")
        assert gateway.stop() == 0
        lines = [line for line in gateway.output().splitlines() if not line.startswith("{")]
    assert [line for line in lines if not LOG_LINE.match(line)] == []
    stores = {re.findall(r"broker=(\S+)", line)[0] for line in lines if "storage.store store opened" in line}
    assert stores == BOTH


@pytest.mark.parametrize("version", JAVA_CLIENTS)
def test_stock_clients_use_all_broker_processes(tmp_path: Path, version: str) -> None:
    with serve(tmp_path) as gateway, stock_client(gateway.namesrv, version) as java:
        send_and_consume(java, "spread", BOTH)


def test_the_list_of_namesrvs_follows_a_live_change_of_the_advertised_host(tmp_path: Path) -> None:
    with serve(tmp_path, "--memory", "--set", "httpPort=0") as gateway:
        port = gateway.namesrv.rpartition(":")[2]
        assert get(gateway, "/rocketmq/nsaddr") == (200, f"127.0.0.1:{port}")
        with dialled(gateway, "broker-b") as broker:  # which is not the first one
            broker.ask(UpdateBrokerConfig(body=b"brokerIP1=127.0.0.8"))
        with dialled(gateway, "broker-a") as broker:
            broker.ask(UpdateBrokerConfig(body=b"brokerIP1=127.0.0.9"))
        eventually(lambda: get(gateway, "/rocketmq/nsaddr") == (200, f"127.0.0.9:{port}"), 60)
