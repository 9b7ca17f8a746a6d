"""The history checker finds each kind of broken law, and counts duplicates without complaint."""

from collections.abc import Sequence

import pytest

from tools.pairings.history import Judgement, SendHistory


def history(*answers: tuple[bytes, int, int], attempts: int = 1) -> SendHistory:
    """Return a history of messages for queue 0, each with its offset and the code of its answer."""
    notes = SendHistory()
    for body, offset, code in answers:
        for _ in range(attempts):
            notes.note_attempt(body, 0)
        notes.note_answer(body, offset, code)
    return notes


def judge(notes: SendHistory, *bodies: bytes, start: int = 0) -> Judgement:
    return notes.judge({0: list(enumerate(bodies, start))})


SENT = [(b"1-0 a", 0, 0), (b"1-1 b", 1, 0), (b"2-0 c", 2, 12)]


def test_everything_is_there() -> None:
    judgement = judge(history(*SENT), b"1-0 a", b"1-1 b", b"2-0 c")
    assert (judgement.faults, judgement.duplicates, judgement.read) == ({}, 0, 3)


def test_only_what_a_slave_has_is_promised() -> None:
    notes = history(*SENT)
    assert judge(notes, b"1-0 a", b"1-1 b").faults == {}
    notes.promise_stored()
    assert judge(notes, b"1-0 a", b"1-1 b").faults == {"missing": 1}
    assert (notes.promised, notes.statuses) == (3, {0: 2, 12: 1})


@pytest.mark.parametrize(
    ("bodies", "faults"),
    [
        ([b"1-0 a"], {"missing": 1}),
        ([b"1-1 b", b"1-0 a"], {"altered": 2, "out_of_order": 1}),
        ([b"1-0 a", b"2-0 c", b"1-1 b"], {"altered": 1}),
        ([b"1-0 a", b"1-1 b", b"1-1 b"], {"unknown": 1}),
        ([b"1-0 a", b"1-1 b", b"9-9 strange"], {"unknown": 2}),
    ],
)
def test_broken_laws_are_counted(bodies: Sequence[bytes], faults: dict[str, int]) -> None:
    assert judge(history(*SENT), *bodies).faults == faults


def test_what_is_lost_is_counted_once() -> None:
    notes = history(*SENT)
    lost = {0: [(1, b"1-1 b")]}
    assert notes.judge(lost).faults == {"missing": 1}
    notes.forget_lost(lost)
    assert notes.judge(lost).faults == {}
    assert notes.judge({0: []}).faults == {"missing": 1}
    # The place of a lost message may be promised to another one.
    notes.note_attempt(b"3-0 d", 0)
    notes.note_answer(b"3-0 d", 0, 0)
    assert judge(notes, b"3-0 d", b"1-1 b").faults == {}


def test_one_place_is_promised_once() -> None:
    notes = history((b"1-0 a", 0, 0), (b"2-0 b", 0, 0))
    assert judge(notes, b"1-0 a").faults == {"conflicts": 1}


def test_offsets_have_no_gaps() -> None:
    notes = history((b"1-0 a", 5, 0), (b"1-1 b", 7, 0))
    assert notes.judge({0: [(5, b"1-0 a"), (7, b"1-1 b")]}).faults == {"gaps": 1}


def test_a_message_that_was_sent_again_may_be_there_twice() -> None:
    judgement = judge(history(*SENT, attempts=2), b"1-0 a", b"1-1 b", b"1-1 b", b"2-0 c")
    assert (judgement.faults, judgement.duplicates) == ({}, 1)
