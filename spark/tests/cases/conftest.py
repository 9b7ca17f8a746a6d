"""Fixtures of the cases with a real Spark: the endpoint of the conformance suite, and one Spark session."""

import shutil
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from compat_tests.jars import Unavailable
from compat_tests.plugin import register_suite, skip_or_fail
from spark.session.packing import build_wheel
from spark.tests.cases.clusters import Shipped, Standalone, new_environment
from spark.tests.cases.jvm import SCRATCH, make_archive
from spark.tests.cases.mirrored import Mirrored, mirrored
from spark.tests.cases.sessions import new_session


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    register_suite(pluginmanager)


@pytest.fixture(scope="session", autouse=True)
def jvms() -> Iterator[None]:
    """Speed up the start of these cases' many JVMs, and give their leftovers a place."""
    make_archive()
    SCRATCH.mkdir(exist_ok=True)
    yield
    shutil.rmtree(SCRATCH, ignore_errors=True)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One local session shared by all cases that do not need their own."""
    session = new_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirrored]:
    """An official primary's traffic at two targets, mirrored, captured, and partly wrong; see mirrored.py."""
    try:
        with mirrored(tmp_path_factory.mktemp("mirrored")) as found:
            yield found
    except Unavailable as missing:
        skip_or_fail(str(missing))


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A standalone master and two workers on loopback, for the cases of one module."""
    with Standalone(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    """Environments with the package as a wheel and without it, which borrow everything else from this one."""
    directory = tmp_path_factory.mktemp("shipped")
    wheel = build_wheel(directory)
    installed = new_environment(directory / "installed", wheel)
    return Shipped(installed, new_environment(directory / "bare"), wheel)
