"""The official image's endpoint without a Docker engine; the cases show that it works with one."""

import pytest

from compat_tests.endpoints.image import ImageEndpoint
from compat_tests.jars import Unavailable


def test_without_an_engine_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("testcontainers")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(Unavailable, match="no Docker engine answers"):
        ImageEndpoint()
