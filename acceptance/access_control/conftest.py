"""The servers with access control that the files of this folder use; each file has servers of its own."""

from collections.abc import Iterator

import pytest

from acceptance.secured import Server, run_official, run_ours


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Our namesrv and broker."""
    with run_ours(tmp_path_factory.mktemp("ours")) as process:
        yield process


@pytest.fixture(scope="module")
def official() -> Iterator[Server]:
    """The official namesrv and broker."""
    with run_official() as endpoint:
        yield endpoint


@pytest.fixture(params=["ours", "official"])
def either(request: pytest.FixtureRequest) -> Server:
    """One after the other."""
    found: Server = request.getfixturevalue(request.param)
    return found
