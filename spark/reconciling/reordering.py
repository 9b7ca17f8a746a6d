"""Find the fewest elements of a sequence that have to be moved to sort it."""

from bisect import bisect_left
from collections.abc import Sequence


def find_moved(places: Sequence[int]) -> list[bool]:
    """Tell for each element whether it has to move. `places` are distinct, and ascend where nothing is wrong.

    All elements but those of a longest ascending subsequence have to move. Of several such subsequences the one with
    the smallest elements, seen from its end, is kept: of two swapped neighbours the one that comes too late is named.
    O(n log n), 24 bytes per element.
    """
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for index, place in enumerate(places):
        length = bisect_left(ends, place)
        before.append(last[length - 1] if length else -1)
        if length == len(ends):
            ends.append(place)
            last.append(index)
        else:
            ends[length], last[length] = place, index
    wrong = [True] * len(places)
    at = last[-1] if last else -1
    while at >= 0:
        wrong[at] = False
        at = before[at]
    return wrong
