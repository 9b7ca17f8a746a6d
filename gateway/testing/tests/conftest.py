"""Fixtures of a RocketMQ that the tests of a module share, emptied for each test, and of a client."""

from collections.abc import Iterator

import pytest

from gateway.testing import RocketMQ
from gateway.testing.tests.clients import Client


@pytest.fixture
def mq(rocketmq_module: RocketMQ) -> RocketMQ:
    rocketmq_module.reset()
    return rocketmq_module


@pytest.fixture
def client(mq: RocketMQ) -> Iterator[Client]:
    with Client(mq) as client:
        yield client
