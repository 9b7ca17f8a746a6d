"""Starts the stock Python and Go clients that speak gRPC, each in a process that commands drive."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from compat_tests.clients.command_driver import CommandDriver
from compat_tests.clients.programs import build_go_driver, install_python_client

_PYTHON_PROGRAM: Final = Path(__file__).parent / "python_grpc" / "grpc_driver.py"


def start_python_driver(version: str, *, trust: Path | None = None) -> CommandDriver:
    """Start the Python client; with TLS it verifies servers by the certificates in `trust`.

    Raises Unavailable if the client cannot be installed.
    """
    command = [str(install_python_client(version)), str(_PYTHON_PROGRAM)]
    return _start(command, {} if trust is None else {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(trust)})


def start_go_driver(version: str, *, tls: bool = False) -> CommandDriver:
    """Start the Go client, of which all connections use TLS, or none.

    Raises Unavailable if the client cannot be built.
    """
    return _start([str(build_go_driver(version)), *(["tls"] if tls else [])], {})


def _start(command: Sequence[str], environment: Mapping[str, str]) -> CommandDriver:
    # Both clients write logs into the home folder. PYTHONPATH would bring this project's packages along.
    home = tempfile.TemporaryDirectory(prefix="compat-grpc-")
    return CommandDriver(command, home, "", {**environment, "HOME": home.name, "PYTHONPATH": ""})
