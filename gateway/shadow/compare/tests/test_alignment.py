from collections import Counter, deque

from hypothesis import given
from hypothesis import strategies as st

from gateway.shadow.compare.alignment import (
    MAX_MESSAGES_PER_TURN,
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
    align_in_turns(ours, theirs, book, 4096)
    assert book.equal_count == 19_999


def align_in_turns(ours, theirs, book, window):
    """Align until no call takes a message any more; return how many messages the largest call took."""
    largest = taken = -1
    while taken:
        before = len(ours) + len(theirs)
        align_by_key(ours, theirs, book, window, (True, True))
        taken = before - len(ours) - len(theirs)
        largest = max(largest, taken)
    return largest


def test_queues_with_nothing_in_common_take_few_steps():
    """One message at a time, each after a search of the whole window, took four minutes."""
    found, calls = [], 0
    book = ledger(1024, found)
    ours = deque(entry(number, offset=number) for number in range(1024))
    theirs = deque(entry(number + 5000, offset=number) for number in range(1024))
    while ours and theirs and calls < 1000:
        align_by_key(ours, theirs, book, 1024, (True, True))
        calls += 1
    assert calls <= 2 * 32 + 2
    book.finish()
    assert Counter(each.kind for each in found)[FindingKind.MISSING] >= 1000


def test_equal_queues_are_taken_in_turns():
    book = ledger(4096, [])
    ours, theirs = (deque(entry(number, offset=number) for number in range(4096)) for _ in range(2))
    assert align_in_turns(ours, theirs, book, 4096) == 2 * MAX_MESSAGES_PER_TURN
    assert book.equal_count == 4096


def test_moved_messages_of_one_key_take_no_quadratic_time():
    class CountingOffset(int):
        compared = 0

        def __lt__(self, other):
            CountingOffset.compared += 1
            return int(self) < int(other)

    found = []
    book = ledger(4096, found)
    for number in range(4096):
        book.record_missing(entry(number, offset=CountingOffset(number))._replace(sharding_key=b"k"))
    for number in reversed(range(4096)):
        moved = entry(number, offset=CountingOffset(4096 - number))._replace(sharding_key=b"k")
        book.record_extra(moved)
    assert len(found) == 4096
    assert CountingOffset.compared < 4096 * 300
