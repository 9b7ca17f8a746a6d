"""The servers that tests and benchmarks can run against, all behind the protocol `Endpoint`."""

from compat_tests.endpoints.base import Endpoint, NotPossible
from compat_tests.endpoints.choose import (
    ENDPOINT_KINDS,
    MARKED_VERSION,
    OFFICIAL_VERSIONS,
    STARTED_KINDS,
    choose_endpoint,
    expected_kind,
    is_address,
    official_version,
)
from compat_tests.endpoints.process import exit_on_sigterm
from compat_tests.jars import Unavailable

__all__ = [
    "ENDPOINT_KINDS",
    "MARKED_VERSION",
    "OFFICIAL_VERSIONS",
    "STARTED_KINDS",
    "Endpoint",
    "NotPossible",
    "Unavailable",
    "choose_endpoint",
    "exit_on_sigterm",
    "expected_kind",
    "is_address",
    "official_version",
]
