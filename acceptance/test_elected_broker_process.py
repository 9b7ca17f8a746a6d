"""A broker process of the namesrv's own server under a controller: another broker is elected while it restarts."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

from acceptance.test_broker_processes import process_of
from compat_tests.clients.typed import connect, send_request, topic_request
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.server import eventually
from remoting.errors import REQUEST_FAILURES
from remoting.requests.namesrv import GetBrokerClusterInfo
from tools.official_controllers import free_port, read_replicas
from tools.processes import Gateway

NAME, TOPIC = "broker-a", "Elected"


def members(namesrv: str) -> dict[int, str]:
    """Return the registered addresses by broker id."""
    with connect(namesrv) as client:
        table = client.ask(GetBrokerClusterInfo()).data.broker_addr_table or {}
    return dict(table[NAME].broker_addrs) if NAME in table else {}


def count_in_sync(controller: str) -> int:
    return len(read_replicas([controller], NAME).in_sync_replicas)


def is_sent(address: str, body: bytes) -> bool:
    try:
        with connect(address, timeout_s=5) as broker:
            return broker.send_command(send_request(TOPIC, body).to_command(1)).code == 0
    except REQUEST_FAILURES:
        return False


def test_a_broker_elsewhere_is_elected_while_a_broker_process_restarts(tmp_path: Path) -> None:
    """The namesrv protects the names of its own server's brokers, but not from their controller."""
    controller = f"127.0.0.1:{free_port()}"
    controlled = ["enableControllerMode=true", f"controllerAddr={controller}", "allAckInSyncStateSet=true"]
    peers = [f"controllerDLegerPeers=n0-{controller}", "controllerDLegerSelfId=n0"]

    def sets(*settings: str) -> list[str]:
        return [word for setting in settings for word in ("--set", setting)]

    with ExitStack() as stack:

        def start(name: str, command: str, *arguments: str) -> Gateway:
            return stack.enter_context(Gateway(tmp_path / name, *arguments, command=command))

        state = f"controllerStorePath={tmp_path / 'state'}"
        start("c", "controller", "--host", "127.0.0.1", *sets(*peers, state))
        store = ["--store", str(tmp_path / "store")]
        server = start("s", "serve", "--processes", *store, *sets(f"brokerName={NAME}", *controlled))
        eventually(lambda: 0 in members(server.namesrv), 30)
        own = members(server.namesrv)[0]
        other = start(
            "b", "broker", "-n", server.namesrv, "--host", "127.0.0.1", "--store", str(tmp_path / "other"),
            "--port", str(find_server_ports()[1]), *sets(f"brokerName={NAME}", "brokerIP1=127.0.0.1", *controlled),
        )  # fmt: skip
        eventually(lambda: count_in_sync(controller) == 2, 30)
        with connect(own) as broker:
            broker.ask(topic_request(TOPIC, 1))
        assert is_sent(own, b"before")

        os.kill(process_of(server, NAME), signal.SIGKILL)
        eventually(lambda: members(server.namesrv).get(0) == other.broker, 30)
        assert is_sent(other.broker, b"after")
        eventually(lambda: own in [at for number, at in members(server.namesrv).items() if number], 30)
        eventually(lambda: count_in_sync(controller) == 2, 30)
        assert members(server.namesrv)[0] == other.broker
        assert not server.lines("registration refused")
        assert not other.lines("registration with namesrv failed")
