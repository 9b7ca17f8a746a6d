"""Values of the `--endpoint` option."""

import pytest

from compat_tests.endpoints import choose_endpoint as package_choose
from compat_tests.endpoints import official, official_version
from compat_tests.endpoints.address import AddressEndpoint
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint


@pytest.mark.parametrize("text", ["10.0.0.1:9876", "address:10.0.0.1:9876"])
def test_addresses(text: str) -> None:
    endpoint = package_choose(text)
    assert isinstance(endpoint, AddressEndpoint)
    assert endpoint.namesrv == "10.0.0.1:9876"


def test_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(official, "fetch_jars", lambda profile: None)
    for text, kind in (("ours", OursEndpoint), ("official", OfficialEndpoint)):
        endpoint = package_choose(text, {"flushDiskType": "SYNC_FLUSH"})
        assert isinstance(endpoint, kind)
        assert endpoint.settings == {"flushDiskType": "SYNC_FLUSH"}
        endpoint.close()


@pytest.mark.parametrize("text", ["", "our", "host", "host:", ":9876", "host:port", "ours:x"])
def test_nonsense(text: str) -> None:
    with pytest.raises(ValueError, match="possible are"):
        package_choose(text)


@pytest.mark.parametrize(
    ("text", "profile"),
    [("", "server-5.4"), (":5.4", "server-5.4"), (":4.9", "server-4.9"), (":5.3", "server-5.3.3")],
)
def test_official_versions(monkeypatch: pytest.MonkeyPatch, text: str, profile: str) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(official, "fetch_jars", fetched.append)
    package_choose(f"official{text}").close()
    assert fetched == [profile]


def test_any_version_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(official, "fetch_jars", fetched.append)
    endpoint = package_choose("official:4.9.8")
    endpoint.close()
    assert (fetched, endpoint.name) == (["server-4.9.8"], "official 4.9.8")


def test_the_version_that_a_text_names() -> None:
    assert official_version("official") == "5.4.0"
    assert official_version("official:5.5") == "5.5.0"
    assert official_version("image:5.3.3") == "5.3.3"
    assert official_version("image:apache/rocketmq:5.3.3") == "5.3.3"
    assert official_version("image:apache/rocketmq:latest") is None
    assert official_version("image:mine/rocketmq:5.3.3") is None
    assert official_version("10.0.0.1:9876") is None
    with pytest.raises(ValueError, match="no version of the official server"):
        official_version("official:5")
