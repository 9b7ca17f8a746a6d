"""Connections through the shadow gateway: each client has an upstream connection of its own, and ports are stable."""

import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from compat_tests.clients.typed import messages, pull, send, send_heartbeat, topic_request
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.server import eventually, split_address
from remoting.blocking import BlockingClient
from remoting.requests.namesrv import GetBrokerClusterInfo
from remoting.requests.topics import GetTopicConfig
from tools.processes import Gateway

COUNT = 2000
KIB = 1024


@contextmanager
def many_files(needed: int) -> Iterator[None]:
    """Raise this process's limit of open files to the maximum during the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < needed:
        pytest.skip(f"only {hard} files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_two_thousand_clients(tmp_path: Path) -> None:
    """2,000 clients are registered at the broker while one works; memory is bounded, and files are closed again."""
    with (
        many_files(COUNT * 2 + 500),
        Gateway(tmp_path / "primary", "--memory") as primary,
        Gateway(tmp_path, "--set", f'primary.namesrv=["{primary.namesrv}"]', command="shadow") as gateway,
        ExitStack() as stack,
    ):
        worker = stack.enter_context(gateway.connect())
        worker.ask(topic_request("crowded", 1))
        work(worker, 0)
        before = gateway.memory_bytes()
        for number in range(COUNT):
            client = stack.enter_context(BlockingClient(*split_address(gateway.broker), timeout_s=30))
            send_heartbeat(client, f"client@{number}", producer="crowd")
        each = (gateway.memory_bytes() - before) / COUNT
        print(
            f"\n{each / KIB:.1f} KiB for each of {COUNT} clients, {gateway.memory_bytes() / KIB**2:.0f} MiB in all"
        )
        assert each < 64 * KIB
        work(worker, 100)
        open_before = open_files(gateway)
        assert open_before >= 2 * COUNT
        stack.close()
        eventually(lambda: open_files(gateway) < open_before - 2 * COUNT + 50, 60)
        assert "Traceback" not in gateway.output()


def work(client: BlockingClient, first: int) -> None:
    for number in range(first, first + 100):
        assert send(client, "crowded", str(number).encode()).queue_offset == number
    assert [each.body for each in messages(pull(client, "crowded", first, max_msg_nums=1))] == [
        str(first).encode()
    ]


def open_files(gateway: Gateway) -> int:
    return sum(1 for _ in Path(f"/proc/{gateway.pid}/fd").iterdir())


def test_an_address_keeps_its_port_over_a_restart(tmp_path: Path) -> None:
    """A client with an old route still reaches the right broker, although a new one sorts before it by name."""
    _, port = find_server_ports(brokers=3)
    kept = tmp_path / "ports.json"
    settings = {"listen.broker_port": port, "listen.ports_file": f'"{kept}"'}
    with Gateway(tmp_path / "namesrv", command="namesrv") as namesrv, ExitStack() as stack:
        settings["primary.namesrv"] = f'["{namesrv.namesrv}"]'
        line = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        for name in ("b", "c"):
            stack.enter_context(broker(tmp_path / name, namesrv, name))
        with Gateway(tmp_path, *line, command="shadow") as first:
            before = first.brokers
            create(first, "b")
        stack.enter_context(broker(tmp_path / "a", namesrv, "a"))
        with Gateway(tmp_path, *line, command="shadow") as second:
            after = second.brokers
            with BlockingClient(*split_address(before["b"]), timeout_s=30) as client:
                assert client.ask(GetTopicConfig(topic="only-b")).data.topic_name == "only-b"
    assert set(after) == {"a", "b", "c"}
    assert {name: after[name] for name in before} == before
    assert len(set(after.values())) == 3


def broker(directory: Path, namesrv: Gateway, name: str) -> Gateway:
    """Start a broker of ours with this name and wait until the namesrv knows it."""
    words = ["-n", namesrv.namesrv, "--memory", "--set", f"brokerName={name}"]
    started = Gateway(directory, *words, command="broker")
    with BlockingClient(*split_address(namesrv.namesrv), timeout_s=30) as client:
        eventually(lambda: name in client.ask(GetBrokerClusterInfo()).data.broker_addr_table, 30)
    return started


def create(gateway: Gateway, name: str) -> None:
    with BlockingClient(*split_address(gateway.brokers[name]), timeout_s=30) as client:
        client.ask(topic_request(f"only-{name}", 1))
