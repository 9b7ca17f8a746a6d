"""The suite's options and fixtures, for cases that start our own servers, and fixtures of these cases."""

import pytest

from acceptance.containers import etcd_image, image  # noqa: F401 - fixtures
from compat_tests.cases.conftest import *  # noqa: F403 - fixtures
from compat_tests.plugin import register_suite


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    register_suite(pluginmanager)
