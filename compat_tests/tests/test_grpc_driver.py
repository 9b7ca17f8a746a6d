"""The driver of the stock Python client that speaks gRPC, with a client that stands in for it."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.clients import grpc_drivers
from compat_tests.clients.command_driver import CommandDriver
from compat_tests.clients.grpc_api import StockGrpcClient

LATE_CLIENT = '''
import threading
from collections import namedtuple

Credentials = namedtuple("Credentials", "access_key secret_key")
ClientConfiguration = namedtuple("ClientConfiguration", "endpoints credentials")
FilterExpression = namedtuple("FilterExpression", "expression")
TransactionResolution = namedtuple("TransactionResolution", "COMMIT ROLLBACK")(1, 2)
TransactionChecker = MessageListener = object


class SimpleConsumer:
    """Starts before the server has its settings, as the stock client does."""

    def __init__(self, configuration, group, subscription, await_duration):
        self.settings = None

    def startup(self):
        threading.Timer(0.3, self.reset_setting, ["settings"]).start()

    def reset_setting(self, settings):
        self.settings = settings

    def receive(self, count, invisible_s):
        if self.settings is None:
            raise RuntimeError("the server has no settings")
        return []

    def shutdown(self):
        pass
'''


@pytest.fixture
def late_client(tmp_path: Path) -> Iterator[StockGrpcClient]:
    """The driver of a client whose server takes its settings only some time after its start."""
    package = tmp_path / "rocketmq"
    package.mkdir()
    (package / "__init__.py").write_text(LATE_CLIENT)
    (package / "grpc_protocol.py").write_text("FilterType = None\n")
    home = tempfile.TemporaryDirectory(prefix="compat-grpc-")
    command = [sys.executable, str(grpc_drivers._PYTHON_PROGRAM)]
    driver = CommandDriver(command, home, "", {"PYTHONPATH": str(tmp_path)})
    yield StockGrpcClient(driver, "127.0.0.1:1")
    driver.close()


def test_a_simple_consumer_starts_when_the_server_has_its_settings(late_client: StockGrpcClient) -> None:
    """The official Proxy answers a receive without them with an internal error."""
    with late_client.simple("group", "topic") as consumer:
        assert consumer.receive() == []
