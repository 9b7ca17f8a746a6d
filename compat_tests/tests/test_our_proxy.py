"""The endpoint with our proxy before it, without starting it."""

from pathlib import Path

import pytest

from compat_tests.endpoints import choose_endpoint, expected_kind, official
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.our_proxy import OurProxyEndpoint
from compat_tests.endpoints.ours import OursEndpoint


@pytest.mark.parametrize(
    ("text", "kind"),
    [("proxy", OfficialEndpoint), ("proxy:ours", OursEndpoint), ("proxy:official", OfficialEndpoint)],
)
def test_the_cluster_that_it_serves(monkeypatch: pytest.MonkeyPatch, text: str, kind: type) -> None:
    monkeypatch.setattr(official, "fetch_jars", lambda profile: None)
    endpoint = choose_endpoint(text, {"flushDiskType": "SYNC_FLUSH"})
    assert isinstance(endpoint, OurProxyEndpoint)
    assert isinstance(endpoint.behind, kind)
    assert endpoint.behind.grpc is None
    assert endpoint.settings == {"flushDiskType": "SYNC_FLUSH"}
    assert expected_kind(text) == "ours"
    endpoint.close()


def test_remoting_clients_meet_the_cluster_itself(tmp_path: Path) -> None:
    endpoint = OurProxyEndpoint(OursEndpoint(directory=tmp_path))
    assert (endpoint.namesrv, endpoint.broker) == (endpoint.behind.namesrv, endpoint.behind.broker)
    assert endpoint.store == endpoint.behind.store
    endpoint.settings = {"a": "b"}
    assert endpoint.behind.settings == {"a": "b"}
    assert endpoint.grpc not in (endpoint.namesrv, endpoint.broker)
    endpoint.close()
