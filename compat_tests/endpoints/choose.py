"""Turns the value of an `--endpoint` option into an endpoint."""

from collections.abc import Mapping

from compat_tests.endpoints.address import AddressEndpoint
from compat_tests.endpoints.base import Endpoint
from compat_tests.endpoints.image import VERSION, ImageEndpoint
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.endpoints.shadow import ShadowEndpoint

ENDPOINT_KINDS = "ours, official, image[:version], shadow[:ours] or host:port of a namesrv"


def choose_endpoint(text: str, settings: Mapping[str, str] | None = None) -> Endpoint:
    """Return an endpoint that is not started yet. Raises Unavailable, and ValueError for a text that names none."""
    kind, _, rest = text.partition(":")
    if kind == "ours" and not rest:
        return OursEndpoint(settings)
    if kind == "official" and not rest:
        return OfficialEndpoint(settings)
    if kind == "shadow" and rest in ("", "official", "ours"):
        return ShadowEndpoint(OursEndpoint(settings) if rest == "ours" else OfficialEndpoint(settings))
    if kind == "image":
        return ImageEndpoint(settings, version=rest or VERSION)
    address = text.removeprefix("address:")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"unknown endpoint {text!r}; possible are {ENDPOINT_KINDS}")
    endpoint = AddressEndpoint(address)
    endpoint.settings.update(settings or {})
    return endpoint


def expected_kind(text: str) -> str:
    """Return the kind of server whose results to expect: for a shadow gateway, that of the server behind it."""
    kind, _, rest = text.partition(":")
    if kind == "shadow":
        return rest or "official"
    return kind
