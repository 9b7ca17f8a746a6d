"""Values of the `--endpoint` option."""

import pytest

from compat_tests.endpoints import choose_endpoint as package_choose
from compat_tests.endpoints import official
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
