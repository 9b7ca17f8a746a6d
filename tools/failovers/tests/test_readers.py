"""Messages that readers saw stay where they were."""

from tools.failovers.readers import ReadMessages


def test_two_messages_at_one_offset_are_a_conflict() -> None:
    messages = ReadMessages()
    messages.note(0, 5, b"one")
    messages.note(0, 5, b"one")
    messages.note(1, 5, b"two")
    assert (messages.conflicts, messages.count) == (0, 2)
    messages.note(0, 5, b"two")
    assert (messages.conflicts, messages.count) == (1, 2)


def test_messages_that_are_gone_are_counted() -> None:
    messages = ReadMessages()
    for offset, body in enumerate((b"one", b"two", b"three")):
        messages.note(0, offset, body)
    assert messages.count_vanished({0: [(0, b"one"), (1, b"two"), (2, b"three"), (3, b"four")]}) == 0
    assert messages.count_vanished({0: [(0, b"one"), (1, b"other")]}) == 2
    assert messages.count_vanished({0: [(0, b"one"), (1, b"other")]}) == 0
