"""The official image's endpoint without a Docker engine; the cases show that it works with one."""

import pytest

from compat_tests.endpoints.image import VERSION, ImageEndpoint, image_name
from compat_tests.jars import Unavailable


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("5.3.3", "apache/rocketmq:5.3.3"),
        ("", f"apache/rocketmq:{VERSION}"),
        ("apache/rocketmq:5.3.3", "apache/rocketmq:5.3.3"),
        ("registry:5000/mine:1", "registry:5000/mine:1"),
    ],
)
def test_an_image_is_named_by_its_version_or_in_full(text: str, name: str) -> None:
    assert image_name(text) == name


@pytest.mark.parametrize("text", ["apache/rocketmq", "registry:5000/mine", ":1", "mine:"])
def test_an_image_without_a_tag_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="has no tag: give its full name"):
        image_name(text)


def test_without_an_engine_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("testcontainers")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(Unavailable, match="no Docker engine answers"):
        ImageEndpoint()
