"""Gives the suite's options, fixtures and marks to every run below this folder, whatever folder pytest starts in."""

import pytest

from compat_tests.plugin import register_suite


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    register_suite(pluginmanager)
