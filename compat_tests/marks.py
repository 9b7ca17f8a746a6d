"""Marks for conformance cases: the feature covered, deliberate differences, and features ours lacks.

`plugin.py` acts on them.
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
"""Areas of the protocol in the order of the table, each with its heading."""


def case(area: str, feature: str) -> pytest.MarkDecorator:
    """Assign a case to an area; `feature` is the text of its row in the table."""
    if area not in AREAS:
        raise ValueError(f"unknown area {area!r}, known are {', '.join(AREAS)}")
    return pytest.mark.case(area=area, feature=feature)


def differs(reason: str) -> pytest.MarkDecorator:
    """Mark a case that the official server fails because ours deliberately does better.

    If the official server passes such a case, the mark is wrong and the case fails.
    """
    return pytest.mark.differs(reason=reason)


def not_yet(reason: str) -> pytest.MarkDecorator:
    """Mark a case our server does not pass yet; once it passes, the case fails until the mark is removed."""
    return pytest.mark.not_yet(reason=reason)


def not_served(reason: str) -> pytest.MarkDecorator:
    """Mark a case about a feature our server leaves out on purpose; it must fail there, and the table says so."""
    return pytest.mark.not_served(reason=reason)
