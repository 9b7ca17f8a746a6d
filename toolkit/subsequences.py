"""Longest ascending and longest common subsequences: which elements of two orders agree, and which have moved.

Both are one algorithm (Hunt and Szymanski): each element of the first sequence has candidate positions in the second,
and binary search finds the longest chain of elements whose positions ascend. For n candidates it takes O(n log n) time
and about 24 bytes each, so it is fast where few elements repeat.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence


def longest_chain_from_end(candidates: Iterable[Iterable[int]]) -> Iterator[tuple[int, int]]:
    """Yield the longest chain of (index, position) with ascending indices and positions, from its end to its start.

    `candidates` holds for each index the positions it may be matched with, in descending order. Among several longest
    chains, the one with the smallest positions, compared from the end, is yielded.
    """
    ends: list[int] = []  # the smallest position that ends a chain of each length
    last: list[int] = []  # the link at that position
    indices: list[int] = []
    positions: list[int] = []
    before: list[int] = []
    for index, candidate_positions in enumerate(candidates):
        for position in candidate_positions:
            length = bisect_left(ends, position)
            indices.append(index)
            positions.append(position)
            before.append(last[length - 1] if length else -1)
            if length == len(ends):
                ends.append(position)
                last.append(len(indices) - 1)
            else:
                ends[length], last[length] = position, len(indices) - 1
    link = last[-1] if last else -1
    while link >= 0:
        yield indices[link], positions[link]
        link = before[link]


def find_moved(positions: Sequence[int]) -> list[bool]:
    """Tell for each element whether it has to move to sort the sequence with the fewest moves.

    `positions` are distinct, and ascend where nothing has moved. All elements except those of a longest ascending
    subsequence have to move; of two swapped neighbours, the one that comes too late is marked.
    """
    moved = [True] * len(positions)
    for index, _ in longest_chain_from_end((position,) for position in positions):
        moved[index] = False
    return moved
