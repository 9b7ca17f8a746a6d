"""The fewest messages that have to move."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from toolkit.subsequences import find_moved


def fewest(places: list[int]) -> int:
    """Find the number of moves by brute force."""
    for count in range(len(places) + 1):
        for out in combinations(range(len(places)), count):
            rest = [place for index, place in enumerate(places) if index not in out]
            if rest == sorted(rest):
                return count
    raise AssertionError


@given(st.integers(0, 7).flatmap(lambda size: st.permutations(range(size))))
def test_what_stays_is_in_order_and_no_more_is_moved_than_has_to(places: list[int]) -> None:
    wrong = find_moved(places)
    rest = [place for place, out in zip(places, wrong, strict=True) if not out]
    assert rest == sorted(rest)
    assert sum(wrong) == fewest(list(places))


def test_one_that_came_late_is_named_however_far_it_went() -> None:
    # at the primary in the order of the list; the numbers are places at the target
    assert find_moved([1, 6, 2, 3, 4, 5]) == [False, True, False, False, False, False]
    assert find_moved([1, 3, 2, 4]) == [False, True, False, False]


def test_one_that_came_early_is_named() -> None:
    assert find_moved([2, 3, 4, 1]) == [False, False, False, True]


def test_nothing_is_in_order() -> None:
    assert find_moved([]) == []
