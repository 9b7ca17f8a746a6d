"""Directed requests find the target's broker, also after it has moved."""

import pytest

from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.proxy.target_dialing import dial_with
from remoting.errors import RemotingTimeout
from remoting.tests.virtual import virtual


class Target(Cluster):
    """Knows its brokers from `tables`, one for each look; a look that fails is an exception."""

    def __init__(self, *tables):
        super().__init__(["10.2.0.1:9876"])
        self.tables = list(tables)

    async def refresh(self):
        table = self.tables.pop(0)
        if isinstance(table, Exception):
            raise table
        self.brokers = {name: {0: address} for name, address in table.items()}


def opening(*reachable):
    async def open_plain(host, port):
        if f"{host}:{port}" not in reachable:
            raise OSError("refused")
        return f"to {host}"

    return open_plain


@virtual
async def test_looked_up_when_it_is_needed_first():
    target = Target({"broker-a": "10.2.0.1:10911", "broker-b": "10.2.0.2:10911"})
    dial = dial_with(target, {"broker-a": "broker-b"}, opening("10.2.0.2:10911", "10.2.0.1:10911"))
    assert await dial("broker-a") == ("broker-b", "10.2.0.2:10911", "to 10.2.0.2")
    assert await dial("broker-b") == ("broker-b", "10.2.0.2:10911", "to 10.2.0.2")


@virtual
async def test_a_broker_that_moved():
    target = Target({"x": "10.2.0.1:10911"}, {"x": "10.2.0.9:10911"})
    await target.refresh()
    dial = dial_with(target, {}, opening("10.2.0.9:10911"))
    assert await dial("broker-a") == ("x", "10.2.0.9:10911", "to 10.2.0.9")


@virtual
async def test_nobody_there():
    look = {"x": "10.2.0.1:10911"}
    with pytest.raises(OSError, match="refused"):
        await dial_with(Target(look, look), {}, opening())("broker-a")
    with pytest.raises(LookupError, match="no broker 'broker-y'"):
        await dial_with(Target(look), {"broker-a": "broker-y"}, opening())("broker-a")
    with pytest.raises(OSError, match="does not answer"):
        await dial_with(Target(RemotingTimeout("slow")), {}, opening())("broker-a")
