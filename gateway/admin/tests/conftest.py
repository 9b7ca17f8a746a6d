"""A server that the tests of a module share, and an environment without settings of the person at the machine."""

import itertools
from collections.abc import Iterator

import pytest

from gateway.admin import settings as settings_module
from gateway.admin.tests.local_server import LocalServer, run_server
from gateway.config.keys import CLIENT_ENVIRONMENT_PREFIX

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """Two brokers of one cluster."""
    with run_server(tmp_path_factory.mktemp("server"), brokers=2, enable_property_filter=True) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Hide the settings of the machine."""
    import os

    for name in [*os.environ]:
        if name.startswith(CLIENT_ENVIRONMENT_PREFIX) or name == settings_module.OFFICIAL_NAMESRV_VARIABLE:
            monkeypatch.delenv(name)
    missing = tmp_path_factory.getbasetemp() / "no-such-folder" / "profiles.toml"
    monkeypatch.setattr(settings_module, "default_profiles_file", lambda: missing)


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"name_{next(_NUMBERS)}"
