"""A dropped link loses everything without a word, and delivers again once it is restored."""

import socket
import subprocess
import sys

import pytest

from tools.pairings.network import Loopback, open_network

ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listens", flush=True)
connection, _ = server.accept()
while data := connection.recv(100):
    connection.sendall(data)
"""


def test_a_dropped_link_is_silent() -> None:
    network = open_network()
    if isinstance(network, Loopback):
        pytest.skip("needs network namespaces, which only root may make")
    with network:
        command = [*network.prefix, sys.executable, "-c", ECHO, network.second, "7000"]
        echo = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert echo.stdout is not None
        assert echo.stdout.readline() == b"listens\n"
        with echo, echo.stdout, socket.create_connection((network.second, 7000), 5) as connection:
            connection.settimeout(0.3)
            connection.sendall(b"1")
            assert connection.recv(10) == b"1"
            network.drop()
            connection.sendall(b"2")
            with pytest.raises(TimeoutError):
                connection.recv(10)
            network.restore()
            connection.settimeout(10)
            assert connection.recv(10) == b"2"
