"""The endpoint behind a shadow gateway, without starting it."""

from pathlib import Path

import pytest

from compat_tests.endpoints import choose_endpoint, expected_kind, official
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.endpoints.shadow import ShadowEndpoint


@pytest.mark.parametrize(
    ("text", "kind"),
    [("shadow", OfficialEndpoint), ("shadow:ours", OursEndpoint), ("shadow:official", OfficialEndpoint)],
)
def test_what_stands_behind_it(monkeypatch: pytest.MonkeyPatch, text: str, kind: type) -> None:
    monkeypatch.setattr(official, "fetch_jars", lambda profile: None)
    endpoint = choose_endpoint(text, {"flushDiskType": "SYNC_FLUSH"})
    assert isinstance(endpoint, ShadowEndpoint)
    assert isinstance(endpoint.primary, kind)
    assert endpoint.settings == {"flushDiskType": "SYNC_FLUSH"}
    endpoint.close()


def test_its_addresses_are_the_gateways(tmp_path: Path) -> None:
    endpoint = ShadowEndpoint(OursEndpoint(directory=tmp_path))
    assert endpoint.namesrv != endpoint.primary.namesrv
    assert endpoint.broker != endpoint.primary.broker
    assert endpoint.store == endpoint.primary.store
    endpoint.settings = {"a": "b"}
    assert endpoint.primary.settings == {"a": "b"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("shadow", "official"),
        ("shadow:ours", "ours"),
        ("ours", "ours"),
        ("image:5.3.3", "image"),
        ("h:1", "h"),
    ],
)
def test_results_are_those_of_what_stands_behind_it(text: str, kind: str) -> None:
    assert expected_kind(text) == kind
