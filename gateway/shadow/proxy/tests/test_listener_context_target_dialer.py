"""Directed requests find the target's broker even after it has moved."""

import pytest

from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.proxy.listener_context import TargetMasters
from remoting.errors import RemotingTimeout
from remoting.tests.virtual import virtual


class FakeTarget(Cluster):
    """Gets its brokers from `tables`, one per look-up; an exception is a look-up that fails."""

    def __init__(self, *tables):
        super().__init__(["10.2.0.1:9876"])
        self.tables = list(tables)

    async def refresh(self):
        table = self.tables.pop(0)
        if isinstance(table, Exception):
            raise table
        self.brokers = {name: {0: address} for name, address in table.items()}


def dialer_for(*reachable):
    async def dial(address):
        if address not in reachable:
            raise OSError("refused")
        return f"to {address}"

    return dial


@virtual
async def test_brokers_are_looked_up_when_first_needed():
    target = FakeTarget({"broker-a": "10.2.0.1:10911", "broker-b": "10.2.0.2:10911"})
    dial = TargetMasters(
        target, {"broker-a": "broker-b"}, dialer_for("10.2.0.2:10911", "10.2.0.1:10911")
    ).dial
    assert await dial("broker-a") == ("broker-b", "10.2.0.2:10911", "to 10.2.0.2:10911")
    assert await dial("broker-b") == ("broker-b", "10.2.0.2:10911", "to 10.2.0.2:10911")


@virtual
async def test_a_broker_that_moved_is_found():
    target = FakeTarget({"x": "10.2.0.1:10911"}, {"x": "10.2.0.9:10911"})
    await target.refresh()
    dial = TargetMasters(target, {}, dialer_for("10.2.0.9:10911")).dial
    assert await dial("broker-a") == ("x", "10.2.0.9:10911", "to 10.2.0.9:10911")


@virtual
async def test_unreachable_and_unknown_brokers_raise():
    look = {"x": "10.2.0.1:10911"}
    with pytest.raises(OSError, match="refused"):
        await TargetMasters(FakeTarget(look, look), {}, dialer_for()).dial("broker-a")
    with pytest.raises(LookupError, match="no broker 'broker-y'"):
        await TargetMasters(FakeTarget(look), {"broker-a": "broker-y"}, dialer_for()).dial("broker-a")
    with pytest.raises(OSError, match="does not answer"):
        await TargetMasters(FakeTarget(RemotingTimeout("slow")), {}, dialer_for()).dial("broker-a")


@virtual
async def test_the_master_is_that_of_the_last_look_up():
    target = FakeTarget({"x": "10.2.0.1:10911"}, {"x": "10.2.0.9:10911"}, {})
    masters = TargetMasters(target, {}, dialer_for())
    assert masters.address_of("broker-a") is None
    for address in ("10.2.0.1:10911", "10.2.0.9:10911", None):
        await masters.refresh()
        assert masters.address_of("broker-a") == address
