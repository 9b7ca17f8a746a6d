"""The nodes of a parsed expression, and functions that build them and refuse wrong operands.

Conversion to text (``__str__``) is for the remarks of refusals, so it has the official form.
Source: the factory methods of ComparisonExpression and UnaryExpression, 5.4.0.
"""

from dataclasses import dataclass

from gateway.broker.sql92.errors import illegal_operands, syntax_error
from gateway.broker.sql92.java_values import Value, compare_values, java_text


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal."""

    value: Value

    def __str__(self) -> str:
        if isinstance(self.value, str):
            return "'" + self.value.replace("'", "''") + "'"
        return java_text(self.value).upper() if _is_truth(self.value) else java_text(self.value)


@dataclass(frozen=True, slots=True)
class Property:
    """A message property by name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Negate:
    """A number with its sign changed; unknown for anything else."""

    operand: "Node"

    def __str__(self) -> str:
        return f"(- {self.operand})"


@dataclass(frozen=True, slots=True)
class Not:
    """Logical negation; unknown stays unknown."""

    operand: "Node"

    def __str__(self) -> str:
        return f"(NOT {self.operand})"


@dataclass(frozen=True, slots=True)
class Cast:
    """A property where a truth value is required: text is false, a missing property unknown."""

    operand: Property

    def __str__(self) -> str:
        return str(self.operand)


@dataclass(frozen=True, slots=True)
class TextTest:
    """CONTAINS, STARTSWITH or ENDSWITH; never unknown."""

    word: str
    operand: "Node"
    search: str
    negated: bool

    def __str__(self) -> str:
        return f"({'NOT ' * self.negated}{self.word} {self.operand})"


@dataclass(frozen=True, slots=True)
class In:
    """A test of whether a property is one of several texts.

    Deviation: remarks show five or more texts as written, the official ones in the order of a hash table.
    """

    operand: Property
    values: tuple[str, ...]
    negated: bool

    def __str__(self) -> str:
        return f"{self.operand} {'NOT ' * self.negated}IN ( {', '.join(self.values)} )"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two values: ``==``, ``<``, ``<=``, ``>`` or ``>=``."""

    sign: str
    left: "Node"
    right: "Node"

    def __str__(self) -> str:
        return f"({self.left} {self.sign} {self.right})"


@dataclass(frozen=True, slots=True)
class Logic:
    """``&&`` or ``||`` of two truth values."""

    sign: str
    left: "Node"
    right: "Node"

    def __str__(self) -> str:
        return f"({self.left} {self.sign} {self.right})"


Node = Constant | Property | Negate | Not | Cast | TextTest | In | Comparison | Logic
NULL = Constant(None)


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
    raise syntax_error(f"Expression will not result in a boolean value: {node}")


def make_ordered(sign: str, left: Node, right: Node) -> Comparison:
    """Build ``<``, ``<=``, ``>`` or ``>=`` of numbers and properties only. Raises SqlError."""
    for operand in (left, right):
        number = isinstance(operand, Constant) and isinstance(operand.value, int | float)
        if isinstance(operand, Property | Negate) or (number and not is_boolean(operand)):
            continue
        raise illegal_operands(f"Value '{operand}' cannot be compared.")
    return Comparison(sign, left, right)


def make_equal(left: Node, right: Node) -> Comparison:
    """Build ``=`` of anything but NULL. Raises SqlError."""
    for operand in (left, right):
        if operand == NULL:
            raise illegal_operands(f"'{operand}' cannot be compared.")
    if (
        isinstance(left, Constant)
        and isinstance(right, Constant)
        and is_boolean(left)
        and not is_boolean(right)
    ):
        raise illegal_operands(f"'{left}' cannot be compared with '{right}'")
    return Comparison("==", left, right)


def make_between(value: Node, low: Node, high: Node) -> Logic:
    """Build BETWEEN, whose constants must be in order. Raises SqlError."""
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
        raise illegal_operands(f"Expected a property for In expression, got: {value}")
    return In(value, tuple(values), negated)
