"""The tokens of an expression, read one by one as the parser needs them.

Source: SelectorParser.jj and SelectorParserTokenManager, 5.4.0. Text after the last token that the parser looks at is
never read, so errors in it go unnoticed.
"""

import re
from typing import Final, NamedTuple

from gateway.broker.filters.sql92.errors import SqlError, lexical_error, too_long

EOF: Final = 0
NOT, AND, OR, BETWEEN, IN, TRUE, FALSE, NULL, IS, CONTAINS, STARTSWITH, ENDSWITH = range(8, 20)
DECIMAL, FLOAT = 20, 21
STRING, NAME = 23, 24
EQUAL, NOT_EQUAL, GREATER, GREATER_EQUAL, LESS, LESS_EQUAL, OPEN, COMMA, CLOSE, PLUS, MINUS = range(25, 36)
"""Kinds of tokens; their order is that of the lists of expected tokens in remarks."""

_WORDS = "NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH"
_SIGNS = "= <> > >= < <= ( , ) + -"
_KEYWORDS: Final = {word: NOT + number for number, word in enumerate(_WORDS.split())}
_SIGN_KINDS: Final = {sign: EQUAL + number for number, sign in enumerate(_SIGNS.split())}
KIND_NAMES: Final = {
    EOF: "<EOF>",
    DECIMAL: "<DECIMAL_LITERAL>",
    FLOAT: "<FLOATING_POINT_LITERAL>",
    STRING: "<STRING_LITERAL>",
    NAME: "<ID>",
    **{kind: f'"{text}"' for text, kind in (_KEYWORDS | _SIGN_KINDS).items()},
}
"""Names of the kinds of tokens in remarks."""

_SKIPPED = r"(?:[ \t\n\r\f]|--[^\n\r]*(?:\r\n|\n|\r)|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)*"
_SKIP = re.compile(_SKIPPED)
_TEXT_AND_COMMA = re.compile(rf"{_SKIPPED}'((?:''|[^'])*)'{_SKIPPED},")
_TOKEN = re.compile(
    r"(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<decimal>0|[1-9][0-9]*[lL]?)"
    r"|(?P<string>'(?:''|[^'])*')"
    r"|(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<sign><>|<=|>=|[=<>(),+-])"
)
_GROUPS: Final = {"float": FLOAT, "decimal": DECIMAL, "string": STRING}
_TAB_COLUMNS: Final = 8
MAX_TOKENS: Final = 1024
"""Deviation: longest expression in tokens, because no client is served while an expression is compiled, which takes
about 5 ms for so many. The texts of a list do not count: a hundred of them are read in the time of ten tokens.
"""


class Token(NamedTuple):
    """One token as written, and the position of its first character. EOF has the position of the last character."""

    kind: int
    text: str
    position: int


class Tokens:
    """The tokens of a text by number, from 0. Every number after the last token is an EOF."""

    def __init__(self, text: str) -> None:
        self._text = text if text.isascii() else _code_units(text)
        self._tokens: list[Token] = []
        self._next = 0

    def __getitem__(self, number: int) -> Token:
        """Return a token. Raise SqlError when the text up to it has something that is not a token, or too many."""
        tokens = self._tokens
        while number >= len(tokens):
            token = self._read_token()
            if len(tokens) >= MAX_TOKENS and token.kind != EOF:
                raise too_long(f"more than {MAX_TOKENS} words, numbers, texts and signs")
            tokens.append(token)
        return tokens[number]

    def skip_listed_texts(self, number: int) -> list[str]:
        """Skip all texts before token ``number`` that a comma follows, and return their values.

        They get no numbers. Nothing is skipped if that token was read before.
        """
        values: list[str] = []
        if number == len(self._tokens):
            while listed_text := _TEXT_AND_COMMA.match(self._text, self._next):
                values.append(_unquote(listed_text[1]))
                self._next = listed_text.end()
        return values

    def line_and_column(self, number: int) -> tuple[int, int]:
        """Return line and column of a token, from 1."""
        return _line_and_column(self._text, self[number].position)

    def _read_token(self) -> Token:
        text = self._text
        skipped = _SKIP.match(text, self._next)
        start = self._next if skipped is None else skipped.end()
        if start == len(text):
            return Token(EOF, "", start - 1)
        match = _TOKEN.match(text, start)
        if match is None:
            raise _no_token_error(text, start)
        self._next = match.end()
        word = match.group()
        return Token(_token_kind(match.lastgroup or "", word), word, start)


def _token_kind(group: str, word: str) -> int:
    if group == "name":
        return _KEYWORDS.get(word.upper(), NAME)
    return _SIGN_KINDS[word] if group == "sign" else _GROUPS[group]


def string_value(token: Token) -> str:
    """Return the value of a string literal."""
    return _unquote(token.text[1:-1])


def _unquote(text: str) -> str:
    """Return the value of a literal's text, in which a quote is written twice."""
    value = text.replace("''", "'")
    return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _code_units(text: str) -> str:
    """Return the text with one character for each Java char, so that positions agree with Java's."""
    encoded = text.encode("utf-16-le", "surrogatepass")
    return "".join(map(chr, memoryview(encoded).cast("H")))


def _line_and_column(text: str, position: int) -> tuple[int, int]:
    """Return line and column, from 1, of a character; (0, 0) when there is none."""
    line, column = (1, 0) if position >= 0 else (0, 0)
    before = ""
    for character in text[: position + 1]:
        column += 1
        if before == "\n" or (before == "\r" and character != "\n"):
            line, column = line + 1, 1
        if character == "\t":
            column += _TAB_COLUMNS - 1 - (column - 1) % _TAB_COLUMNS
        before = character
    return line, column


def _no_token_error(text: str, start: int) -> SqlError:
    """Return the error that names the character at which the longest beginning of any token ends."""
    end = start + _viable_length(text, start)
    looked_at = min(end + 1, len(text))
    line, column = _line_and_column(text, looked_at - 1)
    if looked_at < len(text):
        met = f'"{escape_for_remark(text[end])}" ({ord(text[end])}), '
        after = text[start:end]
    else:
        met = "<EOF> "
        after = text[start:looked_at] if looked_at - start > 1 else ""
        line, column = (line + 1, 0) if text[-1] in "\r\n" else (line, column + 1)
    detail = f"Lexical error at line {line}, column {column}.  "
    return lexical_error(f'{detail}Encountered: {met}after : "{escape_for_remark(after)}"')


def _viable_length(text: str, start: int) -> int:
    """Return the number of characters that could still become a token or a comment."""
    if text[start] == "'" or text.startswith("/*", start):
        return len(text) - start
    return 1 if text[start] in "/." else 0


_ESCAPES: Final = {
    0: "", 8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 39: "\\'", 92: "\\\\",
}  # fmt: skip


def escape_for_remark(text: str) -> str:
    """Escape text as remarks show it."""
    parts = []
    for character in text:
        code = ord(character)
        plain = character if 0x20 <= code <= 0x7E else f"\\u{code:04x}"
        parts.append(_ESCAPES.get(code, plain))
    return "".join(parts)
