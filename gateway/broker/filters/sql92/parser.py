"""The parser: tokens become nodes.

Source: SelectorParser.jj, 5.4.0. Text after a complete expression is not parsed.
"""

from collections.abc import Callable
from typing import Final

from gateway.broker.filters.sql92 import lexer as t
from gateway.broker.filters.sql92 import lookahead as look
from gateway.broker.filters.sql92 import nodes
from gateway.broker.filters.sql92.errors import too_deep
from gateway.broker.filters.sql92.java_values import decimal_literal, float_literal
from gateway.broker.filters.sql92.lexer import Token, Tokens, string_value
from gateway.broker.filters.sql92.lookahead import Lookahead
from gateway.broker.filters.sql92.nodes import (
    Constant,
    Logic,
    Negate,
    Node,
    Not,
    Property,
    TextTest,
    as_boolean,
)

_ORDERED: Final = {t.GREATER: ">", t.GREATER_EQUAL: ">=", t.LESS: "<", t.LESS_EQUAL: "<="}
_WORDS: Final = {t.CONTAINS: "CONTAINS", t.STARTSWITH: "STARTSWITH", t.ENDSWITH: "ENDSWITH"}
_LITERALS: Final[dict[int, Callable[[str], Constant]]] = {
    t.DECIMAL: lambda text: Constant(decimal_literal(text)),
    t.FLOAT: lambda text: Constant(float_literal(text)),
    t.TRUE: lambda _: Constant(True),
    t.FALSE: lambda _: Constant(False),
    t.NULL: lambda _: nodes.NULL,
}
_NOT_LOOKS: Final = {
    t.CONTAINS: look.NOT_CONTAINS,
    t.STARTSWITH: look.NOT_STARTSWITH,
    t.ENDSWITH: look.NOT_ENDSWITH,
    t.BETWEEN: look.NOT_BETWEEN,
    t.IN: look.NOT_IN,
}
_PRIMARY: Final = frozenset((t.STRING, t.NAME, t.OPEN, *_LITERALS))
_UNARY: Final = _PRIMARY | {t.MINUS, t.NOT}
_TESTS: Final = frozenset(_NOT_LOOKS)
_COMPARING: Final = frozenset((t.NOT, *_TESTS, *_ORDERED))
_EQUALS: Final = frozenset((t.EQUAL, t.NOT_EQUAL))
_EQUATING: Final = _EQUALS | {t.IS}
_OR, _AND, _NOT, _COMMA = (frozenset((kind,)) for kind in (t.OR, t.AND, t.NOT, t.COMMA))
_UNREAD: Final = -1


def parse(text: str) -> Node:
    """Parse the expression at the beginning of a text. Raises SqlError."""
    return _Parser(text).parse()


class _Parser:
    """One parse. ``_kind`` is the kind of the next token, `_UNREAD` until it is looked at: an error before the next
    token is reported even if the next token is none.
    """

    def __init__(self, text: str) -> None:
        self._tokens = Tokens(text)
        self._lookahead = Lookahead(self._tokens)
        self._at = 0
        self._kind = _UNREAD
        self._depth = 0
        self._expected: set[int] = set()

    def parse(self) -> Node:
        return as_boolean(self._parse_or())

    # -- tokens ---------------------------------------------------------------------------------------------

    def _next_kind(self) -> int:
        if self._kind == _UNREAD:
            self._kind = self._tokens[self._at].kind
        return self._kind

    def _sees_next(self, kinds: frozenset[int]) -> bool:
        """Tell whether one of these kinds comes next. If not, record that it was expected."""
        kind = self._kind
        if kind == _UNREAD:
            kind = self._kind = self._tokens[self._at].kind
        if kind in kinds:
            return True
        self._expected |= kinds
        return False

    def _take_token(self, *kinds: int) -> Token:
        """Consume and return the next token, which must be one of these kinds."""
        token = self._tokens[self._at]
        if token.kind not in kinds:
            raise self._lookahead.unexpected_token(self._at, self._expected | set(kinds))
        self._skip_token()
        return token

    def _skip_token(self) -> None:
        """Consume the next token, whose kind is known."""
        self._at += 1
        self._kind = _UNREAD
        self._expected.clear()

    def _parse_string(self) -> str:
        return string_value(self._take_token(t.STRING))

    # -- rules ----------------------------------------------------------------------------------------------

    def _parse_or(self) -> Node:
        left = self._parse_and()
        while self._sees_next(_OR):
            self._skip_token()
            right = self._parse_and()
            left = Logic("||", as_boolean(left), as_boolean(right))
        return left

    def _parse_and(self) -> Node:
        left = self._parse_equality()
        while self._sees_next(_AND):
            self._skip_token()
            right = self._parse_equality()
            left = Logic("&&", as_boolean(left), as_boolean(right))
        return left

    def _parse_equality(self) -> Node:
        left = self._parse_comparison()
        while self._sees_next(_EQUATING):
            if self._sees_next(_EQUALS):
                negated = self._kind == t.NOT_EQUAL
                self._skip_token()
                equal: Node = nodes.make_equal(left, self._parse_comparison())
            else:
                negated = not self._sees_is_null()
                self._take_token(t.IS)
                if negated:
                    self._take_token(t.NOT)
                self._take_token(t.NULL)
                equal = nodes.Comparison("==", left, nodes.NULL)
            left = Not(equal) if negated else equal
        return left

    def _sees_is_null(self) -> bool:
        is_null = self._tokens[self._at + 1].kind == t.NULL
        return is_null or self._lookahead.agrees_with(look.IS_NULL, self._at)

    def _parse_comparison(self) -> Node:
        left = self._parse_unary()
        while self._sees_next(_COMPARING):
            kind = self._kind
            if kind in _ORDERED:
                self._skip_token()
                left = nodes.make_ordered(_ORDERED[kind], left, self._parse_unary())
            else:
                left = self._parse_test(left)
        return left

    def _parse_test(self, left: Node) -> Node:
        """Parse a comparison by a word, which may follow NOT."""
        negated = self._sees_next(_NOT)
        if negated:
            self._take_not()
        kind = self._take_token(*_TESTS).kind
        if kind == t.BETWEEN:
            low = self._parse_unary()
            self._take_token(t.AND)
            return (nodes.make_not_between if negated else nodes.make_between)(left, low, self._parse_unary())
        if kind == t.IN:
            return nodes.make_in(left, self._parse_list(), negated=negated)
        return TextTest(_WORDS[kind], left, self._parse_string(), negated)

    def _take_not(self) -> None:
        """Consume a NOT before one of the comparison words.

        The lookaheads are for remarks alone: with a comparison word next, one of them agrees.
        """
        if self._tokens[self._at + 1].kind in _TESTS:
            self._skip_token()
            return
        self._expected.update(*(_ORDERED, _NOT_LOOKS))
        if not any([self._lookahead.agrees_with(rule, self._at) for rule in _NOT_LOOKS.values()]):
            raise self._lookahead.unexpected_token(self._at, self._expected)
        self._take_token(t.NOT)

    def _parse_list(self) -> list[str]:
        self._take_token(t.OPEN)
        values = self._tokens.skip_listed_texts(self._at)
        values.append(self._parse_string())
        while self._sees_next(_COMMA):
            self._skip_token()
            values.append(self._parse_string())
        self._take_token(t.CLOSE)
        return values

    def _parse_unary(self) -> Node:
        self._depth += 1
        if self._depth > look.MAX_DEPTH:
            raise too_deep()
        node = self._parse_signed()
        self._depth -= 1
        return node

    def _parse_signed(self) -> Node:
        kind = self._next_kind()
        # The lookahead matters only for a plus sign, and for the remark about a token that begins no operand.
        if kind not in _UNARY and self._lookahead.agrees_with_plus(self._at):
            self._skip_token()
            return self._parse_unary()
        if kind == t.MINUS:
            self._skip_token()
            return Negate(self._parse_unary())
        if kind == t.NOT:
            self._skip_token()
            return Not(as_boolean(self._parse_unary()))
        if not self._sees_next(_PRIMARY):
            raise self._lookahead.unexpected_token(self._at, self._expected | {t.MINUS, t.NOT})
        return self._parse_primary()

    def _parse_primary(self) -> Node:
        token = self._tokens[self._at]
        self._skip_token()
        if token.kind == t.NAME:
            return Property(token.text)
        if token.kind == t.STRING:
            return Constant(string_value(token))
        if token.kind != t.OPEN:
            return _LITERALS[token.kind](token.text)
        node = self._parse_or()
        self._take_token(t.CLOSE)
        return node
