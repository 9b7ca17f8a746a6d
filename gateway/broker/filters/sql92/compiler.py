"""Compilation of an expression into functions over a message's stored properties.

Truth values are True, False and None for unknown. A message matches when the whole expression is True. A comparison
that Java refuses with an exception ends the evaluation, and the message does not match.

Each node becomes one function that has the functions of its operands in its closure, so that nothing looks at the kind
of a node while messages are tested. Frequent forms, such as a property compared with a constant, have functions of
their own that work on the stored bytes.

Bounds. `MAX_TOKENS` and `MAX_DEPTH` bound parsing, `_Inspection` bounds the tree that the parser builds. The functions
call each other at most `MAX_LEVELS` deep, so that evaluation never meets Python's recursion limit. BETWEEN evaluates
its operand twice, so operands are counted as often as they are evaluated, and `MAX_NODES` bounds that number. An
expression that reads many properties splits the properties of a message once instead of searching them each time.

Source: the evaluate methods of rocketmq-filter; ExpressionMessageFilter.isMatchedByCommitLog, 5.4.0.
"""

import sys
from collections.abc import Callable
from operator import ge, gt, le, lt
from typing import Any, Final

from gateway.broker.filters.sql92.candidates import compile_candidates
from gateway.broker.filters.sql92.errors import SqlError, too_deep, too_long
from gateway.broker.filters.sql92.java_values import (
    Incomparable,
    Number,
    Value,
    compare_numbers,
    compare_values,
    negate,
    parse_as_type_of,
    parse_double,
)
from gateway.broker.filters.sql92.lexer import MAX_TOKENS
from gateway.broker.filters.sql92.lookahead import MAX_DEPTH
from gateway.broker.filters.sql92.nodes import (
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
    operands_of,
    terms_of,
)
from gateway.broker.filters.sql92.parser import parse
from gateway.broker.filters.sql92.selector import MAX_SELECTOR_BYTES, Selector
from gateway.broker.filters.sql92.stored_properties import (
    SEPARATOR,
    ReadProperty,
    property_reader,
    split_property_reader,
    split_stored_properties,
)

Evaluate = Callable[[Any], Value]
"""Returns the value of a node for a message's properties, in the form that the compiler's readers take."""
Truth = Callable[[Any], bool | None]

MAX_EXPRESSION_CHARS: Final = 64 * 1024
MAX_LEVELS: Final = 2 * MAX_DEPTH
"""Deepest nesting of the compiled functions. A chain of one logical operator is one level."""
MAX_NODES: Final = 4 * MAX_TOKENS
"""Largest number of operands and operators, counted as often as they are evaluated: BETWEEN evaluates its operand
twice, and nested ones double it each time."""
# An expression that reads more properties than this splits a message's properties once.
_MAX_SEARCHED_PROPERTIES: Final = 16
# Parsing and compiling recurse once per level of parentheses, through about 22 functions.
_RECURSION_LIMIT: Final = 30 * MAX_DEPTH
# int() of any text up to this length has a value of Java's type int.
_SAFE_DIGITS: Final = 9
_REPLACED: Final = "\ufffd"
# Memory of the functions made for one node, for one property name, and of a filter with the smallest expression.
_BYTES_PER_NODE: Final = 330
_BYTES_PER_NAME: Final = 900
_BYTES_PER_FILTER: Final = 6 * 1024


class SqlFilter:
    """A compiled expression. ``text`` is the expression as its subscriber wrote it, ``size_bytes`` the memory that
    the filter may take, with all answers that it may remember.
    """

    __slots__ = ("_evaluate", "_test", "selector", "size_bytes", "text")

    def __init__(self, text: str, node: Node) -> None:
        self.text = text
        inspection = _Inspection(node)
        self._evaluate = _compile_root(node, inspection)
        self._test = _compile_test(self._evaluate)
        self.selector = Selector(
            self._test, sorted(inspection.names), compile_candidates(node), inspection.node_count
        )
        self.size_bytes = MAX_SELECTOR_BYTES + sys.getsizeof(text) + inspection.size_bytes

    def evaluate(self, properties: bytes) -> bool | None:
        """Return the value for encoded properties. Raises Incomparable."""
        value = self._evaluate(SEPARATOR + properties)
        assert value is None or isinstance(value, bool)
        return value

    def matches(self, properties: bytes) -> bool:
        """Tell whether a message with these encoded properties matches."""
        return self._test(SEPARATOR + properties)


def _compile_root(node: Node, inspection: "_Inspection") -> Callable[[bytes], Value]:
    """Return the function that evaluates an expression for properties that have a separator before the first."""
    if inspection.property_count <= _MAX_SEARCHED_PROPERTIES:
        return _Compiler(property_reader).compile_value(node)
    evaluate = _Compiler(split_property_reader).compile_value(node)
    return lambda properties: evaluate(split_stored_properties(properties))


def _compile_test(evaluate: Callable[[bytes], Value]) -> Callable[[bytes], bool]:
    """Return the test that tells whether a message matches.

    It must not refer to its `SqlFilter`, whose selector refers to it: the memory of a filter that is dropped would be
    free only after the next run of the garbage collector.
    """

    def test(properties: bytes) -> bool:
        try:
            return evaluate(properties) is True
        except Incomparable:
            return False

    return test


def compile_sql(text: str) -> SqlFilter:
    """Return the filter of an expression. Raises SqlError.

    Deviation: length, number of words and nesting are limited, because a long expression would block all other clients.
    """
    if len(text) > MAX_EXPRESSION_CHARS:
        raise too_long(f"longer than {MAX_EXPRESSION_CHARS} characters")
    # The limit is the interpreter's, so it is raised only while this function runs; nothing else does on the loop.
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _RECURSION_LIMIT))
    try:
        return SqlFilter(text, parse(text))
    except Incomparable as error:
        raise SqlError(str(error)) from error
    finally:
        sys.setrecursionlimit(before)


class _Inspection:
    """The size of an expression: its nodes, and the properties that it reads.

    Raises SqlError for one that is too deep or too long.
    """

    def __init__(self, node: Node) -> None:
        self.names: set[str] = set()
        self.node_count = self.property_count = self._literal_bytes = 0
        # A list of nodes to visit, not recursion, which would be as deep as the tree that is to be refused.
        waiting: list[tuple[Node, int]] = [(node, 1)]
        while waiting:
            part, level = waiting.pop()
            if level > MAX_LEVELS:
                raise too_deep()
            self._count(part)
            # Checked at each node: nested BETWEENs share an operand that is visited twice at each level, so the walk
            # could take billions of steps.
            if self.node_count > MAX_NODES:
                raise too_long(f"more than {MAX_NODES} operands and operators")
            operands = terms_of(part) if isinstance(part, Logic) else operands_of(part)
            waiting += [(operand, level + 1) for operand in operands]

    @property
    def size_bytes(self) -> int:
        """Memory that the compiled functions take at most; a test compares it with the memory taken."""
        size = _BYTES_PER_FILTER + self.node_count * _BYTES_PER_NODE + self._literal_bytes
        return size + sum(_BYTES_PER_NAME + len(name) for name in self.names)

    def _count(self, node: Node) -> None:
        self.node_count += 1
        match node:
            case Property(name):
                self.names.add(name)
                self.property_count += 1
            case Constant(str(text)) | TextTest(_, _, str(text)):
                self._literal_bytes += 2 * sys.getsizeof(text)
            case In(_, values):
                self._literal_bytes += 2 * sys.getsizeof(frozenset(values)) + sum(map(sys.getsizeof, values))


class _Compiler:
    """Turns nodes into functions. ``reader`` returns the function that reads one property of a message."""

    def __init__(self, reader: Callable[[str], ReadProperty]) -> None:
        self._make_reader = reader
        # One function per property, however often the expression names it.
        self._readers: dict[str, ReadProperty] = {}
        self._text_readers: dict[str, Evaluate] = {}

    def compile_value(self, node: Node) -> Evaluate:
        if isinstance(node, Constant):
            value = node.value
            return lambda _: value
        if isinstance(node, Property):
            return self._text_reader(node.name)
        if isinstance(node, Negate):
            operand = self.compile_value(node.operand)
            return lambda properties: negate(operand(properties))
        return self._compile_truth(node)

    def _reader(self, name: str) -> ReadProperty:
        if name not in self._readers:
            self._readers[name] = self._make_reader(name)
        return self._readers[name]

    def _text_reader(self, name: str) -> Evaluate:
        if name not in self._text_readers:
            self._text_readers[name] = _compile_text_reader(self._reader(name))
        return self._text_readers[name]

    def _compile_truth(self, node: Node) -> Truth:
        if isinstance(node, Logic):
            terms = [self._compile_truth(term) for term in terms_of(node)]
            return _compile_all(terms) if node.sign == "&&" else _compile_any(terms)
        if isinstance(node, Comparison):
            return self._compile_equal(node) if node.sign == "==" else self._compile_ordered(node)
        if isinstance(node, Not):
            return _compile_not(self._compile_truth(node.operand))
        if isinstance(node, In):
            return self._compile_in(node)
        if isinstance(node, TextTest):
            return _compile_text_test(node, self.compile_value(node.operand))
        if isinstance(node, Cast):
            read = self._reader(node.operand.name)
            return lambda properties: None if read(properties) is None else False
        assert isinstance(node, Constant)
        value = node.value
        assert value is None or isinstance(value, bool)
        return lambda _: value

    def _compile_in(self, node: In) -> Truth:
        operand, values = self._text_reader(node.operand.name), frozenset(node.values)
        is_negated = node.negated

        def evaluate(properties: Any) -> bool | None:
            value = operand(properties)
            return None if value is None else (value in values) is not is_negated

        return evaluate

    # -- comparisons ----------------------------------------------------------------------------------------

    def _compile_equal(self, node: Comparison) -> Truth:
        left, right = node.left, node.right
        if isinstance(left, Property) and isinstance(right, Constant):
            read = self._reader(left.name)
            if right.value is None:
                return lambda properties: read(properties) is None
            # Bytes that are not UTF-8 read as U+FFFD, in Java too. A literal with that character may equal such bytes,
            # so it is compared as text, any other literal as bytes.
            if isinstance(right.value, str) and _REPLACED not in right.value:
                return _compile_equal_text(read, right.value)
        return _compile_equal_values(self.compile_value(left), self.compile_value(right))

    def _compile_ordered(self, node: Comparison) -> Truth:
        left, right, holds = node.left, node.right, _SIGNS[node.sign]
        number = _constant_number(right)
        if isinstance(left, Property) and number is not None:
            read = self._reader(left.name)
            if isinstance(number, float):
                return _compile_ordered_double(read, number, holds)
            return _compile_ordered_whole(read, number, holds)
        return _compile_ordered_values(self.compile_value(left), self.compile_value(right), holds)


# -- texts and logic -------------------------------------------------------------------------------------


def _compile_text_reader(read: ReadProperty) -> Evaluate:
    def evaluate(properties: Any) -> str | None:
        value = read(properties)
        return None if value is None else str(value, "utf-8", "replace")

    return evaluate


def _compile_all(terms: list[Truth]) -> Truth:
    if len(terms) == 2:
        return _compile_both(*terms)

    def evaluate(properties: Any) -> bool | None:
        # One False term decides, even beside unknown ones; an unknown term only keeps the result from being True.
        all_known = True
        for term in terms:
            value = term(properties)
            if value is False:
                return False
            all_known = all_known and value is not None
        return True if all_known else None

    return evaluate


def _compile_both(left: Truth, right: Truth) -> Truth:
    def evaluate(properties: Any) -> bool | None:
        first = left(properties)
        if first is False:
            return False
        # The right term is evaluated even if the left one is unknown: False beside unknown is False.
        second = right(properties)
        return second if second is False or first else None

    return evaluate


def _compile_any(terms: list[Truth]) -> Truth:
    def evaluate(properties: Any) -> bool | None:
        all_known = True
        for term in terms:
            value = term(properties)
            if value:
                return True
            all_known = all_known and value is not None
        return False if all_known else None

    return evaluate


def _compile_not(operand: Truth) -> Truth:
    def evaluate(properties: Any) -> bool | None:
        value = operand(properties)
        return None if value is None else not value

    return evaluate


def _compile_text_test(node: TextTest, operand: Evaluate) -> Truth:
    search, expected = node.search, not node.negated
    # In the official filter, too, an empty text matches nothing, negated or not.
    if not search:
        return lambda _: False
    test: Callable[[str], bool] = {
        "CONTAINS": lambda text: search in text,
        "STARTSWITH": lambda text: text.startswith(search),
        "ENDSWITH": lambda text: text.endswith(search),
    }[node.word]

    def evaluate(properties: Any) -> bool | None:
        value = operand(properties)
        return isinstance(value, str) and test(value) is expected

    return evaluate


# -- comparisons ---------------------------------------------------------------------------------------


def _compile_equal_text(read: ReadProperty, text: str) -> Truth:
    # A lone surrogate cannot be encoded; Java, too, replaces it by a question mark.
    encoded = text.encode("utf-8", "replace")

    def evaluate(properties: Any) -> bool | None:
        value = read(properties)
        return None if value is None else value == encoded

    return evaluate


def _compile_equal_values(left: Evaluate, right: Evaluate) -> Truth:
    def evaluate(properties: Any) -> bool | None:
        left_value, right_value = left(properties), right(properties)
        # Two missing values are equal. A missing left one makes the result unknown, a missing right one False.
        if left_value is None:
            return True if right_value is None else None
        if isinstance(left_value, str) and isinstance(right_value, str):
            return left_value == right_value
        return right_value is not None and compare_values(left_value, right_value) == 0

    return evaluate


_SIGNS: Final[dict[str, Callable[[int, int], bool]]] = {"<": lt, "<=": le, ">": gt, ">=": ge}


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


def _compile_ordered_whole(read: ReadProperty, number: int, holds: Callable[[int, int], bool]) -> Truth:
    def evaluate(properties: Any) -> bool | None:
        value = read(properties)
        if value is None:
            return None
        # Nearly every value: int() of few ASCII digits is what Java reads, without its rules and their exceptions.
        if value.isdigit() and len(value) <= _SAFE_DIGITS:
            return holds(int(value), number)
        return holds(compare_numbers(parse_as_type_of(number, str(value, "utf-8", "replace")), number), 0)

    return evaluate


def _compile_ordered_double(read: ReadProperty, number: float, holds: Callable[[int, int], bool]) -> Truth:
    def evaluate(properties: Any) -> bool | None:
        value = read(properties)
        if value is None:
            return None
        return holds(compare_numbers(parse_double(str(value, "utf-8", "replace")), number), 0)

    return evaluate


def _compile_ordered_values(left: Evaluate, right: Evaluate, holds: Callable[[int, int], bool]) -> Truth:
    def evaluate(properties: Any) -> bool | None:
        left_value = left(properties)
        if left_value is None:
            return None
        right_value = right(properties)
        if right_value is None:
            return None
        # Two properties are both text; Java reads each as a double to order them.
        if isinstance(left_value, str) and isinstance(right_value, str):
            return holds(compare_numbers(parse_double(left_value), parse_double(right_value)), 0)
        return holds(compare_values(left_value, right_value), 0)

    return evaluate
