"""Parses and writes Java properties text, the format of official configuration files."""

from collections.abc import Iterator
from dataclasses import dataclass

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS = " \t\f"
_WRITTEN = {ord("\\"): "\\\\"} | {ord(char): "\\" + letter for letter, char in _ESCAPES.items()}


@dataclass(frozen=True, slots=True)
class PropertyLine:
    """One property; `line` is the 1-based line it starts on."""

    key: str
    value: str
    line: int


class PropertiesError(ValueError):
    """Text that is not a properties file; the message names the line."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


def decode_text(data: bytes) -> str:
    """Decode the bytes of a file.

    Deviation: official servers read ISO-8859-1; here UTF-8 is tried first, because it is usual today.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def parse_properties(text: str) -> list[PropertyLine]:
    """Return every property in the order of the text; of repeated keys the last one counts.

    Raises PropertiesError for a malformed unicode escape. Source: java.util.Properties.load.
    """
    entries = []
    for number, line in _logical_lines(text):
        try:
            entries.append(_entry(line, number))
        except ValueError as problem:
            raise PropertiesError(number, str(problem)) from problem
    return entries


def format_properties(values: dict[str, str]) -> str:
    """Return sorted `key=value` lines that parse_properties reads back as `values`."""
    return "".join(f"{_escape_key(key)}={escape_value(value)}\n" for key, value in sorted(values.items()))


def escape_value(value: str) -> str:
    """Escape backslashes, line ends and a leading blank of a value."""
    escaped = value.translate(_WRITTEN)
    return "\\" + escaped if escaped.startswith(" ") else escaped


def _escape_key(key: str) -> str:
    return key.translate(_WRITTEN | {ord(special): "\\" + special for special in "=: #!"})


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, joined over trailing backslashes, without comments and blank lines."""
    pending, start = "", 0
    natural = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, raw in enumerate(natural, 1):
        line = raw.lstrip(_BLANKS)
        if not start:
            if not line or line[0] in "#!":
                continue
            start = number
        if _continues(line):
            pending += line[:-1]
            continue
        yield start, pending + line
        pending, start = "", 0
    if start:
        yield start, pending


def _continues(line: str) -> bool:
    """Return True if a line ends with an odd number of backslashes; an even number is escaped backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _entry(line: str, number: int) -> PropertyLine:
    end = _key_end(line)
    rest = line[end:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return PropertyLine(_unescape(line[:end]), _unescape(rest), number)


def _key_end(line: str) -> int:
    escaped = False
    for index, char in enumerate(line):
        if not escaped and (char in "=:" or char in _BLANKS):
            return index
        escaped = char == "\\" and not escaped
    return len(line)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out, index = [], 0
    while index < len(text):
        char = text[index]
        index += 1
        if char != "\\":
            out.append(char)
        elif index < len(text):
            char = text[index]
            index += 1
            if char == "u":
                out.append(_code_unit(text[index : index + 4]))
                index += 4
            else:
                out.append(_ESCAPES.get(char, char))
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _code_unit(digits: str) -> str:
    if len(digits) != 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
        raise ValueError(f"\\u needs four hexadecimal digits, not {digits!r}")
    return chr(int(digits, 16))
