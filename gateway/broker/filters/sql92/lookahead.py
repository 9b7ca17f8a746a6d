"""The parser's lookahead, and the remarks that list expected tokens.

Problem: the remark for a syntax error must equal that of the parser which JavaCC generates from SelectorParser.jj
(5.4.0). That parser chooses between alternatives by looking at the next two tokens (after a plus sign, at as many as
needed), and its remark lists every token that any of these lookaheads expected at the wrong position.

1. `Lookahead.agrees_with` decides such a choice, and remembers where the lookahead began and how far it reached.
2. After a syntax error `Lookahead.unexpected_token` repeats the remembered lookaheads that reached the wrong token, and
   `_ExpectedTokens` collects what they expected.
"""

from typing import Final, NamedTuple

from gateway.broker.filters.sql92 import lexer as t
from gateway.broker.filters.sql92.errors import SqlError, syntax_error, too_deep
from gateway.broker.filters.sql92.lexer import KIND_NAMES, Tokens, escape_for_remark

Rule = int | str | tuple["Rule", ...]
"""A kind of token, the name of a rule in ``_RULES``, or (ALL | ANY | MANY, parts…)."""
ALL, ANY, MANY = "all", "any", "many"

MAX_DEPTH: Final = 200
"""Deviation: deepest nesting of an expression; the official broker's limit is its thread's stack."""
UNLIMITED: Final = (1 << 31) - 1
_MAX_EXPECTED: Final = 100

PLUS: Rule = (ALL, t.PLUS, "unary")
IS_NULL: Rule = (ALL, t.IS, t.NULL)
NOT_CONTAINS: Rule = (ALL, t.NOT, t.CONTAINS, t.STRING)
NOT_STARTSWITH: Rule = (ALL, t.NOT, t.STARTSWITH, t.STRING)
NOT_ENDSWITH: Rule = (ALL, t.NOT, t.ENDSWITH, t.STRING)
NOT_BETWEEN: Rule = (ALL, t.NOT, t.BETWEEN, "unary", t.AND, "unary")
_LIST: tuple[Rule, ...] = (t.IN, t.OPEN, t.STRING, (MANY, (ALL, t.COMMA, t.STRING)), t.CLOSE)
NOT_IN: Rule = (ALL, t.NOT, *_LIST)

LOOKAHEAD_RULES: Final = (IS_NULL, NOT_CONTAINS, NOT_STARTSWITH, NOT_ENDSWITH, NOT_BETWEEN, NOT_IN, PLUS)
"""Rules at which the parser looks ahead, in the order in which remarks list them."""

_COMPARED: Rule = (
    ANY,
    *((ALL, sign, "unary") for sign in (t.GREATER, t.GREATER_EQUAL, t.LESS, t.LESS_EQUAL)),
    (ALL, t.CONTAINS, t.STRING), NOT_CONTAINS,
    (ALL, t.STARTSWITH, t.STRING), NOT_STARTSWITH,
    (ALL, t.ENDSWITH, t.STRING), NOT_ENDSWITH,
    (ALL, t.BETWEEN, "unary", t.AND, "unary"), NOT_BETWEEN,
    (ALL, *_LIST), NOT_IN,
)  # fmt: skip
_EQUATED: Rule = (
    ANY,
    (ALL, t.EQUAL, "comparison"),
    (ALL, t.NOT_EQUAL, "comparison"),
    IS_NULL,
    (ALL, t.IS, t.NOT, t.NULL),
)
_RULES: Final[dict[str, Rule]] = {
    "or": (ALL, "and", (MANY, (ALL, t.OR, "and"))),
    "and": (ALL, "equality", (MANY, (ALL, t.AND, "equality"))),
    "equality": (ALL, "comparison", (MANY, _EQUATED)),
    "comparison": (ALL, "unary", (MANY, _COMPARED)),
    "unary": (ANY, PLUS, (ALL, t.MINUS, "unary"), (ALL, t.NOT, "unary"), "primary"),
    "primary": (ANY, "literal", t.NAME, (ALL, t.OPEN, "or", t.CLOSE)),
    "literal": (ANY, t.STRING, t.DECIMAL, t.FLOAT, t.TRUE, t.FALSE, t.NULL),
}


class _Agreed(Exception):
    """Raised when enough tokens agree with the rule."""


class _LookedAhead(NamedTuple):
    """A lookahead from token `at` that reached as far as token `reach`."""

    at: int
    reach: int
    limit: int


class Lookahead:
    """The lookaheads of one parser. Parameters named ``at`` are the number of the next token to consume."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._looks: dict[int, list[_LookedAhead]] = {}
        self._position = self._furthest = self._tokens_left = self._depth = 0
        self._agreed_end = 0
        self._expected: _ExpectedTokens | None = None

    def agrees_with(self, rule: Rule, at: int, limit: int = 2) -> bool:
        """Tell whether the tokens from `at` on agree with a rule, judging by the first `limit`."""
        self._start_at(at, limit)
        try:
            return self._match_rule(rule)
        except _Agreed:
            return True
        finally:
            self._record_look(
                LOOKAHEAD_RULES.index(rule), _LookedAhead(at, at + limit - self._tokens_left, limit)
            )

    def agrees_with_plus(self, at: int) -> bool:
        """Tell whether a plus sign with its whole operand comes next.

        One that lies within the operand of an earlier plus sign was looked at with it. If each looked at its operand
        again, nested ones would take quadratic time.
        """
        if at < self._agreed_end:
            return True
        agrees = self.agrees_with(PLUS, at, UNLIMITED)
        if agrees:
            self._agreed_end = self._position
        return agrees

    def _record_look(self, number: int, look: _LookedAhead) -> None:
        looks = self._looks.setdefault(number, [])
        for index, old in enumerate(looks):
            if old.reach <= look.at:
                looks[index] = look
                return
        looks.append(look)

    def _start_at(self, at: int, limit: int) -> None:
        self._position = self._furthest = at
        self._tokens_left = limit
        self._depth = 0

    def _match_rule(self, rule: Rule) -> bool:
        if isinstance(rule, int):
            return self._match_token(rule)
        if isinstance(rule, str):
            return self._match_named(rule)
        how, *parts = rule
        if how == ALL:
            for part in parts:  # noqa: SIM110 - a generator would add a level of recursion
                if not self._match_rule(part):
                    return False
            return True
        start = self._position
        if how == ANY:
            return self._match_any(parts, start)
        while self._match_rule(parts[0]):
            start = self._position
        self._position = start
        return True

    def _match_any(self, parts: list[Rule], start: int) -> bool:
        for part in parts:
            self._position = start
            if self._match_rule(part):
                return True
        return False

    def _match_named(self, name: str) -> bool:
        if name != "unary":
            return self._match_rule(_RULES[name])
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise too_deep()
        matched = self._match_rule(_RULES[name])
        self._depth -= 1
        return matched

    def _match_token(self, kind: int) -> bool:
        if self._position == self._furthest:
            self._tokens_left -= 1
            self._furthest += 1
        self._position += 1
        if self._expected is not None:
            self._expected.note_expected(kind, self._position)
        if self._tokens[self._position - 1].kind != kind:
            return False
        if self._tokens_left == 0 and self._position == self._furthest:
            raise _Agreed
        return True

    def unexpected_token(self, at: int, expected: set[int]) -> SqlError:
        """Return the error for a wrong token ``at``, instead of which ``expected`` or a lookahead's tokens were due."""
        expected_tokens = self._expected = _ExpectedTokens(at, sorted(expected))
        for number, rule in enumerate(LOOKAHEAD_RULES):
            try:
                for look in self._looks.get(number, ()):
                    if look.reach > at:
                        self._start_at(look.at, look.limit)
                        self._match_rule(rule)
            except _Agreed:
                continue
        expected_tokens.end_sequence()
        return syntax_error(_format_remark(self._tokens, at, expected_tokens.sequences))


class _ExpectedTokens:
    """Collects the sequences of tokens from `at` on that would have been accepted."""

    def __init__(self, at: int, expected: list[int]) -> None:
        self.sequences: list[tuple[int, ...]] = [(kind,) for kind in expected]
        self._at = at
        self._kinds = [t.EOF] * _MAX_EXPECTED
        self._count = 0

    def note_expected(self, kind: int, position: int) -> None:
        """Record that `kind` was expected as the token before `position`."""
        index = position - self._at
        if not 0 <= index < _MAX_EXPECTED:
            return
        if index == self._count + 1:
            self._count = index
        elif not self._count:
            return
        else:
            self.end_sequence()
            self._count = index or self._count
        if index:
            self._kinds[index - 1] = kind

    def end_sequence(self) -> None:
        """Store the current sequence unless it is known.

        An oddity of JavaCC: a sequence is also dropped when its length differs from that of the last one stored.
        """
        sequence = tuple(self._kinds[: self._count])
        if not sequence or sequence in self.sequences:
            return
        if not self.sequences or len(self.sequences[-1]) == len(sequence):
            self.sequences.append(sequence)


def _format_remark(tokens: Tokens, at: int, expected: list[tuple[int, ...]]) -> str:
    met = []
    for number in range(at, at + max(map(len, expected), default=0)):
        token = tokens[number]
        if token.kind == t.EOF:
            met.append(KIND_NAMES[t.EOF])
            break
        met.append(f' {KIND_NAMES[token.kind]} "{escape_for_remark(token.text)} "')
    lines = ["".join(f"{KIND_NAMES[kind]} " for kind in kinds) + "...\n    " for kinds in expected]
    line, column = tokens.line_and_column(at)
    return (
        f'Encountered "{" ".join(met)}" at line {line}, column {column}.\n'
        f"Was expecting{'' if len(expected) == 1 else ' one of'}:\n    {''.join(lines)}"
    )
