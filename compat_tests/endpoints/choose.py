"""Turns the text of an `--endpoint` option into an endpoint.

Not responsible for the option itself.
"""

from collections.abc import Mapping

from compat_tests.endpoints.address import Address
from compat_tests.endpoints.base import Endpoint
from compat_tests.endpoints.image import VERSION, Image
from compat_tests.endpoints.official import Official
from compat_tests.endpoints.ours import Ours
from compat_tests.endpoints.shadow import Shadow

KINDS = "ours, official, image[:version], shadow[:ours] or host:port of a namesrv"


def choose(text: str, settings: Mapping[str, str] | None = None) -> Endpoint:
    """An endpoint that is not started yet. Raises Unavailable, and ValueError for a text that names none."""
    kind, _, rest = text.partition(":")
    if kind == "ours" and not rest:
        return Ours(settings)
    if kind == "official" and not rest:
        return Official(settings)
    if kind == "shadow" and rest in ("", "official", "ours"):
        return Shadow(Ours(settings) if rest == "ours" else Official(settings))
    if kind == "image":
        return Image(settings, version=rest or VERSION)
    address = text.removeprefix("address:")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"{text!r} is no endpoint; possible are {KINDS}")
    endpoint = Address(address)
    endpoint.settings.update(settings or {})
    return endpoint


def judged_as(text: str) -> str:
    """The kind of the endpoint whose results are to be expected of one: behind a gateway it is what stands there."""
    kind, _, rest = text.partition(":")
    if kind == "shadow":
        return rest or "official"
    return kind
