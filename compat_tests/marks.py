"""The marks of a conformance case: what it is about, where servers differ on purpose, what ours lacks.

Not responsible for acting on them; that is plugin.py.
"""

import pytest

AREAS = (
    "clients",
    "send",
    "consume",
    "pull",
    "offsets",
    "client",
    "locks",
    "query",
    "admin",
    "namesrv",
    "wire",
    "restart",
    "transactions",
    "filter",
    "pop",
    "timer",
)


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
