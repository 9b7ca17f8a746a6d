"""Requests of replicas to a master that does not replicate."""

import logging

import pytest

from gateway.tests.broker_fakes import FakeConnection
from gateway.tests.broker_world import World
from remoting.errors import RequestError
from remoting.requests.ha import ExchangeBrokerHaInfo
from remoting.requests.pop import GetAllMessageRequestMode

NOTED = "a replica gets no data"


def test_a_replica_that_fetches_tables_is_told_that_it_gets_no_data(caplog: pytest.LogCaptureFixture) -> None:
    world, caplog.handler.level = World(), logging.WARNING
    for _ in range(3):
        remark = world.ask(GetAllMessageRequestMode()).remark or ""
        assert remark.startswith("b1 does not replicate, so its replicas stay empty")
    world.ask(GetAllMessageRequestMode(), FakeConnection())
    records = [record for record in caplog.records if record.getMessage() == NOTED]
    assert [record.__dict__["broker"] for record in records] == ["b1", "b1"]


def test_the_address_exchange_of_a_replica_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RequestError, match="b1 does not replicate") as refused:
        World().ask(ExchangeBrokerHaInfo())
    assert refused.value.code == 3
    assert NOTED in [record.getMessage() for record in caplog.records]
