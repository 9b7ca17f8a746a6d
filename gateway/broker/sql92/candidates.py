"""Where in many stored messages one may match an expression, found by a search of their bytes.

Not responsible for the answer: an expression's own test looks at each message that is found here. What this leaves
out cannot match, since some text that every match has is not in it.
"""

import re
from collections.abc import Callable
from operator import ge, gt, le, lt
from typing import Final

from gateway.broker.sql92.nodes import Comparison, Constant, In, Logic, Node, Property, TextTest

Candidates = Callable[[bytes], list[int]]

_REPLACED: Final = "\ufffd"
# Each of them is one more search of all bytes.
_MOST_SEARCHES: Final = 4
_SIGNS: Final[dict[str, Callable[[int, int], bool]]] = {"<": lt, "<=": le, ">": gt, ">=": ge}


def candidates_of(node: Node) -> Candidates | None:
    """Finds ascending positions, at least one in each message that matches; None when only a test can tell."""
    searches = _searches(node)
    if searches is None:
        return None
    if len(searches) == 1:
        return searches[0]
    return lambda stored: sorted(position for search in searches for position in search(stored))


def _searches(node: Node) -> list[Candidates] | None:
    if isinstance(node, Logic):
        sides = [_searches(node.left), _searches(node.right)]
        return _fewest(sides) if node.sign == "&&" else _together(sides)
    if isinstance(node, Comparison):
        return _of_comparison(node)
    if isinstance(node, In) and not node.negated:
        return _together([_of_text(node.operand.name, value) for value in node.values])
    if isinstance(node, TextTest) and node.word == "STARTSWITH" and isinstance(node.operand, Property):
        return None if node.negated else _of_text(node.operand.name, node.search)
    return None


def _fewest(sides: list[list[Candidates] | None]) -> list[Candidates] | None:
    """Of what has to hold together, the part that takes least to look for."""
    return min((side for side in sides if side is not None), key=len, default=None)


def _together(sides: list[list[Candidates] | None]) -> list[Candidates] | None:
    searches: list[Candidates] = []
    for side in sides:
        if side is None or len(searches) + len(side) > _MOST_SEARCHES:
            return None
        searches += side
    return searches or None


def _of_comparison(node: Comparison) -> list[Candidates] | None:
    left, right = node.left, node.right
    if not (isinstance(left, Property) and isinstance(right, Constant)):
        return None
    if node.sign == "==":
        return _of_text(left.name, right.value) if isinstance(right.value, str) else None
    if isinstance(right.value, int) and not isinstance(right.value, bool):
        return [_search_number(left.name, _SIGNS[node.sign], right.value)]
    return None


def _of_text(name: str, value: str) -> list[Candidates] | None:
    """A property that has, or begins with, a text."""
    return [_search(f"{name}\x01{value}".encode())] if value and value.isascii() else None


def _search(wanted: bytes) -> Candidates:
    def find(stored: bytes) -> list[int]:
        positions = []
        position = stored.find(wanted)
        while position >= 0:
            positions.append(position)
            position = stored.find(wanted, position + 1)
        return positions

    return find


def _search_number(name: str, holds: Callable[[int, int], bool], number: int) -> Candidates:
    """A property with a number for which a comparison holds, or with anything that is no plain number."""
    pattern = re.compile(re.escape(f"{name}\x01".encode()) + rb"(?:([0-9]{1,9})(?=\x02))?")

    def find(stored: bytes) -> list[int]:
        return [
            found.start()
            for found in pattern.finditer(stored)
            if (digits := found[1]) is None or holds(int(digits), number)
        ]

    return find
