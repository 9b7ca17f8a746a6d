"""Selects the messages that match an expression, among many that are stored end to end.

`Selector.select` has three ways: search for candidates where few messages match; look up answers by the last bytes of a
message where the expression reads one property; otherwise test each message, with answers cached by property values.
Callers pass as many messages as fit the processor's first cache: in hundreds, each takes half as long again.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from gateway.broker.filters.sql92.candidates import Candidates
from gateway.broker.filters.sql92.stored_properties import (
    SEPARATOR,
    property_prefix,
    property_reader,
    separated_properties,
)

Test = Callable[[bytes], bool]
"""Tells whether stored properties, with a separator before the first, match."""
Key = bytes | tuple[bytes | None, ...] | None

# Limits of each answer cache: its bytes, and the bytes of the property values of one answer.
_MAX_CACHE_BYTES: Final = 16 * 1024
_MAX_REMEMBERED_BYTES: Final = 256
# Bytes of an answer beside the property values: the entry of the dict with its reserve, the object that holds a value.
_ENTRY_BYTES: Final = 110
_VALUE_BYTES: Final = 40
MAX_SELECTOR_BYTES: Final = 2 * _MAX_CACHE_BYTES
"""Memory of all answers that a selector remembers."""
# Most messages tested without a look at the clock, for an expression of one node.
_MAX_NODES_PER_BATCH: Final = 8192
# When more than every fourth message matches, testing each one is faster than searching for candidates.
_DENSE_FACTOR: Final = 4
# Number of recent messages whose share of matches predicts that of the next ones.
_MAX_COUNTED: Final = 2048


class _AnswerCache(dict[Key, bool]):
    """Answers by property values. ``is_useless`` is set when values rarely repeat, as those of unique keys."""

    __slots__ = ("hits", "is_useless", "size_bytes")

    def __init__(self) -> None:
        super().__init__()
        self.hits = 0
        self.is_useless = False
        self.size_bytes = 0

    def remember(self, key: Key, answer: bool) -> bool:
        """Store and return an answer. When the cache is full, clear it first."""
        added = _entry_bytes(key)
        if added > _ENTRY_BYTES + _MAX_REMEMBERED_BYTES:
            return answer
        if self.size_bytes + added > _MAX_CACHE_BYTES:
            self.is_useless = self.hits < len(self)
            self.clear()
            self.hits = self.size_bytes = 0
        self[key] = answer
        self.size_bytes += added
        return answer


def _entry_bytes(key: Key) -> int:
    values = key if isinstance(key, tuple) else (key,)
    return _ENTRY_BYTES + sum(_VALUE_BYTES + len(value or b"") for value in values)


class Selector:
    """Applies one expression to one message, or to many that lie end to end.

    ``names`` are the properties that ``test`` reads, ``node_count`` the operands and operators that it evaluates.
    ``candidates`` is the search of `candidates.py`, if the expression has one; ``is_fast`` tells whether it has.
    """

    def __init__(
        self, test: Test, names: Sequence[str], candidates: Candidates | None, node_count: int
    ) -> None:
        self.is_fast = candidates is not None
        self.max_batch_messages = max(1, _MAX_NODES_PER_BATCH // node_count)
        self._test = test
        self._candidates = candidates
        self._answers = _AnswerCache()
        self._values = _values_reader(names)
        self._property_prefix = property_prefix(names[0]) if len(names) == 1 else b""
        self._tail_answers = _AnswerCache()
        self._looked_at = self._matched = 0

    def matches(self, message: memoryview) -> bool:
        """Tell whether one stored message matches."""
        return self._test_cached(separated_properties(message))

    def _test_cached(self, properties: bytes) -> bool:
        """Return the test's answer, from the cache when properties had the same values before."""
        answers = self._answers
        if answers.is_useless:
            return self._test(properties)
        key = self._values(properties)
        answer = answers.get(key)
        if answer is None:
            return answers.remember(key, self._test(properties))
        answers.hits += 1
        return answer

    def estimate_scan_count(self, max_matches: int) -> int:
        """Estimate, by the share of recent matches, in how many messages there are ``max_matches`` matches."""
        return 1 + max_matches * (1 + self._looked_at) // (1 + self._matched)

    def select(self, stored: bytes, ends: Sequence[int], max_matches: int) -> list[int]:
        """Return the numbers, from 0, of the first ``max_matches`` messages that match.

        ``ends`` holds the end of each message in ``stored``; each begins where the one before it ends.
        Raises IndexError, ValueError or struct.error when the bytes are not messages.
        """
        if self._candidates is not None and _DENSE_FACTOR * self._matched <= self._looked_at:
            selected = self._select_candidates(self._candidates(stored), stored, ends, max_matches)
        elif self._property_prefix and not self._tail_answers.is_useless:
            selected = self._select_by_tail(stored, ends, max_matches)
        else:
            selected = self._select_each(stored, ends, max_matches)
        self._count_matches(len(ends) if len(selected) < max_matches else selected[-1] + 1, len(selected))
        return selected

    def _count_matches(self, looked_at: int, matched: int) -> None:
        self._looked_at += looked_at
        self._matched += matched
        if self._looked_at > _MAX_COUNTED:
            self._looked_at //= 2
            self._matched //= 2

    def _select_candidates(
        self, positions: Sequence[int], stored: bytes, ends: Sequence[int], max_matches: int
    ) -> list[int]:
        selected: list[int] = []
        end, number = 0, -1
        for position in positions:
            if position >= end:
                number = bisect_right(ends, position, number + 1)
                start, end = ends[number - 1] if number else 0, ends[number]
                if self._test_cached(separated_properties(stored[start:end])):
                    selected.append(number)
                    if len(selected) == max_matches:
                        break
        return selected

    def _select_each(self, stored: bytes, ends: Sequence[int], max_matches: int) -> list[int]:
        selected: list[int] = []
        start = 0
        for number, end in enumerate(ends):
            if self._test_cached(separated_properties(stored[start:end])):
                selected.append(number)
                if len(selected) == max_matches:
                    break
            start = end
        return selected

    def _select_by_tail(self, stored: bytes, ends: Sequence[int], max_matches: int) -> list[int]:
        """Select by an expression of one property, with answers cached by the bytes of a message from that property on.

        A tail is cached only if it cannot contain any of the body, which is checked without looking up the body's end:
        if the properties began inside the tail, the tail would contain the two bytes of their length before them, and
        with it a zero byte.
        """
        sought, tails = self._property_prefix, self._tail_answers
        selected: list[int] = []
        start, uncached_count, width = 0, 0, len(sought)
        rfind, get = stored.rfind, tails.get
        for number, end in enumerate(ends):
            at = rfind(sought, end - _MAX_REMEMBERED_BYTES, end)
            tail = stored[at:end] if at >= start else b""
            answer = get(tail)
            if answer is None:
                uncached_count += 1
                answer = self._test_cached(separated_properties(stored[start:end]))
                if tail[width : width + 1] not in (b"", SEPARATOR) and 0 not in tail:
                    tails.remember(tail, answer)
            if answer:
                selected.append(number)
                if len(selected) == max_matches:
                    break
            start = end
        tails.hits += len(ends) - uncached_count
        return selected


def _values_reader(names: Sequence[str]) -> Callable[[bytes], Key]:
    readers = [property_reader(name) for name in names]
    if len(readers) == 1:
        return readers[0]
    return lambda properties: tuple([read(properties) for read in readers])
