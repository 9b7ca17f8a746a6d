"""Marks for conformance cases: the feature covered, deliberate differences, and features ours lacks.

`plugin.py` acts on them.
"""

import pytest

from compat_tests.areas import AREAS


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


read_only = pytest.mark.read_only
"""Mark a case that creates and changes nothing; `compat --read-only` runs these alone.

`tests/test_read_only.py` lists the requests that they send.
"""


def needs_admin(reason: str) -> pytest.MarkDecorator:
    """Mark a case that changes more than what it created, or misbehaves; `reason` is a clause that says what it does.

    At an address it is skipped for this reason, unless the run has `--allow-admin`.
    """
    return pytest.mark.needs_admin(reason=reason)
