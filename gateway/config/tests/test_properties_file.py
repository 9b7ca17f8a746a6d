"""Official properties syntax, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.properties_file import (
    PropertiesError,
    PropertyLine,
    decode_text,
    format_properties,
    parse_properties,
)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("a=b", "a", "b"),
        ("  a = b ", "a", "b "),
        ("a:b", "a", "b"),
        ("a b", "a", "b"),
        ("a\t=\tb", "a", "b"),
        ("a", "a", ""),
        ("a=", "a", ""),
        ("a==b", "a", "=b"),
        ("a = : b", "a", ": b"),
        (r"a\ b\=c=d", "a b=c", "d"),
        (r"a=C\:\\store\tx", "a", "C:\\store\tx"),
        (r"a=\u4e2d\u6587", "a", "中文"),
        (r"a=\ud83d\ude00", "a", "😀"),
        (r"a=\q\=", "a", "q="),
        ("a=one,\\\n    two", "a", "one,two"),
        ("a=one\\\\", "a", "one\\"),
        ("a=one\\", "a", "one"),
        ("a=#no comment", "a", "#no comment"),
        ("\r\na=b\r\n", "a", "b"),
    ],
)
def test_one_property(text: str, key: str, value: str) -> None:
    assert [(each.key, each.value) for each in parse_properties(text)] == [(key, value)]


def test_comments_blank_lines_and_line_numbers() -> None:
    text = "# a=1\n! b=2\n\n  # c=3\nd=4\\\n 5\n# e=6 \\\nf=7\n"
    assert parse_properties(text) == [PropertyLine("d", "45", 5), PropertyLine("f", "7", 8)]


def test_a_comment_inside_a_continuation_is_text() -> None:
    assert parse_properties("a=1\\\n#2")[0].value == "1#2"


def test_a_key_may_come_twice() -> None:
    assert [each.value for each in parse_properties("a=1\na=2")] == ["1", "2"]


@pytest.mark.parametrize("digits", ["12", "12g4", "+123", ""])
def test_a_malformed_escape_names_its_line(digits: str) -> None:
    with pytest.raises(PropertiesError, match=r"line 2: .*four hexadecimal digits"):
        parse_properties(f"a=1\nb=\\u{digits}")


def test_text_is_utf8_or_latin1() -> None:
    assert decode_text("a=ü".encode()) == "a=ü"
    assert decode_text("a=ü".encode("latin-1")) == "a=ü"
    assert decode_text(b"\xef\xbb\xbfa=1") == "a=1"


WORDS = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=12)


@given(st.dictionaries(WORDS, st.text(st.characters(blacklist_categories=("Cs",)), max_size=20), max_size=5))
def test_what_is_written_is_read_back(values: dict[str, str]) -> None:
    assert {each.key: each.value for each in parse_properties(format_properties(values))} == values
