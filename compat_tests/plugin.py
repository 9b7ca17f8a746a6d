"""The pytest side of the suite: command-line options, the session's endpoint, marks and the results file.

One endpoint serves all cases of a session. With several workers (pytest-xdist) the controlling process starts it and
passes its addresses on. `selection.py` decides which cases run and which must fail.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from compat_tests.endpoints import (
    ENDPOINT_KINDS,
    Endpoint,
    NotPossible,
    Unavailable,
    choose_endpoint,
)
from compat_tests.endpoints.process import ignore_sigterm, interrupt_on_sigterm, kill_all_children
from compat_tests.jars import in_ci
from compat_tests.results_file import ResultsWriter
from compat_tests.selection import select_cases
from compat_tests.server import ServerUnderTest

_ENDPOINT_KEY = pytest.StashKey[Endpoint]()
_WRITER_KEY = pytest.StashKey[ResultsWriter]()
_WORKER_PIDS: list[int] = []


def register_suite(plugins: pytest.PytestPluginManager) -> None:
    """Register this module with pytest, once, for the conftest of each folder whose tests need an endpoint."""
    module = sys.modules[__name__]
    if not plugins.is_registered(module):
        plugins.register(module, "rocketmq-compat")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("compat", "conformance suite")
    group.addoption("--endpoint", default="ours", help=f"server to test: {ENDPOINT_KINDS} (default: ours)")
    group.addoption("--proxy", metavar="HOST:PORT", help="gRPC address of the endpoint, for 5.x clients")
    group.addoption(
        "--area", action="append", default=[], help="run only the cases of this area; may be repeated"
    )
    group.addoption("--results", type=Path, help="write one JSON line per case to this file")
    group.addoption(
        "--read-only", action="store_true", help="run only the cases that create and change nothing"
    )
    group.addoption(
        "--allow-admin",
        action="store_true",
        help="at an address, also run the cases that change settings of the cluster or misbehave",
    )
    group.addoption(
        "--record",
        action="store_true",
        help="write the answers of the official server into the recordings that our server is compared with",
    )
    group.addoption(
        "--endpoint-set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="broker.conf setting of the endpoint, may be repeated",
    )


def pytest_configure(config: pytest.Config) -> None:
    interrupt_on_sigterm()
    config.addinivalue_line("markers", "case(area, feature): area and feature a conformance case covers")
    config.addinivalue_line(
        "markers", "differs(reason): the official server fails this case, for this reason"
    )
    config.addinivalue_line("markers", "not_yet(reason): our server does not pass this case yet")
    config.addinivalue_line("markers", "not_served(reason): our server leaves this out, for this reason")
    config.addinivalue_line(
        "markers", "ours_only: starts our own processes and runs with the endpoint `ours` only"
    )
    config.addinivalue_line("markers", "read_only: creates and changes nothing on the server")
    config.addinivalue_line(
        "markers", "needs_admin(reason): changes more than what it created; skipped at an address"
    )
    config.addinivalue_line("markers", "both_servers: starts an official broker beside ours, which is slow")
    config.addinivalue_line(
        "markers", "stops_server: stops the server under test and cannot share it (set automatically)"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the endpoint's addresses to a pytest-xdist worker, starting the endpoint for the first one."""
    endpoint = _start_endpoint(node.config)
    node.workerinput["compat_server"] = _addresses(node.config, endpoint)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_newgateway(gateway: Any) -> None:
    _WORKER_PIDS.append(gateway._rinfo().pid)


# First, because the signal comes again before pytest on a busy machine has found the source lines that it shows.
@pytest.hookimpl(tryfirst=True)
def pytest_keyboard_interrupt() -> None:
    """Stop the workers too: the signal may have reached this process alone."""
    ignore_sigterm()
    for pid in _WORKER_PIDS:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def pytest_unconfigure(config: pytest.Config) -> None:
    endpoint = config.stash.get(_ENDPOINT_KEY, None)
    if endpoint is not None:
        endpoint.stop()
        endpoint.close()
    kill_all_children()  # pytest-xdist ends workers before their exit handlers run


def _start_endpoint(config: pytest.Config) -> Endpoint:
    """Return the session's endpoint, started at the first call."""
    if _ENDPOINT_KEY not in config.stash:
        settings = dict(pair.split("=", 1) for pair in config.getoption("--endpoint-set"))
        endpoint = choose_endpoint(config.getoption("--endpoint"), settings)
        endpoint.start()
        config.stash[_ENDPOINT_KEY] = endpoint
    return config.stash[_ENDPOINT_KEY]


def _addresses(config: pytest.Config, endpoint: Endpoint) -> list[str | None]:
    """Return what cases know of the endpoint: the fields of ServerUnderTest from `kind` to `grpc`."""
    return [endpoint.kind, endpoint.namesrv, endpoint.broker, config.getoption("--proxy") or endpoint.grpc]


def skip_or_fail(reason: str) -> NoReturn:
    """Skip a case because this machine lacks something; fail it instead when CI=true."""
    if in_ci():
        pytest.fail(f"CI must be able to run this: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[ServerUnderTest]:
    """The server under test, shared by all cases; the topics and groups they created are deleted at the end."""
    config = request.config
    label = config.getoption("--endpoint")
    shared = getattr(config, "workerinput", {}).get("compat_server")
    if shared is None:
        try:
            endpoint = _start_endpoint(config)
        except (Unavailable, NotPossible) as missing:
            skip_or_fail(str(missing))
        shared = _addresses(config, endpoint)
    server = ServerUnderTest(label, *shared)
    # Imported here because pytest loads this plugin for every test run, also for those without a server.
    from compat_tests.clients.request_guard import forbid_cluster_wide_requests
    from compat_tests.clients.typed import delete_created

    if server.kind == "address" and not config.getoption("--allow-admin"):
        forbid_cluster_wide_requests()
    yield server
    if not config.getoption("--read-only"):
        ignore_sigterm()  # of an interrupted run, which the controlling process sends to workers
        delete_created(server)


@pytest.fixture(scope="session")
def endpoint(request: pytest.FixtureRequest, server: ServerUnderTest) -> Endpoint:
    """The endpoint, for cases that stop or crash the server; skips where this process may not stop it."""
    if server.kind == "address":
        pytest.skip("this endpoint is not ours to stop")
    if hasattr(request.config, "workerinput"):
        skip_or_fail("several workers share the server; cases that stop it need a run of their own")
    return request.config.stash[_ENDPOINT_KEY]


@pytest.hookimpl(tryfirst=True)  # before pytest evaluates `-m`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    select_cases(config, items)


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    path = config.getoption("--results")
    if path is not None and not hasattr(config, "workerinput"):
        writer = ResultsWriter(path, config.getoption("--endpoint"))
        config.stash[_WRITER_KEY] = writer
        config.pluginmanager.register(_ReportsToResults(writer))


def pytest_collection_finish(session: pytest.Session) -> None:
    if (writer := session.config.stash.get(_WRITER_KEY, None)) is not None:
        writer.begin(len(session.items))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Write the number of cases, which the controlling process of several workers does not collect itself."""
    if (writer := node.config.stash.get(_WRITER_KEY, None)) is not None:
        writer.begin(len(ids))


class _ReportsToResults:
    """Hands the reports of cases to the results file; a plugin of its own, because that hook is given no session."""

    def __init__(self, writer: ResultsWriter) -> None:
        self._writer = writer

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._writer.add(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    writer = session.config.stash.get(_WRITER_KEY, None)
    if writer is not None:
        writer.close()
        print(f"\nresults are in {session.config.getoption('--results')}", file=sys.stderr)
