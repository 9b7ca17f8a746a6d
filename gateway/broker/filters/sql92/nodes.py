"""The nodes of a parsed expression, and functions that build them and refuse wrong operands.

Source: the factory methods of ComparisonExpression and UnaryExpression, 5.4.0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.broker.filters.sql92.errors import MAX_REMARK_CHARS, illegal_operands, syntax_error
from gateway.broker.filters.sql92.java_values import Value, compare_values, java_text


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal."""

    value: Value


@dataclass(frozen=True, slots=True)
class Property:
    """A message property by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Negate:
    """A number with its sign changed; unknown for anything else."""

    operand: "Node"


@dataclass(frozen=True, slots=True)
class Not:
    """Logical negation; unknown stays unknown."""

    operand: "Node"


@dataclass(frozen=True, slots=True)
class Cast:
    """A property where a truth value is required: text is false, a missing property unknown."""

    operand: Property


@dataclass(frozen=True, slots=True)
class TextTest:
    """CONTAINS, STARTSWITH or ENDSWITH; never unknown."""

    word: str
    operand: "Node"
    search: str
    negated: bool


@dataclass(frozen=True, slots=True)
class In:
    """A test of whether a property is one of several texts.

    Deviation: remarks show five or more texts as written, the official ones in the order of a hash table.
    """

    operand: Property
    values: tuple[str, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two values: ``==``, ``<``, ``<=``, ``>`` or ``>=``."""

    sign: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class Logic:
    """``&&`` or ``||`` of two truth values."""

    sign: str
    left: "Node"
    right: "Node"


Node = Constant | Property | Negate | Not | Cast | TextTest | In | Comparison | Logic
NULL = Constant(None)


def format_node(node: Node) -> str:
    """Format a node as the remarks of refusals show it, and no more of it than a remark has room for.

    A loop over the parts is used, because recursion would be as deep as the longest chain of operators.
    """
    text: list[str] = []
    size = 0
    waiting: list[Node | str] = [node]
    while waiting and size <= MAX_REMARK_CHARS:
        part = waiting.pop()
        if isinstance(part, str):
            text.append(part)
            size += len(part)
        else:
            waiting += reversed(_text_parts(part))
    return "".join(text)


def _text_parts(node: Node) -> Sequence[Node | str]:
    match node:
        case Constant(value):
            return (_constant_text(value),)
        case Property(name):
            return (name,)
        case Negate(operand):
            return "(- ", operand, ")"
        case Not(operand):
            return "(NOT ", operand, ")"
        case Cast(operand):
            return (operand.name,)
        case TextTest(word, operand, _, negated):
            return f"({'NOT ' * negated}{word} ", operand, ")"
        case In(operand, values, negated):
            return (f"{operand.name} {'NOT ' * negated}IN ( {', '.join(values)} )",)
        case Comparison(sign, left, right) | Logic(sign, left, right):
            return "(", left, f" {sign} ", right, ")"


def _constant_text(value: Value) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return java_text(value).upper() if _is_truth(value) else java_text(value)


def operands_of(node: Node) -> Sequence[Node]:
    """Return the direct operands of a node."""
    match node:
        case Constant() | Property():
            return ()
        case Comparison(_, left, right) | Logic(_, left, right):
            return left, right
        case _:
            return (node.operand,)


def terms_of(node: Logic) -> list[Node]:
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


def _is_truth(value: Value) -> bool:
    return value is None or isinstance(value, bool)


def is_boolean(node: Node) -> bool:
    """Tell whether a node has a truth value, judging by its form."""
    if isinstance(node, Constant):
        return _is_truth(node.value)
    return not isinstance(node, Property | Negate)


def as_boolean(node: Node) -> Node:
    """Return the node as a truth value. Raises SqlError."""
    if is_boolean(node):
        return node
    if isinstance(node, Property):
        return Cast(node)
    raise syntax_error(f"Expression will not result in a boolean value: {format_node(node)}")


def make_ordered(sign: str, left: Node, right: Node) -> Comparison:
    """Build ``<``, ``<=``, ``>`` or ``>=`` of numbers and properties only. Raises SqlError."""
    for operand in (left, right):
        number = isinstance(operand, Constant) and isinstance(operand.value, int | float)
        if isinstance(operand, Property | Negate) or (number and not is_boolean(operand)):
            continue
        raise illegal_operands(f"Value '{format_node(operand)}' cannot be compared.")
    return Comparison(sign, left, right)


def make_equal(left: Node, right: Node) -> Comparison:
    """Build ``=`` of anything but NULL. Raises SqlError."""
    for operand in (left, right):
        if operand == NULL:
            raise illegal_operands(f"'{format_node(operand)}' cannot be compared.")
    if (
        isinstance(left, Constant)
        and isinstance(right, Constant)
        and is_boolean(left)
        and not is_boolean(right)
    ):
        raise illegal_operands(f"'{format_node(left)}' cannot be compared with '{format_node(right)}'")
    return Comparison("==", left, right)


def make_between(value: Node, low: Node, high: Node) -> Logic:
    """Build BETWEEN, whose lower constant must not be greater than the upper one. Raises SqlError."""
    if isinstance(low, Constant) and isinstance(high, Constant):
        if low.value is None or high.value is None:
            raise illegal_operands("Illegal values of between, values can not be null!")
        if compare_values(high.value, low.value) < 0:
            values = f"left value({java_text(low.value)}) must less than or equal to right value"
            raise illegal_operands(f"Illegal values of between, {values}({java_text(high.value)})")
    return Logic("&&", make_ordered(">=", value, low), make_ordered("<=", value, high))


def make_not_between(value: Node, low: Node, high: Node) -> Logic:
    """Build NOT BETWEEN, whose constants may be in any order. Raises SqlError."""
    return Logic("||", make_ordered("<", value, low), make_ordered(">", value, high))


def make_in(value: Node, values: list[str], *, negated: bool) -> In:
    """Build IN or NOT IN of a property. Raises SqlError."""
    if not isinstance(value, Property):
        raise illegal_operands(f"Expected a property for In expression, got: {format_node(value)}")
    return In(value, tuple(values), negated)
