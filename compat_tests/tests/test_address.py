"""The endpoint for a cluster that somebody else runs."""

import pytest

from compat_tests.endpoints import address
from compat_tests.endpoints.address import AddressEndpoint
from compat_tests.endpoints.base import NotPossible


def test_cannot_be_killed_or_changed() -> None:
    endpoint = AddressEndpoint("h:1")
    assert endpoint.pids() == []
    with pytest.raises(NotPossible, match="h:1"):
        endpoint.crash()
    endpoint.settings["a"] = "b"
    with pytest.raises(NotPossible, match="a"):
        endpoint.start()


def test_learns_the_broker_from_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "find_broker", lambda namesrv, timeout_s: "h:2")
    with AddressEndpoint("h:1") as endpoint:
        assert endpoint.broker == "h:2"
