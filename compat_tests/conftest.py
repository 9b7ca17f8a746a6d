"""Registers the suite's hooks and fixtures with pytest, whatever folder pytest is started in."""

from compat_tests.plugin import (  # noqa: F401
    endpoint,
    pytest_addoption,
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_configure_node,
    pytest_keyboard_interrupt,
    pytest_sessionfinish,
    pytest_sessionstart,
    pytest_unconfigure,
    pytest_xdist_newgateway,
    pytest_xdist_node_collection_finished,
    server,
)
