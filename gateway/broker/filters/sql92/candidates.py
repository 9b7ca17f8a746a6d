"""Byte searches that find, among many stored messages, those that may match an expression.

The expression's own test then looks at each message found. A message that is not found cannot match, because some
text that every match contains is not in it.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from gateway.broker.filters.sql92.nodes import (
    Comparison,
    Constant,
    In,
    Logic,
    Node,
    Property,
    TextTest,
    terms_of,
)

Candidates = Callable[[bytes], list[int]]

# Each search scans all bytes once more.
_MAX_SEARCHES: Final = 4


class _TextSearch(NamedTuple):
    """A property that equals, or begins with, a text."""

    name: str
    value: str


class _NumberSearch(NamedTuple):
    """A property for which a comparison with a number may hold."""

    name: str
    sign: str
    number: int


_Search = _TextSearch | _NumberSearch


def compile_candidates(node: Node) -> Candidates | None:
    """Return a search for ascending positions, at least one in each message that matches;

    None when only a test can tell.
    """
    searches = _searches_of_node(node)
    if searches is None:
        return None
    # Only the chosen searches are compiled: a pattern takes as long as a hundred other nodes.
    compiled = [_compile_search(search) for search in searches]
    if len(compiled) == 1:
        return compiled[0]
    return lambda stored: sorted(position for find in compiled for position in find(stored))


def _compile_search(search: _Search) -> Candidates:
    if isinstance(search, _TextSearch):
        return _search_bytes(f"{search.name}\x01{search.value}".encode())
    return _search_number(search.name, search.sign, search.number)


def _searches_of_node(node: Node) -> list[_Search] | None:
    if isinstance(node, Logic):
        sides = map(_searches_of_node, terms_of(node))
        return _fewest_searches(sides) if node.sign == "&&" else _all_searches(sides)
    if isinstance(node, Comparison):
        return _searches_of_comparison(node)
    if isinstance(node, In) and not node.negated:
        return _all_searches(_searches_of_text(node.operand.name, value) for value in node.values)
    if isinstance(node, TextTest) and node.word == "STARTSWITH" and isinstance(node.operand, Property):
        return None if node.negated else _searches_of_text(node.operand.name, node.search)
    return None


def _fewest_searches(sides: Iterable[list[_Search] | None]) -> list[_Search] | None:
    """Return the searches of the one term that needs fewest; since all terms must hold, one suffices."""
    return min((side for side in sides if side is not None), key=len, default=None)


def _all_searches(sides: Iterable[list[_Search] | None]) -> list[_Search] | None:
    searches: list[_Search] = []
    for side in sides:
        if side is None or len(searches) + len(side) > _MAX_SEARCHES:
            return None
        searches += side
    return searches or None


def _searches_of_comparison(node: Comparison) -> list[_Search] | None:
    left, right = node.left, node.right
    if not (isinstance(left, Property) and isinstance(right, Constant)):
        return None
    if node.sign == "==":
        return _searches_of_text(left.name, right.value) if isinstance(right.value, str) else None
    if isinstance(right.value, int) and not isinstance(right.value, bool):
        return [_NumberSearch(left.name, node.sign, right.value)]
    return None


def _searches_of_text(name: str, value: str) -> list[_Search] | None:
    return [_TextSearch(name, value)] if value and value.isascii() else None


def _search_bytes(needle: bytes) -> Candidates:
    def find(stored: bytes) -> list[int]:
        positions = []
        position = stored.find(needle)
        while position >= 0:
            positions.append(position)
            position = stored.find(needle, position + 1)
        return positions

    return find


def _search_number(name: str, sign: str, number: int) -> Candidates:
    """Search for a property for which a comparison may hold, or whose value is not a plain number."""
    pattern = re.compile(
        re.escape(f"{name}\x01".encode()) + _except_numbers(_plain_numbers_failing(sign, number))
    )

    def find(stored: bytes) -> list[int]:
        return [match.start() for match in pattern.finditer(stored)]

    return find


def _except_numbers(numbers: str | None) -> bytes:
    """Return a pattern for all values except these numbers of at most nine digits. Leading zeros are ignored."""
    return b"" if numbers is None else rf"(?!(?=[0-9]{{1,9}}\x02)0*(?:{numbers})\x02)".encode()


def _plain_numbers_failing(sign: str, number: int) -> str | None:
    """Return a pattern for all numbers from 0 for which a comparison does not hold; None when there are none."""
    if sign in (">", ">="):
        return _at_most_pattern(number if sign == ">" else number - 1)
    return _at_least_pattern(number if sign == "<" else number + 1)


def _at_most_pattern(number: int) -> str | None:
    if number < 0:
        return None
    digits = str(number)
    shorter = f"[0-9]{{0,{len(digits) - 1}}}"
    return "|".join([shorter, digits, *_same_length_patterns(digits, lambda digit: (0, digit - 1))])


def _at_least_pattern(number: int) -> str | None:
    if number <= 0:
        return "[0-9]*"
    digits = str(number)
    longer = f"[1-9][0-9]{{{len(digits)},}}"
    return "|".join([longer, digits, *_same_length_patterns(digits, lambda digit: (digit + 1, 9))])


def _same_length_patterns(digits: str, digit_range: Callable[[int], tuple[int, int]]) -> list[str]:
    """Return patterns for numbers that share the first digits and then have another digit of a range."""
    patterns = []
    for index, digit in enumerate(digits):
        first, last = digit_range(ord(digit) - ord("0"))
        if first <= last:
            patterns.append(f"{digits[:index]}[{first}-{last}][0-9]{{{len(digits) - index - 1}}}")
    return patterns
