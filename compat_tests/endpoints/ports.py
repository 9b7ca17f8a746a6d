"""Finds TCP ports for servers that cannot be asked to take any free one.

Not responsible for holding them: another program may take a port before the server does.
"""

import random
import socket

# Linux gives ports from 32768 on to outgoing connections, so one of P - 2, P and P + 1 may be taken up there.
_MIN_PORT, _MAX_PORT = 11000, 32000


def is_free(port: int) -> bool:
    """True when nothing listens on `port` on any local address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def find_server_ports(brokers: int = 1) -> tuple[int, int]:
    """(namesrv port N, broker port P) where N, P, P - 2 (VIP channel) and P + 1 (HA) are free now.

    Further brokers are 10 ports apart, and theirs are free as well.
    """
    # random, because several test runs on one machine would else go for the same ports at the same moment
    for _ in range(200):
        broker = random.randrange(_MIN_PORT, _MAX_PORT)
        namesrv = broker - 5
        ports = [broker + 10 * number + beside for number in range(brokers) for beside in (-2, 0, 1)]
        if all(map(is_free, (namesrv, *ports))):
            return namesrv, broker
    raise RuntimeError("found no free ports")
