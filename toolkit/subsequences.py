"""Longest ascending and longest common subsequences: which elements of two orders agree, and which have moved.

Both are one algorithm (Hunt and Szymanski): each element of the first sequence has candidate places in the second, and
the longest chain of elements whose places ascend is searched with binary search. It takes O(n log n) time for n
candidates in all, so it is fast where few elements repeat, and about 24 bytes per candidate.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence


def longest_chain_from_end(candidates: Iterable[Iterable[int]]) -> Iterator[tuple[int, int]]:
    """Yield the longest chain of (index, place) with ascending indices and places, from its end to its start.

    `candidates` holds for each index the places it may be matched with, in descending order. Of several longest chains
    the one with the smallest places, seen from its end, is found.
    """
    ends: list[int] = []  # the smallest place that ends a chain of each length
    last: list[int] = []  # the link at that place
    indices: list[int] = []
    places: list[int] = []
    before: list[int] = []
    for index, candidate_places in enumerate(candidates):
        for place in candidate_places:
            length = bisect_left(ends, place)
            indices.append(index)
            places.append(place)
            before.append(last[length - 1] if length else -1)
            if length == len(ends):
                ends.append(place)
                last.append(len(indices) - 1)
            else:
                ends[length], last[length] = place, len(indices) - 1
    link = last[-1] if last else -1
    while link >= 0:
        yield indices[link], places[link]
        link = before[link]


def find_moved(places: Sequence[int]) -> list[bool]:
    """Tell for each element whether it has to move to sort the sequence with the fewest moves.

    `places` are distinct, and ascend where nothing is wrong. All elements but those of a longest ascending subsequence
    have to move; of two swapped neighbours the one that comes too late is named.
    """
    moved = [True] * len(places)
    for index, _ in longest_chain_from_end((place,) for place in places):
        moved[index] = False
    return moved
