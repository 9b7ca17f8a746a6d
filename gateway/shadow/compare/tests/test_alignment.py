from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from gateway.shadow.compare.alignment import (
    AlignmentLedger,
    FindingKind,
    align_by_key,
    longest_common_subsequence,
)
from gateway.shadow.compare.entries import ComparedMessage


def entry(number, offset=None, key=None):
    place = number if offset is None else offset
    return ComparedMessage(place, b"%d" % number, b"same", True, key, number, number, 0, 0)


def ledger(window, found, end=1 << 40):
    made = AlignmentLedger(window, found.append)
    made.primary_end = end
    return made


def test_unmatched_messages_are_bounded_by_the_window():
    found = []
    book = ledger(50, found)
    for number in range(5000):
        book.record_missing(entry(number))
        book.record_extra(entry(100_000 + number))
    assert len(book._missing._by_age) + len(book._extra._by_age) <= 51
    book.finish()
    assert [fault.kind for fault in found].count(FindingKind.MISSING) == 5000
    assert [fault.kind for fault in found].count(FindingKind.EXTRA) == 5000


def test_pairs_are_forgotten():
    book = ledger(10, [])
    for number in range(1000):
        book.record_pair(entry(number, key=b"K%d" % number), entry(number))
    assert len(book._recent._order) == len(book._recent._count) == len(book._recent._places) == 20


def test_a_partner_that_comes_too_late_is_two_faults():
    found = []
    book = ledger(10, found)
    book.record_missing(entry(1))
    for number in range(100, 120):
        book.record_pair(entry(number), entry(number))
    book.record_extra(entry(1, offset=500))
    book.finish()
    assert [(fault.kind, fault.identity) for fault in found] == [
        (FindingKind.MISSING, b"1"),
        (FindingKind.EXTRA, b"1"),
    ]


@given(
    st.lists(st.integers(0, 12), max_size=30, unique=True),
    st.lists(st.integers(0, 12), max_size=30, unique=True),
)
def test_the_common_run_is_a_longest_one(ours, theirs):
    pairs = longest_common_subsequence([entry(each) for each in ours], [entry(each) for each in theirs])
    assert all(ours[mine] == theirs[other] for mine, other in pairs)
    assert pairs == sorted(pairs)
    assert len({mine for mine, _ in pairs}) == len({other for _, other in pairs}) == len(pairs)
    longest = [[0] * (len(theirs) + 1) for _ in range(len(ours) + 1)]
    for mine, value in enumerate(ours):
        for other, same in enumerate(theirs):
            step = longest[mine][other] + 1 if value == same else 0
            longest[mine + 1][other + 1] = max(step, longest[mine][other + 1], longest[mine + 1][other])
    assert len(pairs) == longest[-1][-1]


def test_many_copies_take_no_quadratic_time():
    found = []
    book = ledger(4096, found)
    ours = deque(entry(0, offset=each) for each in range(20_000))
    theirs = deque(entry(1 if each == 0 else 0, offset=each) for each in range(20_000))
    align_by_key(ours, theirs, book, 4096, (True, True))
    assert book.equal_count == 19_999
