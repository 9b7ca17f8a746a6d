"""Our controller with access control: brokers and operators sign, and so does what it tells brokers."""

import socket
import threading
from pathlib import Path

import pytest

from acceptance.secured import ROOT, create_user, dial, run_ours, secret_of
from codec.command import Command, decode_frame
from codec.constants import ResponseCode
from remoting.errors import RequestError
from remoting.requests.controller import (
    ControllerApplyBrokerId,
    ControllerElectMaster,
    ControllerGetMetadataInfo,
    ControllerRegisterBroker,
)
from remoting.requests.ha import NotifyBrokerRoleChanged
from remoting.requests.namesrv import BrokerHeartbeat
from tools.official_controllers import free_port

pytestmark = pytest.mark.both_servers


class Listener(threading.Thread):
    """Stands for a broker: takes the first command that arrives at its port."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.command: Command | None = None

    def run(self) -> None:
        with self._server:
            connection, _ = self._server.accept()
        with connection:
            data = b""
            while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
                data += connection.recv(65536)
            self.command = decode_frame(data, 4, 4 + int.from_bytes(data[:4], "big"))


def test_requests_to_the_controller_need_credentials(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    arguments = [f"--set=controllerDLegerPeers=n0-{address}", "--set=enableControllerInNamesrv=true"]
    broker = Listener()
    broker.start()
    elect = ControllerElectMaster(cluster_name="C", broker_name="a", broker_id=1, designate_elect=True)
    with run_ours(tmp_path, *arguments) as server:
        for user, secret in ((None, ""), (ROOT, "wrong")):
            with dial(address, user, secret) as stranger, pytest.raises(RequestError) as refusal:
                stranger.ask(ControllerGetMetadataInfo())
            assert refusal.value.code == ResponseCode.NO_PERMISSION
        with dial(address) as root:
            assert root.ask(ControllerGetMetadataInfo()).is_leader
            root.ask(
                ControllerApplyBrokerId(
                    cluster_name="C",
                    broker_name="a",
                    applied_broker_id=1,
                    register_check_code=f"{broker.address};1",
                )
            )
            register = ControllerRegisterBroker(
                cluster_name="C", broker_name="a", broker_id=1, broker_address=broker.address
            )
            root.ask(register)
            root.ask(
                BrokerHeartbeat(cluster_name="C", broker_name="a", broker_id=1, broker_addr=broker.address)
            )
            with (
                create_user(server, "reader", ("Cluster:*", "Get", "Allow")),
                dial(address, "reader", secret_of("reader")) as reader,
            ):
                assert reader.ask(ControllerGetMetadataInfo()).is_leader
                with pytest.raises(RequestError) as refusal:
                    reader.ask(elect)
                assert refusal.value.code == ResponseCode.NO_PERMISSION
            assert root.ask(elect).master_broker_id == 1
        broker.join(10)
        assert broker.command is not None
        assert broker.command.code == NotifyBrokerRoleChanged.code
        assert broker.command.ext["AccessKey"] == ROOT
        assert broker.command.ext["Signature"]
