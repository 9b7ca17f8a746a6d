"""The stock client of a case, by the text of its feature."""

import pytest

from compat_tests.report.clients import CLIENTS, client_of
from compat_tests.report.comparison import SAME, ComparedCase


@pytest.mark.parametrize(
    ("area", "feature", "found"),
    [
        ("send", "Java: synchronous send", ("Java 5.4.0", "synchronous send")),
        ("clients", "Java client 4.9.8: 10,000 messages", ("Java 4.9.8", "10,000 messages")),
        ("grpc", "Java 5.1: a recalled message", ("Java gRPC", "a recalled message")),
        ("grpc", "Node rocketmq-client-nodejs 1.0.8: 1,000 messages", ("Node gRPC", "1,000 messages")),
        ("grpc", "codes of routes and assignments", None),
    ],
)
def test_client_of(area: str, feature: str, found: tuple[str, str] | None) -> None:
    assert client_of(ComparedCase("id", area, feature, "passed", "passed", SAME, "")) == found
    assert found is None or found[0] in CLIENTS
