"""The pip command that installs an extra, for messages: it fits the way this distribution was installed."""

import json
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

DISTRIBUTION: Final = "rocketmq-gateway"
_CHECKOUT: Final = Path(__file__).resolve().parent.parent


def install_command(extra: str) -> str:
    """Return a pip command for an extra, from the same checkout, wheel or package index as the installed distribution.

    pip records the origin in `direct_url.json` (PEP 610). A distribution without this file came from a package index.
    """
    try:
        text = Distribution.from_name(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return f"pip install -e '{_CHECKOUT}[{extra}]'"
    if not text:
        return f"pip install '{DISTRIBUTION}[{extra}]'"
    origin: dict[str, Any] = json.loads(text)
    parts = urlsplit(origin["url"])
    source = unquote(parts.path) if parts.scheme == "file" else origin["url"]
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}'{source}[{extra}]'"
