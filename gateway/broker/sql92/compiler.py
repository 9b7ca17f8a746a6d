"""Compilation of an expression into functions over a message's stored properties.

Truth values are True, False and None for unknown. A message matches when the whole expression is True. A comparison
that Java refuses with an exception ends the evaluation, and the message does not match.

Source: the evaluate methods of rocketmq-filter; ExpressionMessageFilter.isMatchedByCommitLog, 5.4.0.
"""

import sys
from collections.abc import Callable
from functools import lru_cache
from operator import ge, gt, le, lt
from typing import Final

from gateway.broker.sql92.candidates import compile_candidates
from gateway.broker.sql92.errors import SqlError, too_deep
from gateway.broker.sql92.java_values import (
    Incomparable,
    Number,
    Value,
    compare_numbers,
    compare_values,
    negate,
    parse_as_type_of,
    parse_double,
)
from gateway.broker.sql92.nodes import (
    Cast,
    Comparison,
    Constant,
    In,
    Logic,
    Negate,
    Node,
    Not,
    Property,
    TextTest,
)
from gateway.broker.sql92.parser import parse
from gateway.broker.sql92.selector import Selector
from gateway.broker.sql92.stored_properties import SEPARATOR, property_reader

Evaluate = Callable[[bytes], Value]
"""Returns the value of a node for stored properties with a separator before the first."""
Truth = Callable[[bytes], bool | None]

MAX_EXPRESSION_CHARS: Final = 64 * 1024
_RECURSION_LIMIT: Final = 20_000
# int() of any text up to this length has a value of Java's type int.
_SAFE_DIGITS: Final = 9
_REPLACED: Final = "\ufffd"


class SqlFilter:
    """A compiled expression. ``text`` is the expression as its subscriber wrote it."""

    __slots__ = ("_evaluate", "selector", "text")

    def __init__(self, text: str, node: Node) -> None:
        self.text = text
        self._evaluate = _compile_value(node)
        self.selector = Selector(self._matches, _property_names(node), compile_candidates(node))

    def evaluate(self, properties: bytes) -> bool | None:
        """Return the value for encoded properties. Raises Incomparable."""
        value = self._evaluate(SEPARATOR + properties)
        assert value is None or isinstance(value, bool)
        return value

    def matches(self, properties: bytes) -> bool:
        """Tell whether a message with these encoded properties matches."""
        return self._matches(SEPARATOR + properties)

    def _matches(self, properties: bytes) -> bool:
        try:
            return self._evaluate(properties) is True
        except (Incomparable, RecursionError):
            return False


@lru_cache(maxsize=1024)
def _compile_cached(text: str) -> SqlFilter | str:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _RECURSION_LIMIT))
    try:
        return SqlFilter(text, parse(text))
    except (SqlError, Incomparable) as error:
        return str(error)
    except RecursionError:
        return str(too_deep())
    finally:
        sys.setrecursionlimit(before)


def compile_sql(text: str) -> SqlFilter:
    """Return the filter of an expression. Raises SqlError.

    Deviation: the length is limited, because parsing a long expression would block all other clients.
    """
    if len(text) > MAX_EXPRESSION_CHARS:
        raise SqlError("java.lang.IllegalArgumentException", f"longer than {MAX_EXPRESSION_CHARS} characters")
    found = _compile_cached(text)
    if isinstance(found, str):
        raise SqlError(found)
    return found


def _property_names(node: Node) -> tuple[str, ...]:
    """Return the names of the properties that an expression reads."""
    names: set[str] = set()
    waiting: list[Node] = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Property):
            names.add(part.name)
        elif isinstance(part, Comparison | Logic):
            waiting += (part.left, part.right)
        elif not isinstance(part, Constant):
            waiting.append(part.operand)
    return tuple(sorted(names))


# -- nodes ---------------------------------------------------------------------------------------------


def _compile_value(node: Node) -> Evaluate:
    if isinstance(node, Constant):
        value = node.value
        return lambda _: value
    if isinstance(node, Property):
        return _compile_property(node)
    if isinstance(node, Negate):
        operand = _compile_value(node.operand)
        return lambda properties: negate(operand(properties))
    return _compile_truth(node)


def _compile_property(node: Property) -> Evaluate:
    read = property_reader(node.name)

    def evaluate(properties: bytes) -> str | None:
        found = read(properties)
        return None if found is None else str(found, "utf-8", "replace")

    return evaluate


def _compile_truth(node: Node) -> Truth:
    if isinstance(node, Logic):
        terms = [_compile_truth(term) for term in _flatten_terms(node)]
        return _compile_all(terms) if node.sign == "&&" else _compile_any(terms)
    if isinstance(node, Comparison):
        return _compile_equal(node) if node.sign == "==" else _compile_ordered(node)
    if isinstance(node, Not):
        return _compile_not(_compile_truth(node.operand))
    if isinstance(node, In):
        return _compile_in(node)
    if isinstance(node, TextTest):
        return _compile_text_test(node)
    if isinstance(node, Cast):
        read = property_reader(node.operand.name)
        return lambda properties: None if read(properties) is None else False
    assert isinstance(node, Constant)
    value = node.value
    assert value is None or isinstance(value, bool)
    return lambda _: value


def _flatten_terms(node: Logic) -> list[Node]:
    """Return the terms of a chain of one operator, in order."""
    terms: list[Node] = []
    waiting: list[Node] = [node]
    while waiting:
        term = waiting.pop()
        if isinstance(term, Logic) and term.sign == node.sign:
            waiting += (term.right, term.left)
        else:
            terms.append(term)
    return terms


def _compile_all(terms: list[Truth]) -> Truth:
    if len(terms) == 2:
        return _compile_both(*terms)

    def evaluate(properties: bytes) -> bool | None:
        known = True
        for term in terms:
            value = term(properties)
            if value is False:
                return False
            known = known and value is not None
        return True if known else None

    return evaluate


def _compile_both(left: Truth, right: Truth) -> Truth:
    def evaluate(properties: bytes) -> bool | None:
        first = left(properties)
        if first is False:
            return False
        second = right(properties)
        return second if second is False or first else None

    return evaluate


def _compile_any(terms: list[Truth]) -> Truth:
    def evaluate(properties: bytes) -> bool | None:
        known = True
        for term in terms:
            value = term(properties)
            if value:
                return True
            known = known and value is not None
        return False if known else None

    return evaluate


def _compile_not(operand: Truth) -> Truth:
    def evaluate(properties: bytes) -> bool | None:
        value = operand(properties)
        return None if value is None else not value

    return evaluate


def _compile_in(node: In) -> Truth:
    operand, values, is_negated = _compile_property(node.operand), frozenset(node.values), node.negated

    def evaluate(properties: bytes) -> bool | None:
        value = operand(properties)
        return None if value is None else (value in values) is not is_negated

    return evaluate


def _compile_text_test(node: TextTest) -> Truth:
    operand, search, wanted = _compile_value(node.operand), node.search, not node.negated
    if not search:
        return lambda _: False
    test: Callable[[str], bool] = {
        "CONTAINS": lambda text: search in text,
        "STARTSWITH": lambda text: text.startswith(search),
        "ENDSWITH": lambda text: text.endswith(search),
    }[node.word]

    def evaluate(properties: bytes) -> bool | None:
        value = operand(properties)
        return isinstance(value, str) and test(value) is wanted

    return evaluate


# -- comparisons ---------------------------------------------------------------------------------------


def _compile_equal(node: Comparison) -> Truth:
    left, right = node.left, node.right
    if isinstance(left, Property) and isinstance(right, Constant):
        if right.value is None:
            read = property_reader(left.name)
            return lambda properties: read(properties) is None
        if isinstance(right.value, str) and _REPLACED not in right.value:
            return _compile_equal_text(left, right.value)
    return _compile_equal_values(_compile_value(left), _compile_value(right))


def _compile_equal_text(left: Property, text: str) -> Truth:
    read, encoded = property_reader(left.name), text.encode("utf-8", "replace")

    def evaluate(properties: bytes) -> bool | None:
        value = read(properties)
        return None if value is None else value == encoded

    return evaluate


def _compile_equal_values(left: Evaluate, right: Evaluate) -> Truth:
    def evaluate(properties: bytes) -> bool | None:
        one, other = left(properties), right(properties)
        if one is None:
            return True if other is None else None
        return other is not None and compare_values(one, other) == 0

    return evaluate


_SIGNS: Final[dict[str, Callable[[int, int], bool]]] = {"<": lt, "<=": le, ">": gt, ">=": ge}


def _compile_ordered(node: Comparison) -> Truth:
    left, right, holds = node.left, node.right, _SIGNS[node.sign]
    number = _constant_number(right)
    if isinstance(left, Property) and number is not None:
        if isinstance(number, float):
            return _compile_ordered_double(left, number, holds)
        return _compile_ordered_whole(left, number, holds)
    return _compile_ordered_values(_compile_value(left), _compile_value(right), holds)


def _constant_number(node: Node) -> Number | None:
    if isinstance(node, Negate):
        return negate(_constant_number(node.operand))
    if (
        isinstance(node, Constant)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
    ):
        return node.value
    return None


def _compile_ordered_whole(left: Property, number: int, holds: Callable[[int, int], bool]) -> Truth:
    read = property_reader(left.name)

    def evaluate(properties: bytes) -> bool | None:
        value = read(properties)
        if value is None:
            return None
        if value.isdigit() and len(value) <= _SAFE_DIGITS:
            return holds(int(value), number)
        return holds(compare_numbers(parse_as_type_of(number, str(value, "utf-8", "replace")), number), 0)

    return evaluate


def _compile_ordered_double(left: Property, number: float, holds: Callable[[int, int], bool]) -> Truth:
    read = property_reader(left.name)

    def evaluate(properties: bytes) -> bool | None:
        value = read(properties)
        if value is None:
            return None
        return holds(compare_numbers(parse_double(str(value, "utf-8", "replace")), number), 0)

    return evaluate


def _compile_ordered_values(left: Evaluate, right: Evaluate, holds: Callable[[int, int], bool]) -> Truth:
    def evaluate(properties: bytes) -> bool | None:
        one = left(properties)
        if one is None:
            return None
        other = right(properties)
        if other is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            return holds(compare_numbers(parse_double(one), parse_double(other)), 0)
        return holds(compare_values(one, other), 0)

    return evaluate
