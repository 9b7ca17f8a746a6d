"""Finds free TCP ports for servers that cannot pick one themselves.

The ports are not reserved: another program may take one before the server does.
"""

import random
import socket

# Linux uses ports from 32768 on for outgoing connections, so P - 2, P or P + 1 could be taken at any time up there.
_MIN_PORT, _MAX_PORT = 11000, 32000


def is_free(port: int) -> bool:
    """Return True if nothing listens on `port` on any local address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def find_ports(count: int) -> list[int]:
    """Return `count` different ports that are free now."""
    for _ in range(200):
        ports = random.sample(range(_MIN_PORT, _MAX_PORT), count)
        if all(map(is_free, ports)):
            return ports
    raise RuntimeError("found no free ports")


def find_server_ports(brokers: int = 1) -> tuple[int, int]:
    """Return (namesrv port N, broker port P) such that N, P, P - 2 (VIP channel) and P + 1 (HA) are free now.

    Further brokers are 10 ports apart; their ports are free as well.
    """
    # Random, because otherwise several test runs on one machine would pick the same ports at the same moment.
    for _ in range(200):
        broker = random.randrange(_MIN_PORT, _MAX_PORT)
        namesrv = broker - 5
        ports = [broker + 10 * number + beside for number in range(brokers) for beside in (-2, 0, 1)]
        if all(map(is_free, (namesrv, *ports))):
            return namesrv, broker
    raise RuntimeError("found no free ports")
