"""The pytest side of the suite: command-line options, the session's endpoint, marks and the results file.

One endpoint serves all cases of a session. With several workers (pytest-xdist) the controlling process starts it and
passes its addresses on. Cases that stop the server run last. The marks of `marks.py` become expected failures here:

- `differs` must fail on the official server,
- `not_yet` and `not_served` must fail on ours.

At an address, which may be either server, such a failure is accepted but not required.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
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
    expected_kind,
)
from compat_tests.endpoints.process import ignore_sigterm, interrupt_on_sigterm, kill_all_children
from compat_tests.jars import in_ci
from compat_tests.server import ServerUnderTest

_OFFICIAL_KINDS = ("official", "image")
_ENDPOINT_KEY = pytest.StashKey[Endpoint]()
_RESULT_LINES: list[dict[str, Any]] = []
_WORKER_PIDS: list[int] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("compat", "conformance suite")
    group.addoption("--endpoint", default="ours", help=f"server to test: {ENDPOINT_KINDS} (default: ours)")
    group.addoption(
        "--area", action="append", default=[], help="run only the cases of this area; may be repeated"
    )
    group.addoption("--results", type=Path, help="write one JSON line per case to this file")
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
    config.addinivalue_line("markers", "both_servers: starts an official broker beside ours, which is slow")
    config.addinivalue_line(
        "markers", "stops_server: stops the server under test and cannot share it (set automatically)"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the endpoint's addresses to a pytest-xdist worker, starting the endpoint for the first one."""
    endpoint = _start_endpoint(node.config)
    node.workerinput["compat_server"] = [endpoint.kind, endpoint.namesrv, endpoint.broker]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_newgateway(gateway: Any) -> None:
    _WORKER_PIDS.append(gateway._rinfo().pid)


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
        shared = [endpoint.kind, endpoint.namesrv, endpoint.broker]
    server = ServerUnderTest(label, *shared)
    yield server
    # Imported here because pytest loads this plugin for every test run, also for those without a server.
    from compat_tests.clients.typed import delete_created

    delete_created(server)


@pytest.fixture(scope="session")
def endpoint(request: pytest.FixtureRequest, server: ServerUnderTest) -> Endpoint:
    """The endpoint, for cases that stop or crash the server; skips where this process may not stop it."""
    if hasattr(request.config, "workerinput"):
        skip_or_fail("several workers share the server; cases that stop it need a run of their own")
    found = request.config.stash.get(_ENDPOINT_KEY, None)
    if found is None or found.kind == "address":
        pytest.skip("this endpoint is not ours to stop")
    return found


@pytest.hookimpl(tryfirst=True)  # before pytest evaluates `-m`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    stopping = [item for item in items if "endpoint" in getattr(item, "fixturenames", ())]
    for item in stopping:
        item.add_marker("stops_server")
    # Last, so that no other case meets a stopped server.
    items.sort(key=lambda item: item.get_closest_marker("stops_server") is not None)
    _select_areas(config, items)
    label = config.getoption("--endpoint")
    kind = expected_kind(label)
    for item in items:
        if label != "ours" and item.get_closest_marker("ours_only") is not None:
            item.add_marker(pytest.mark.skip(reason="about our own processes, not about this endpoint"))
        mark = item.get_closest_marker("case")
        if mark is not None:
            item.user_properties += [("area", mark.kwargs["area"]), ("feature", mark.kwargs["feature"])]
        different = item.get_closest_marker("differs")
        # The server at an address may be either one, so there the mark must not be strict.
        if different is not None and kind != "ours":
            item.add_marker(
                pytest.mark.xfail(reason=different.kwargs["reason"], strict=kind in _OFFICIAL_KINDS)
            )
            item.user_properties.append(("expected", "differs"))
        for name, outcome in (("not_yet", "missing"), ("not_served", "not served")):
            mark = item.get_closest_marker(name)
            if mark is not None and kind not in _OFFICIAL_KINDS:
                item.add_marker(pytest.mark.xfail(reason=mark.kwargs["reason"], strict=kind == "ours"))
                item.user_properties.append(("expected", outcome))


def _select_areas(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave only the cases of the areas that were asked for; those without an area go as well."""
    wanted = config.getoption("--area")
    if not wanted:
        return
    selected: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        mark = item.get_closest_marker("case")
        is_wanted = mark is not None and mark.kwargs["area"] in wanted
        (selected if is_wanted else left_out).append(item)
    items[:] = selected
    config.hook.pytest_deselected(items=left_out)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record one result per case: that of its call, or of its set-up if it ended there."""
    properties = dict(report.user_properties)
    if "area" not in properties or (report.when != "call" and report.outcome == "passed"):
        return
    if report.when == "teardown" and report.outcome != "failed":
        return
    line = {
        "id": report.nodeid.rpartition("cases/")[2],
        "area": properties["area"],
        "feature": properties["feature"],
        "outcome": properties["expected"] if _failed_as_expected(report) else report.outcome,
        "reason": _reason(report),
        "seconds": round(report.duration, 3),
    }
    _RESULT_LINES.append(line)


def _failed_as_expected(report: pytest.TestReport) -> bool:
    return hasattr(report, "wasxfail") and report.skipped


def _reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail).removeprefix("reason: ")
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        return str(crash.message if crash else report.longrepr).strip().splitlines()[0][:300]
    return ""


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--results")
    if path is None or hasattr(session.config, "workerinput"):
        return
    label = session.config.getoption("--endpoint")
    with path.open("w") as results:
        for line in _RESULT_LINES:
            results.write(json.dumps({"endpoint": label, **line}) + "\n")
    _RESULT_LINES.clear()
    print(f"\nresults are in {path}", file=sys.stderr)
