"""The marks of a conformance case: what it is about, where servers differ on purpose, what ours lacks.

Not responsible for acting on them; that is plugin.py.
"""

import pytest

AREAS = {
    "clients": "Stock programs, unmodified",
    "send": "Sending",
    "batch": "Batches",
    "bodies": "Bodies: none, large, compressed",
    "consume": "Consuming: push, lite pull, broadcast, pause",
    "from": "Where a new group begins",
    "ordered": "Ordered: queue choice, locks, orderly listeners",
    "retry": "Retry and dead letters",
    "transactions": "Transactions",
    "delay": "Delay levels",
    "timer": "Timer messages and recall",
    "filter": "Filters: tags and SQL92",
    "pop": "POP consumption",
    "reply": "Request and reply",
    "trace": "Message trace",
    "namespace": "Namespaces and unit mode",
    "pull": "Pulling",
    "offsets": "Offsets: commit, search, reset, clone",
    "client": "Clients: heartbeats, notices, what is asked of them",
    "query": "Message queries",
    "admin": "Administration of topics and groups",
    "namesrv": "Name server",
    "wire": "The protocol on the wire",
    "restart": "Restart and SIGKILL",
}
"""What cases are about, in the order of the table, with the title each part of it has."""


def case(area: str, feature: str) -> pytest.MarkDecorator:
    """Says which part of the protocol a case is about; `feature` is the line it gets in the table."""
    if area not in AREAS:
        raise ValueError(f"unknown area {area!r}, known are {', '.join(AREAS)}")
    return pytest.mark.case(area=area, feature=feature)


def differs(reason: str) -> pytest.MarkDecorator:
    """For a case that the official server does not pass, and why that is right for ours nevertheless.

    On the official server such a case must fail: when it passes there, the mark is wrong and the case fails.
    """
    return pytest.mark.differs(reason=reason)


def not_yet(reason: str) -> pytest.MarkDecorator:
    """For a case our server does not pass yet; it must fail there, so that the mark goes when it passes."""
    return pytest.mark.not_yet(reason=reason)


def not_served(reason: str) -> pytest.MarkDecorator:
    """For a case about something our server leaves out on purpose; it must fail there, and the table says so."""
    return pytest.mark.not_served(reason=reason)
