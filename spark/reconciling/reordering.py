"""Which messages of a sequence are out of order: the fewest that have to be moved to put it right.

Not responsible for which messages belong to one sequence.
"""

from bisect import bisect_left
from collections.abc import Sequence


def find_moved(places: Sequence[int]) -> list[bool]:
    """For each element whether it has to move. `places` are different numbers, ascending where nothing is wrong.

    As few as possible are named: all but a longest ascending subsequence. Among several of these the one is kept
    whose elements are smallest, from its end backwards; of two neighbours that changed places the one is named that
    comes too late. O(n log n), 24 bytes per element.
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
