"""Official keys without effect are told apart from unknown ones."""

import re
from pathlib import Path

import pytest

from gateway.config.keys import keys_of
from gateway.config.process import TABLES
from gateway.config.unsupported import IGNORED, UNUSED, reason_for


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sendMessageThreadPoolNums", IGNORED),
        ("totalReplicas", "automatic failover"),
        ("storeType", "another kind of storage"),
        ("popCkStayBufferTime", "popped messages"),
    ],
)
def test_reasons(name: str, words: str) -> None:
    reason = reason_for(name)
    assert reason is not None
    assert words in reason


@pytest.mark.parametrize("name", ["", "aclEnabl", "listenPort"])
def test_no_reason_for_unknown_and_supported_keys(name: str) -> None:
    assert reason_for(name) is None


def test_declared_keys_are_read_or_said_to_be_unused() -> None:
    """A key that comes into use leaves UNUSED; a new one that nothing reads enters it."""
    gateway = Path(__file__).parents[2]
    sources = [path for path in gateway.rglob("*.py") if "tests" not in path.relative_to(gateway).parts]
    declaring = {"process.py", "broker.py", "flow.py", "replication.py"}
    declared = [path for path in sources if path.parent.name == "config" and path.name in declaring]
    readers = [path.read_text() for path in sources if path not in declared]
    inside = [path.read_text() for path in declared]
    unread = set()
    for kind in TABLES.values():
        for each in keys_of(kind).values():
            field = each.attribute.rpartition(".")[2]
            outside = any(re.search(rf"\.{field}\b", text) for text in readers)
            if not outside and not any(re.search(rf"self\.{field}\b", text) for text in inside):
                unread.add(each.name)
    assert unread == UNUSED
