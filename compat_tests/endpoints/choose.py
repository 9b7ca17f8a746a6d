"""Turns the value of an `--endpoint` option into an endpoint."""

import re
from collections.abc import Mapping
from typing import Final

from compat_tests.endpoints.address import AddressEndpoint
from compat_tests.endpoints.base import Endpoint
from compat_tests.endpoints.image import OFFICIAL_REPOSITORY, ImageEndpoint, image_name
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.our_proxy import OurProxyEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.endpoints.shadow import ShadowEndpoint

ENDPOINT_KINDS = (
    "ours, official[:version], image[:version or name:tag], shadow[:ours], proxy[:ours] or host:port of a "
    "namesrv"
)
STARTED_KINDS: Final = ("ours", "official", "image")
"""Kinds of servers that a run starts for itself; any other endpoint is somebody's cluster."""
OFFICIAL_VERSIONS: Final = {"4.9": "4.9.7", "5.3": "5.3.3", "5.4": "5.4.0", "5.5": "5.5.0"}
"""The release of each line of the official server that is tested: the last one whose broker Maven Central has."""
MARKED_VERSION: Final = "5.4.0"
"""The official version that the marks and recordings of the cases are about."""
MAX_PORT: Final = 65535
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+")
_PROFILES: Final = {"5.4.0": "server-5.4", "4.9.7": "server-4.9"}


def choose_endpoint(text: str, settings: Mapping[str, str] | None = None) -> Endpoint:
    """Return an endpoint that is not started yet. Raises Unavailable, and ValueError for a text that names none."""
    kind, _, rest = text.partition(":")
    if kind == "ours" and not rest:
        return OursEndpoint(settings, serves_grpc=True)
    if kind == "official":
        version = _full_version(rest)
        endpoint = OfficialEndpoint(settings, profile=_PROFILES.get(version, f"server-{version}"))
        endpoint.name = f"official {version}"
        return endpoint
    if kind == "shadow" and rest in ("", "official", "ours"):
        return ShadowEndpoint(OursEndpoint(settings) if rest == "ours" else OfficialEndpoint(settings))
    if kind == "proxy" and rest in ("", "official", "ours"):
        return OurProxyEndpoint(OursEndpoint(settings) if rest == "ours" else OfficialEndpoint(settings))
    if kind == "image":
        return ImageEndpoint(settings, name=image_name(rest))
    address = text.removeprefix("address:")
    if not is_address(address):
        raise ValueError(f"unknown endpoint {text!r}; possible are {ENDPOINT_KINDS}")
    somebodys = AddressEndpoint(address)
    somebodys.settings.update(settings or {})
    return somebodys


def is_address(text: str) -> bool:
    """Return True for a host, or "[…]" around an address of IPv6, followed by a colon and a port."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and int(port) <= MAX_PORT


def expected_kind(text: str) -> str:
    """Return the kind of server whose results to expect: for a shadow gateway, that of the server behind it.

    Cases of 5.x clients meet our proxy, whatever brokers it serves.
    """
    kind, _, rest = text.partition(":")
    if kind == "proxy":
        return "ours"
    if kind == "shadow":
        return rest or "official"
    return kind


def official_version(text: str) -> str | None:
    """Return the version of the official server that a text names, e.g. "5.4.0"; None if it names another server.

    Raises ValueError for a version that is none, and for the name of an image without a tag.
    """
    kind, _, rest = text.partition(":")
    if kind == "image":
        repository, _, tag = image_name(rest).rpartition(":")
        is_version = repository == OFFICIAL_REPOSITORY and _VERSION.fullmatch(tag) is not None
        return tag if is_version else None
    return _full_version(rest) if kind == "official" else None


def _full_version(text: str) -> str:
    version = OFFICIAL_VERSIONS.get(text or MARKED_VERSION, text or MARKED_VERSION)
    if _VERSION.fullmatch(version) is None:
        versions = ", ".join(OFFICIAL_VERSIONS)
        raise ValueError(f"{text!r} is no version of the official server: give one of {versions}, or x.y.z")
    return version
