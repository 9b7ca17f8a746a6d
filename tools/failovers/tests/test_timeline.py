"""Pauses, the first accepted send, and changes of the accepting broker are found in the times of sends."""

import pytest

from codec.ids import encode_message_id
from tools.failovers.timeline import (
    AcceptedSend,
    Timeline,
    count_master_changes,
    first_accept_s,
    longest_pause_s,
    medians,
)


def sends(*fields: tuple[str, float, float]) -> list[AcceptedSend]:
    """Return sends to brokers, each with the times of request and answer."""
    return [AcceptedSend("direct", broker, begun_s, ended_s) for broker, begun_s, ended_s in fields]


def test_the_longest_pause_begins_and_ends_with_the_window() -> None:
    accepted = sends(("a", 0.0, 1.0), ("a", 2.0, 3.0), ("b", 8.0, 9.0))
    assert longest_pause_s(accepted, 2.5, 10.0) == 6.0
    assert longest_pause_s(accepted, 9.5, 20.0) == 10.5
    assert longest_pause_s(accepted, 0.0, 10.0, client="routed") == 10.0


def test_the_first_accepted_send_begins_after_the_fault() -> None:
    accepted = sends(("a", 4.0, 6.0), ("a", 5.5, 7.0), ("b", 6.0, 8.0), ("", 5.5, 6.0))
    assert first_accept_s(accepted, 5.0) == 6.0
    assert first_accept_s(accepted, 5.0, not_by="a") == 8.0
    assert first_accept_s(accepted, 6.5) is None


@pytest.mark.parametrize(
    ("order", "changes"),
    [
        ("", 0),
        ("aaa", 0),
        ("aabb", 1),
        ("aabbaa", 2),
        ("ababab", 5),
    ],
)
def test_changes_of_the_accepting_broker_are_counted(order: str, changes: int) -> None:
    accepted = sends(*((broker, number, number + 0.5) for number, broker in enumerate(order)))
    assert count_master_changes(accepted) == changes


def test_answers_that_overlap_are_not_a_change_back() -> None:
    # The last answer of "a" was under way when "b" accepted its first message.
    accepted = sends(("a", 0.0, 1.0), ("b", 2.0, 5.0), ("a", 4.0, 6.0), ("b", 7.0, 8.0))
    assert count_master_changes(accepted) == 1
    # This one began after it.
    assert count_master_changes(accepted + sends(("a", 5.5, 9.0))) == 2


def test_a_timeline_notes_the_times_of_accepted_messages_only() -> None:
    history = Timeline()
    history.name_producer(1, "direct")
    history.name_producer(2, "routed")
    for body, code in ((b"1-0 x", 0), (b"2-0 x", 12), (b"2-1 x", 0)):
        history.note_attempt(body, 0)
        if body.startswith(b"1"):
            history.note_broker(body, encode_message_id("127.0.0.1", 10911, 5))
        history.note_answer(body, 0, code)
    assert [(send.client, send.broker) for send in history.accepted()] == [
        ("direct", "127.0.0.1:10911"),
        ("routed", ""),
    ]
    assert history.clients() == ["direct", "routed"]
    assert history.promised == 1


def test_medians_and_maxima() -> None:
    assert medians([{"a": 1.0}, {"a": 4.0}, {"b": 9.0}], "a") == (2.5, 4.0)
    assert medians([{"a": 1.0}, {"a": 4.0}, {"a": 2.0}], "a") == (2.0, 4.0)
    assert medians([{"a": 1.0}], "b") is None
