"""The allowed imports: between packages, between the rooms of a package, and no import circle between modules.

A room is one folder of sources in `gateway` or `spark`. The two tables below are the only place that says what may
import what; a new package or room, or a new arrow between two of them, is added here first. Imports inside functions
and those for types count as well. Tests are not sources: they may import whatever they test.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]

PACKAGES: Mapping[str, set[str]] = {
    "codec": set(),
    "toolkit": {"codec"},
    "remoting": {"codec"},
    "storage": {"codec"},
    "gateway": {"codec", "toolkit", "remoting", "storage"},
    "spark": {"codec", "toolkit", "remoting"},
    "compat_tests": {"codec", "toolkit", "remoting"},
    "acceptance": {"codec", "toolkit", "remoting", "compat_tests", "tools"},
    "tools": {"codec", "toolkit", "remoting", "compat_tests", "spark"},
}

BROKER_TABLES = {"gateway.broker.filters", "gateway.broker.topics", "gateway.broker.waiting"}
BROKER_PATHS = BROKER_TABLES | {
    "gateway.broker.consumers",
    "gateway.broker.delayed",
    "gateway.broker.limits",
    "gateway.broker.messages",
    "gateway.broker.pop",
    "gateway.broker.replication",
    "gateway.broker.requests",
    "gateway.broker.statistics",
    "gateway.broker.transactions",
}
"""The rooms of a broker below the class that holds its parts."""
TRAFFIC_TO_MIRROR = {
    "gateway.shadow.traffic",
    "gateway.shadow.clusters",
    "gateway.http_server",
    "gateway.shadow.mirror",
}
ROOMS: Mapping[str, set[str]] = {
    # The server.
    "gateway": set(),
    "gateway.config": set(),
    "gateway.runtime": {"gateway.config"},
    "gateway.auth": {"gateway.config", "gateway.runtime"},
    "gateway.http_server": {"gateway.runtime"},
    "gateway.namesrv": {"gateway.config", "gateway.runtime"},
    "gateway.controller": {"gateway.config", "gateway.runtime"},
    # A broker, from the rooms that know no other up to the one that builds it.
    "gateway.broker.waiting": set(),
    "gateway.broker.topics": {"gateway.config", "gateway.runtime"},
    "gateway.broker.statistics": {"gateway.runtime"},
    "gateway.broker.filters.sql92": set(),
    "gateway.broker.filters": {"gateway.broker.filters.sql92", "gateway.config", "gateway.runtime"},
    "gateway.broker.messages": {
        "gateway.broker.statistics",
        "gateway.broker.topics",
        "gateway.broker.waiting",
        "gateway.config",
        "gateway.runtime",
    },
    "gateway.broker.replication": BROKER_TABLES
    | {
        "gateway.auth",
        "gateway.broker.consumers",
        "gateway.broker.delayed",
        "gateway.broker.messages",
        "gateway.broker.pop",
        "gateway.config",
        "gateway.runtime",
    },
    "gateway.broker.consumers": BROKER_TABLES | {"gateway.config", "gateway.runtime"},
    "gateway.broker.limits": {"gateway.broker.messages", "gateway.broker.topics", "gateway.config"},
    "gateway.broker.delayed": {
        "gateway.broker.messages",
        "gateway.broker.statistics",
        "gateway.broker.topics",
        "gateway.broker.waiting",
        "gateway.config",
        "gateway.runtime",
    },
    "gateway.broker.transactions": {
        "gateway.broker.consumers",
        "gateway.broker.messages",
        "gateway.broker.statistics",
        "gateway.broker.topics",
        "gateway.config",
    },
    "gateway.broker.pop": BROKER_TABLES
    | {
        "gateway.broker.consumers",
        "gateway.broker.limits",
        "gateway.broker.messages",
        "gateway.config",
        "gateway.runtime",
    },
    "gateway.broker.requests": BROKER_TABLES
    | {
        "gateway.broker.consumers",
        "gateway.broker.delayed",
        "gateway.broker.limits",
        "gateway.broker.messages",
        "gateway.broker.statistics",
        "gateway.broker.transactions",
        "gateway.config",
        "gateway.runtime",
    },
    "gateway.broker": BROKER_PATHS | {"gateway.auth", "gateway.config"},
    "gateway.broker.processors": BROKER_PATHS
    | {"gateway.auth", "gateway.broker", "gateway.broker.filters.sql92", "gateway.config", "gateway.namesrv"},
    "gateway.broker.assembly": BROKER_PATHS
    | {
        "gateway.auth",
        "gateway.broker",
        "gateway.broker.processors",
        "gateway.config",
        "gateway.namesrv",
        "gateway.runtime",
    },
    # The gRPC protocol in front of brokers: it uses their handlers, tables, turns and rules about names.
    "gateway.grpc_front": {
        "gateway.auth",
        "gateway.broker.consumers",
        "gateway.broker.filters",
        "gateway.broker.pop",
        "gateway.broker.processors",
        "gateway.broker.topics",
        "gateway.runtime",
    },
    # The process that serves, and the command line.
    "gateway.process.supervision": {"gateway.config", "gateway.runtime", "gateway.namesrv"},
    "gateway.process": {
        "gateway.auth",
        "gateway.broker.assembly",
        "gateway.broker.messages",
        "gateway.broker.replication",
        "gateway.config",
        "gateway.controller",
        "gateway.grpc_front",
        "gateway.http_server",
        "gateway.namesrv",
        "gateway.process.supervision",
        "gateway.runtime",
    },
    "gateway.commands": {"gateway.config", "gateway.runtime"},
    "gateway.testing": {
        "gateway.broker",
        "gateway.broker.assembly",
        "gateway.broker.limits",
        "gateway.config",
        "gateway.http_server",
        "gateway.namesrv",
        "gateway.process",
        "gateway.runtime",
    },
    "gateway.commands.store": {
        "gateway.admin",
        "gateway.admin.commands",
        "gateway.broker.messages",
        "gateway.broker.replication",
        "gateway.config",
        "gateway.runtime",
    },
    # Commands that ask the servers of a cluster.
    "gateway.admin": {"gateway.config"},
    "gateway.admin.commands": {"gateway.admin", "gateway.auth"},
    # The shadow gateway, from the traffic it sees up to its commands.
    "gateway.shadow.traffic": {"gateway.runtime"},
    "gateway.shadow.clusters": {"gateway.config", "gateway.shadow.traffic"},
    "gateway.shadow.console": {"gateway.config", "gateway.http_server", "gateway.shadow.clusters"},
    "gateway.shadow.proxy": {
        "gateway.config",
        "gateway.runtime",
        "gateway.shadow.traffic",
        "gateway.shadow.clusters",
    },
    # Forwarding to the primary's Proxy speaks the front's HTTP/2 and protocol.
    "gateway.shadow.grpc_forwarding": {
        "gateway.grpc_front",
        "gateway.runtime",
        "gateway.shadow.clusters",
        "gateway.shadow.proxy",
        "gateway.shadow.traffic",
    },
    "gateway.shadow.mirror": {
        "gateway.config",
        "gateway.runtime",
        "gateway.shadow.traffic",
        "gateway.shadow.clusters",
        "gateway.http_server",
    },
    "gateway.shadow.replication": TRAFFIC_TO_MIRROR | {"gateway.config", "gateway.runtime"},
    "gateway.shadow.compare": {
        "gateway.config",
        "gateway.runtime",
        "gateway.shadow.traffic",
        "gateway.shadow.clusters",
        "gateway.http_server",
    },
    "gateway.shadow.capture": TRAFFIC_TO_MIRROR | {"gateway.config", "gateway.runtime"},
    "gateway.shadow.cutover": TRAFFIC_TO_MIRROR
    | {
        "gateway.config",
        "gateway.runtime",
        "gateway.shadow.replication",
        "gateway.shadow.compare",
    },
    "gateway.shadow.report": TRAFFIC_TO_MIRROR
    | {"gateway.config", "gateway.runtime", "gateway.shadow.compare", "gateway.shadow.console"},
    "gateway.shadow": TRAFFIC_TO_MIRROR
    | {
        "gateway.grpc_front",
        "gateway.config",
        "gateway.runtime",
        "gateway.shadow.grpc_forwarding",
        "gateway.shadow.proxy",
        "gateway.shadow.replication",
        "gateway.shadow.compare",
        "gateway.shadow.capture",
        "gateway.shadow.cutover",
        "gateway.shadow.report",
    },
    "gateway.shadow.commands": {
        "gateway.http_server",
        "gateway.config",
        "gateway.runtime",
        "gateway.shadow",
        "gateway.shadow.clusters",
        "gateway.shadow.console",
        "gateway.shadow.replication",
        "gateway.shadow.compare",
        "gateway.shadow.capture",
        "gateway.shadow.cutover",
        "gateway.shadow.report",
    },
    # The data sources and pipelines for Spark.
    "spark": set(),
    "spark.pull": {"spark"},
    "spark.tables": {"spark", "spark.pull"},
    "spark.sink": {"spark"},
    "spark.source": {"spark", "spark.pull", "spark.sink"},
    "spark.capture": {"spark", "spark.pull"},
    "spark.session": {"spark.source", "spark.capture"},
    "spark.profiling": {"spark.capture"},
    "spark.reconciling": {"spark", "spark.source", "spark.tables"},
    "spark.pipelines": {
        "spark",
        "spark.pull",
        "spark.source",
        "spark.capture",
        "spark.session",
        "spark.tables",
        "spark.profiling",
        "spark.reconciling",
    },
}
FACADES: Mapping[str, set[str]] = {"spark.__init__": {"spark.session"}}
"""Packages' own modules that only hand on names of the rooms below; no room may import them for that."""

ROOM_EXCEPTIONS: set[str] = set()
"""Imports that the table does not allow yet, as "module imports room". May only shrink."""
CIRCLE_EXCEPTIONS: set[str] = set()
"""Import circles that are not resolved yet, as the names of their modules. May only shrink."""


class Import(NamedTuple):
    """One import statement of a module; ``types_only`` if it stands below ``if TYPE_CHECKING``."""

    module: str
    imported: str
    types_only: bool


@cache
def modules() -> dict[str, Path]:
    """Return the source modules by dotted name; the module of a package is called ``package.__init__``."""
    found = {}
    for package in sorted(path.parent.name for path in ROOT.glob("*/__init__.py")):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if "tests" not in parts:
                found[".".join(parts)] = path
    return found


def resolve_module(name: str) -> str | None:
    """Return the source module that a dotted name stands for; None for modules of others."""
    return next((each for each in (name, f"{name}.__init__") if each in modules()), None)


def imported_names(node: ast.AST) -> Iterator[str]:
    """Yield the source modules that one statement imports."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert not node.level, "relative imports are not used here"
        whole = node.module or ""
        names = [resolve_module(f"{whole}.{alias.name}") or whole for alias in node.names]
    else:
        return
    yield from {found for name in names if (found := name if name in modules() else resolve_module(name))}


@cache
def imports() -> tuple[Import, ...]:
    """Return all imports among source modules, lazy ones and those for types included."""
    found = []
    for module, path in modules().items():
        tree = ast.parse(path.read_text())
        for_types = {
            id(below)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for below in ast.walk(node)
        }
        for node in ast.walk(tree):
            found += [
                Import(module, name, id(node) in for_types) for name in imported_names(node) if name != module
            ]
    return tuple(found)


def room_of(module: str) -> str:
    """Return the folder of a module, as a dotted name."""
    return module.rpartition(".")[0]


def is_in_rooms(module: str) -> bool:
    """Tell whether the table above rules a module."""
    return module.split(".")[0] in ("gateway", "spark")


def room_violations() -> set[str]:
    """Return the imports that the table does not allow, as "module imports room"."""
    wrong = set()
    for each in imports():
        room, other = room_of(each.module), room_of(each.imported)
        if not (is_in_rooms(each.module) and is_in_rooms(each.imported)) or room == other:
            continue
        allowed = FACADES.get(each.module, ROOMS.get(room, set()))
        if other not in allowed:
            wrong.add(f"{each.module} imports {other}")
    return wrong


def circles(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one node, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(arrows.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return sorted(found)


def module_circles() -> set[str]:
    """Return the import circles between modules; imports for types alone do not count."""
    arrows: dict[str, set[str]] = {module: set() for module in modules()}
    for each in imports():
        if not each.types_only:
            arrows[each.module].add(each.imported)
    return {" ".join(circle) for circle in circles(arrows)}


def test_packages_import_what_the_table_allows() -> None:
    wrong = set()
    for each in imports():
        package, other = each.module.split(".")[0], each.imported.split(".")[0]
        allowed = PACKAGES[package]
        if other != package and other not in allowed:
            wrong.add(f"{each.module} imports {other}")
    assert wrong == set()


def test_every_package_is_in_the_table() -> None:
    assert {module.split(".")[0] for module in modules()} == set(PACKAGES)
    assert circles(PACKAGES) == []


def test_every_room_is_in_the_table() -> None:
    rooms = {room_of(module) for module in modules() if is_in_rooms(module)}
    assert rooms == set(ROOMS)


def test_table_has_no_circle() -> None:
    assert circles(ROOMS) == []
    assert {room for allowed in ROOMS.values() for room in allowed} <= set(ROOMS)


def test_rooms_import_what_the_table_allows() -> None:
    assert room_violations() - ROOM_EXCEPTIONS == set()


def test_no_import_circles_between_modules() -> None:
    assert module_circles() - CIRCLE_EXCEPTIONS == set()


def test_exceptions_are_still_needed() -> None:
    assert ROOM_EXCEPTIONS - room_violations() == set()
    assert CIRCLE_EXCEPTIONS - module_circles() == set()


@pytest.mark.parametrize(
    ("arrows", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, [["a", "b", "c"]]),
        ({"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"c", "a"}}, [["a", "b"], ["c", "d"]]),
    ],
)
def test_circles_are_found(arrows: dict[str, set[str]], expected: list[list[str]]) -> None:
    assert circles(arrows) == expected
