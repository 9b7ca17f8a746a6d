"""The endpoint behind the gateway, as far as it can be told without starting it."""

from pathlib import Path

import pytest

from compat_tests.endpoints import choose, judged_as, official
from compat_tests.endpoints.official import Official
from compat_tests.endpoints.ours import Ours
from compat_tests.endpoints.shadow import Shadow


@pytest.mark.parametrize(
    ("text", "kind"), [("shadow", Official), ("shadow:ours", Ours), ("shadow:official", Official)]
)
def test_what_stands_behind_it(monkeypatch: pytest.MonkeyPatch, text: str, kind: type) -> None:
    monkeypatch.setattr(official, "ensure", lambda profile: None)
    endpoint = choose(text, {"flushDiskType": "SYNC_FLUSH"})
    assert isinstance(endpoint, Shadow)
    assert isinstance(endpoint.primary, kind)
    assert endpoint.settings == {"flushDiskType": "SYNC_FLUSH"}
    endpoint.close()


def test_its_addresses_are_the_gateways(tmp_path: Path) -> None:
    endpoint = Shadow(Ours(directory=tmp_path))
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
    assert judged_as(text) == kind
