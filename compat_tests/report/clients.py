"""Finds the stock client that a case is about: the feature's text begins with its name."""

import re
from collections.abc import Iterable
from typing import Final

from compat_tests.report.comparison import ComparedCase

_FEATURE = re.compile(r"(Java|Go|Node|Python|C\+\+|mqadmin)\b(?:[^:]*: )?(.*)")
_OLD_JAVA: Final = "4.9.8"
CLIENTS: Final = (
    "Java 4.9.8",
    "Java 5.4.0",
    "Java gRPC",
    "Python gRPC",
    "Go",
    "Go gRPC",
    "Node",
    "Node gRPC",
    "mqadmin",
)
"""Stock clients in the order of their columns."""


def client_of(case: ComparedCase) -> tuple[str, str] | None:
    """Return the client and the rest of the feature's text; None if the feature names no stock client.

    Java cases that run with either version say it in their id.
    """
    match = _FEATURE.match(case.feature)
    if match is None:
        return None
    name, rest = match[1], match[2] or match[0]
    if case.area == "grpc":
        name = f"{name} gRPC"
    elif name == "Java":
        name = "Java 4.9.8" if _OLD_JAVA in case.id or _OLD_JAVA in case.feature else "Java 5.4.0"
    return name, rest.strip()


def order_clients(names: Iterable[str]) -> list[str]:
    """Return the clients in the order of their columns; those that are not known come last."""
    return sorted(names, key=lambda name: (CLIENTS.index(name) if name in CLIENTS else len(CLIENTS), name))
