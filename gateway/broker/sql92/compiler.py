"""From an expression to functions over a message's stored properties. Not responsible for its syntax.

Truth values are True, False and None for unknown; a message matches when the whole is True. A comparison that
Java refuses with an exception ends the evaluation: the message does not match.

Source: the evaluate methods of rocketmq-filter; ExpressionMessageFilter.isMatchedByCommitLog, 5.4.0.
"""

import sys
from collections.abc import Callable
from functools import lru_cache
from operator import ge, gt, le, lt
from typing import Final

from gateway.broker.sql92.candidates import candidates_of
from gateway.broker.sql92.errors import SqlError, too_deep
from gateway.broker.sql92.java_values import (
    Incomparable,
    Number,
    Value,
    compare,
    double,
    like,
    negated,
    order,
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
from gateway.broker.sql92.stored_properties import SEPARATOR, reader

Evaluate = Callable[[bytes], Value]
"""The value of a part for properties as stored, with a separator before the first."""
Truth = Callable[[bytes], bool | None]

MAX_CHARACTERS: Final = 64 * 1024
_RECURSION_LIMIT: Final = 20_000
# Of any text that is not longer, int() has a value of Java's type int.
_SAFE_DIGITS: Final = 9
_REPLACED: Final = "\ufffd"


class SqlFilter:
    """A compiled expression; `text` is how its subscriber wrote it."""

    __slots__ = ("_evaluate", "selector", "text")

    def __init__(self, text: str, node: Node) -> None:
        self.text = text
        self._evaluate = _evaluate(node)
        self.selector = Selector(self._matches, _names(node), candidates_of(node))

    def evaluate(self, properties: bytes) -> bool | None:
        """The value for encoded properties. Raises Incomparable."""
        value = self._evaluate(SEPARATOR + properties)
        assert value is None or isinstance(value, bool)
        return value

    def matches(self, properties: bytes) -> bool:
        """Whether a message with these encoded properties is wanted."""
        return self._matches(SEPARATOR + properties)

    def _matches(self, properties: bytes) -> bool:
        try:
            return self._evaluate(properties) is True
        except (Incomparable, RecursionError):
            return False


@lru_cache(maxsize=1024)
def _compiled(text: str) -> SqlFilter | str:
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
    """The filter an expression stands for. Raises SqlError.

    Deviation: the length is limited, since whoever subscribes would make all others wait for its reading.
    """
    if len(text) > MAX_CHARACTERS:
        raise SqlError("java.lang.IllegalArgumentException", f"longer than {MAX_CHARACTERS} characters")
    found = _compiled(text)
    if isinstance(found, str):
        raise SqlError(found)
    return found


def _names(node: Node) -> tuple[str, ...]:
    """The properties an expression looks at."""
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


# -- parts ---------------------------------------------------------------------------------------------


def _evaluate(node: Node) -> Evaluate:
    if isinstance(node, Constant):
        value = node.value
        return lambda _: value
    if isinstance(node, Property):
        return _property(node)
    if isinstance(node, Negate):
        operand = _evaluate(node.operand)
        return lambda properties: negated(operand(properties))
    return _truth(node)


def _property(node: Property) -> Evaluate:
    read = reader(node.name)

    def evaluate(properties: bytes) -> str | None:
        found = read(properties)
        return None if found is None else str(found, "utf-8", "replace")

    return evaluate


def _truth(node: Node) -> Truth:
    if isinstance(node, Logic):
        terms = [_truth(term) for term in _terms(node)]
        return _all_of(terms) if node.sign == "&&" else _any_of(terms)
    if isinstance(node, Comparison):
        return _equal(node) if node.sign == "==" else _ordered(node)
    if isinstance(node, Not):
        return _not(_truth(node.operand))
    if isinstance(node, In):
        return _in(node)
    if isinstance(node, TextTest):
        return _text_test(node)
    if isinstance(node, Cast):
        read = reader(node.operand.name)
        return lambda properties: None if read(properties) is None else False
    assert isinstance(node, Constant)
    value = node.value
    assert value is None or isinstance(value, bool)
    return lambda _: value


def _terms(node: Logic) -> list[Node]:
    """What a chain of one operator joins, in order."""
    terms: list[Node] = []
    waiting: list[Node] = [node]
    while waiting:
        term = waiting.pop()
        if isinstance(term, Logic) and term.sign == node.sign:
            waiting += (term.right, term.left)
        else:
            terms.append(term)
    return terms


def _all_of(terms: list[Truth]) -> Truth:
    if len(terms) == 2:
        return _both(*terms)

    def evaluate(properties: bytes) -> bool | None:
        known = True
        for term in terms:
            value = term(properties)
            if value is False:
                return False
            known = known and value is not None
        return True if known else None

    return evaluate


def _both(left: Truth, right: Truth) -> Truth:
    def evaluate(properties: bytes) -> bool | None:
        first = left(properties)
        if first is False:
            return False
        second = right(properties)
        return second if second is False or first else None

    return evaluate


def _any_of(terms: list[Truth]) -> Truth:
    def evaluate(properties: bytes) -> bool | None:
        known = True
        for term in terms:
            value = term(properties)
            if value:
                return True
            known = known and value is not None
        return False if known else None

    return evaluate


def _not(operand: Truth) -> Truth:
    def evaluate(properties: bytes) -> bool | None:
        value = operand(properties)
        return None if value is None else not value

    return evaluate


def _in(node: In) -> Truth:
    operand, values, is_negated = _property(node.operand), frozenset(node.values), node.negated

    def evaluate(properties: bytes) -> bool | None:
        value = operand(properties)
        return None if value is None else (value in values) is not is_negated

    return evaluate


def _text_test(node: TextTest) -> Truth:
    operand, search, wanted = _evaluate(node.operand), node.search, not node.negated
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


def _equal(node: Comparison) -> Truth:
    left, right = node.left, node.right
    if isinstance(left, Property) and isinstance(right, Constant):
        if right.value is None:
            read = reader(left.name)
            return lambda properties: read(properties) is None
        if isinstance(right.value, str) and _REPLACED not in right.value:
            return _is_text(left, right.value)
    return _equal_values(_evaluate(left), _evaluate(right))


def _is_text(left: Property, text: str) -> Truth:
    read, encoded = reader(left.name), text.encode("utf-8", "replace")

    def evaluate(properties: bytes) -> bool | None:
        value = read(properties)
        return None if value is None else value == encoded

    return evaluate


def _equal_values(left: Evaluate, right: Evaluate) -> Truth:
    def evaluate(properties: bytes) -> bool | None:
        one, other = left(properties), right(properties)
        if one is None:
            return True if other is None else None
        return other is not None and compare(one, other) == 0

    return evaluate


_SIGNS: Final[dict[str, Callable[[int, int], bool]]] = {"<": lt, "<=": le, ">": gt, ">=": ge}


def _ordered(node: Comparison) -> Truth:
    left, right, holds = node.left, node.right, _SIGNS[node.sign]
    number = _constant_number(right)
    if isinstance(left, Property) and number is not None:
        if isinstance(number, float):
            return _ordered_double(left, number, holds)
        return _ordered_whole(left, number, holds)
    return _ordered_values(_evaluate(left), _evaluate(right), holds)


def _constant_number(node: Node) -> Number | None:
    if isinstance(node, Negate):
        return negated(_constant_number(node.operand))
    if (
        isinstance(node, Constant)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
    ):
        return node.value
    return None


def _ordered_whole(left: Property, number: int, holds: Callable[[int, int], bool]) -> Truth:
    read = reader(left.name)

    def evaluate(properties: bytes) -> bool | None:
        value = read(properties)
        if value is None:
            return None
        if value.isdigit() and len(value) <= _SAFE_DIGITS:
            return holds(int(value), number)
        return holds(order(like(number, str(value, "utf-8", "replace")), number), 0)

    return evaluate


def _ordered_double(left: Property, number: float, holds: Callable[[int, int], bool]) -> Truth:
    read = reader(left.name)

    def evaluate(properties: bytes) -> bool | None:
        value = read(properties)
        if value is None:
            return None
        return holds(order(double(str(value, "utf-8", "replace")), number), 0)

    return evaluate


def _ordered_values(left: Evaluate, right: Evaluate, holds: Callable[[int, int], bool]) -> Truth:
    def evaluate(properties: bytes) -> bool | None:
        one = left(properties)
        if one is None:
            return None
        other = right(properties)
        if other is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            return holds(order(double(one), double(other)), 0)
        return holds(compare(one, other), 0)

    return evaluate
