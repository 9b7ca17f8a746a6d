"""The pytest plugin: fixtures with a RocketMQ in memory, one for each scope.

pytest imports this module in every run where the package is installed, so the servers are imported by the first test
that uses a fixture, and by no other.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gateway.testing.double import RocketMQ


def _run_rocketmq() -> Iterator["RocketMQ"]:
    from gateway.testing.double import RocketMQ

    with RocketMQ() as running:
        yield running


@pytest.fixture(name="rocketmq")
def rocketmq_for_function() -> Iterator["RocketMQ"]:
    """A RocketMQ of this test alone."""
    yield from _run_rocketmq()


@pytest.fixture(scope="class")
def rocketmq_class() -> Iterator["RocketMQ"]:
    """A RocketMQ that the tests of a class share; `reset` empties it."""
    yield from _run_rocketmq()


@pytest.fixture(scope="module")
def rocketmq_module() -> Iterator["RocketMQ"]:
    """A RocketMQ that the tests of a module share; `reset` empties it."""
    yield from _run_rocketmq()


@pytest.fixture(scope="session")
def rocketmq_session() -> Iterator["RocketMQ"]:
    """A RocketMQ that all tests share; `reset` empties it."""
    yield from _run_rocketmq()
