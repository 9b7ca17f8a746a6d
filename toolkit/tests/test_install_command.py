"""The hint names the place that the distribution was installed from."""

import json
import re
from importlib.metadata import Distribution, PackageNotFoundError

import pytest

from toolkit.install_command import _CHECKOUT, install_command


class Installed:
    def __init__(self, origin: object) -> None:
        self.origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self.origin is None else json.dumps(self.origin)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file:///src/a%20b", "dir_info": {"editable": True}}, "pip install -e '/src/a b[spark]'"),
        ({"url": "file:///src", "dir_info": {}}, "pip install '/src[spark]'"),
        ({"url": "file:///x/gw-1.whl", "archive_info": {}}, "pip install '/x/gw-1.whl[spark]'"),
        ({"url": "https://host/gw-1.whl", "archive_info": {}}, "pip install 'https://host/gw-1.whl[spark]'"),
        (None, "pip install 'rocketmq-gateway[spark]'"),
    ],
)
def test_the_command_names_the_origin(origin: object, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distribution, "from_name", lambda name: Installed(origin))
    assert install_command("spark") == command


def test_a_checkout_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Installed:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(Distribution, "from_name", missing)
    assert install_command("shadow") == f"pip install -e '{_CHECKOUT}[shadow]'"


def test_no_text_claims_that_the_project_is_on_a_package_index() -> None:
    """Until it is published, `pip install rocketmq-gateway` finds nothing, or something else."""
    claim = re.compile(r"""pip3? install[^\n`]*?['" ]rocketmq-gateway""")
    skipped = {".venv", ".venv-delta", ".build", "build", "dist", "site", "node_modules", ".git"}
    files = [
        path
        for suffix in ("md", "py", "toml", "conf")
        for path in _CHECKOUT.rglob(f"*.{suffix}")
        if not skipped & set(path.relative_to(_CHECKOUT).parts)
    ]
    allowed = {"install_command.py", "test_install_command.py"}
    assert files
    assert not [path for path in files if path.name not in allowed and claim.search(path.read_text("utf-8"))]
