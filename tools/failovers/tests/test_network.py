"""Machines that are cut from each other lose what they send, and reach all others."""

import socket
import subprocess
import sys

import pytest

from tools.failovers.network import CLIENTS, OneMachine, open_machines
from tools.pairings.tests.test_network import ECHO


def test_two_machines_are_cut_from_each_other_only() -> None:
    machines = open_machines(("b1", "b2"))
    if isinstance(machines, OneMachine):
        pytest.skip("needs network namespaces, which only root may make")
    with machines:
        command = [*machines.prefix("b1"), sys.executable, "-c", ECHO, machines.host("b1"), "7000"]
        echo = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert echo.stdout is not None
        assert echo.stdout.readline() == b"listens\n"
        with echo, echo.stdout, socket.create_connection((machines.host("b1"), 7000), 5) as connection:
            connection.settimeout(0.3)
            machines.cut("b1", "b2")
            connection.sendall(b"1")
            assert connection.recv(10) == b"1"
            machines.cut("b1", CLIENTS)
            connection.sendall(b"2")
            with pytest.raises(TimeoutError):
                connection.recv(10)
            machines.join("b1", CLIENTS)
            connection.settimeout(10)
            assert connection.recv(10) == b"2"
