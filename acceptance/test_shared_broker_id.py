"""Two slaves with one broker id under one master: said to the operator, counted once, and both copy the log."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from acceptance.test_roles import TOPIC, Pair, Senders, read_all, run_command
from compat_tests.clients.typed import connect, has_route, topic_request
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.server import eventually
from remoting.errors import RequestError
from remoting.requests.admin import GetBrokerRuntimeInfo
from remoting.requests.roles import GetBrokerRole
from tools.processes import Gateway


def runtime_info(address: str) -> dict[str, str]:
    with connect(address) as broker:
        return broker.ask(GetBrokerRuntimeInfo()).data.table


def has_messages(address: str, expected: list[bytes]) -> bool:
    """Return True once a broker has these messages; a slave refuses to read before it has its master's topics."""
    try:
        return sorted(read_all(address)) == expected
    except RequestError:
        return False


def test_two_slaves_with_one_broker_id_are_told_and_count_once(tmp_path: Path) -> None:
    with ExitStack() as stack:
        pair = Pair(tmp_path, stack, "inSyncReplicas=2", "slaveReadEnable=true")
        eventually(lambda: set(pair.members()) == {0, 1}, 30)
        eventually(lambda: pair.status(1).state == "copying", 40)
        with connect(pair.address(0)) as master:
            master.ask(topic_request(TOPIC, 4))
        with connect(pair.namesrv.namesrv) as namesrv:
            eventually(lambda: has_route(namesrv, TOPIC), 20)
        host, _, port = pair.address(0).rpartition(":")
        second = stack.enter_context(
            Gateway(
                tmp_path / "b2", "-n", pair.namesrv.namesrv, "--store", str(tmp_path / "b2" / "store"),
                "--host", "127.0.0.1", "--port", str(find_server_ports()[1]), "--set", "brokerName=broker-a",
                "--set", "brokerIP1=127.0.0.1", "--set", "brokerRole=SLAVE", "--set", "brokerId=1",
                "--set", "slaveReadEnable=true",
                "--set", f"haMasterAddress={host}:{int(port) + 1}", command="broker",
            )
        )  # fmt: skip
        with connect(second.broker) as broker:
            eventually(lambda: broker.ask(GetBrokerRole()).data.state == "copying", 40)
        with Senders(pair) as senders:
            senders.wait_for(200)
            eventually(lambda: "replicationTrouble" in runtime_info(pair.address(0)), 30)
            senders.wait_for(100)
        assert set(senders.statuses) == {0}
        assert senders.failures == []
        trouble = runtime_info(pair.address(0))["replicationTrouble"]
        assert "two slaves have the brokerId 1" in trouble
        assert "Give one of them another brokerId" in trouble
        assert len(pair.brokers[0].lines("two slaves have one broker id")) == 1
        # The namesrv goes on listing the first, and the second says why it is not listed.
        assert pair.members() == {0: pair.address(0), 1: pair.address(1)}
        eventually(lambda: second.lines("registration with namesrv failed"), 30)
        (row,) = [
            row for row in run_command(tmp_path, pair.namesrv.namesrv, "cluster", "info") if not row["id"]
        ]
        assert row["replicationTrouble"] == trouble
        expected = sorted(read_all(pair.address(0)))
        for address in (pair.address(1), second.broker):
            eventually(partial(has_messages, address, expected), 60)
        # One that leaves ends it, and the other one counts.
        second.kill()
        eventually(lambda: "replicationTrouble" not in runtime_info(pair.address(0)), 30)
        with Senders(pair) as more:
            more.wait_for(50)
        assert more.statuses.get(0, 0) >= 50
