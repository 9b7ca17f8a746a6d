"""Keeps a run from sending what it must not send to somebody else's cluster, whatever marks its cases have.

It sees the requests of our typed client only. Cases with stock clients and raw sockets are left out by their marks
(`read_only`, `needs_admin`); `tests/test_bounded_runs.py` lists what such runs send.
"""

from collections.abc import Mapping
from typing import Final

from codec.command import Command

CLUSTER_WIDE_REQUESTS: Final[Mapping[int, str]] = {
    25: "changes settings of the broker",
    100: "changes the KV configuration of the namesrv",
    102: "changes the KV configuration of the namesrv",
    103: "registers a broker",
    104: "unregisters a broker",
    205: "changes the permission of a broker",
    306: "deletes files of the broker",
    316: "deletes topics of others",
    318: "changes settings of the namesrv",
    327: "changes the permission of a broker",
    329: "deletes files of the broker",
    904: "speaks for a broker",
    2001: "changes settings of the broker",
    2002: "changes settings of the broker",
    2004: "changes settings of the broker",
    **dict.fromkeys((3001, 3002, 3003), "changes users"),
    **dict.fromkeys((3006, 3007, 3008), "changes access control"),
}
"""Request codes whose effect is not confined to the topics and groups of a run, each with what it does."""
_is_active = False


def forbid_cluster_wide_requests() -> None:
    """Skip every case, from now on, that is about to send such a request."""
    global _is_active
    _is_active = True


def check_request(command: Command) -> None:
    """Skip the case, if such requests are forbidden and this is one."""
    if _is_active and command.code in CLUSTER_WIDE_REQUESTS:
        import pytest  # benchmarks use our client as well, and need no pytest

        pytest.skip(f"{CLUSTER_WIDE_REQUESTS[command.code]}: run it with --allow-admin")
