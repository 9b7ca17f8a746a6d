"""SQL92 expressions compared with recorded answers of the official filter, and evaluated on arbitrary properties.

`data/sql92.json` was made with rocketmq-filter 5.4.0 on Java 17: a throw-away program called
`SqlFilter.compile(expression).evaluate(properties)` for some 24,000 generated, broken and hand-picked
expressions, each with several sets of properties; these are the hand-picked ones and a choice of the others.
A row is an expression with either the refusal's message, or pairs of properties and outcome: T, F, N (null)
or E (exception).
"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.constants import MAGIC_V2
from codec.message import Message, encode_message
from codec.properties import encode_properties
from codec.sysflag import BORN_HOST_V6, STORE_HOST_V6
from gateway.broker.filters.sql92 import SqlError, compile_sql
from gateway.broker.filters.sql92.java_values import Incomparable, java_text
from gateway.broker.filters.sql92.lookahead import MAX_DEPTH

VECTORS = json.loads((Path(__file__).parent / "sql92.json").read_text("utf-8"))
REFUSED = [row for row in VECTORS if isinstance(row[1], str)]
ACCEPTED = [row for row in VECTORS if not isinstance(row[1], str)]
OUTCOMES = {None: "N", True: "T", False: "F"}


def refusal(expression: str) -> str:
    with pytest.raises(SqlError) as caught:
        compile_sql(expression)
    return str(caught.value)


def outcome(expression: str, properties: dict[str, str]) -> str:
    try:
        return OUTCOMES[compile_sql(expression).evaluate(encode_properties(properties))]
    except Incomparable:
        return "E"


def test_refusals_are_the_official_ones() -> None:
    wrong = [(text, refusal(text), remark) for text, remark in REFUSED if refusal(text) != remark]
    assert len(REFUSED) > 100
    assert wrong == []


def test_outcomes_are_the_official_ones() -> None:
    wrong = [
        (text, properties, outcome(text, properties), expected)
        for text, pairs in ACCEPTED
        for properties, expected in pairs
        if outcome(text, properties) != expected
    ]
    assert len(ACCEPTED) > 200
    assert wrong == []


def test_a_message_matches_only_what_is_true() -> None:
    for text, pairs in ACCEPTED:
        matches = compile_sql(text).matches
        assert [matches(encode_properties(properties)) for properties, _ in pairs] == [
            expected == "T" for _, expected in pairs
        ]


@pytest.mark.parametrize("magic", [None, MAGIC_V2])
@pytest.mark.parametrize("sys_flag", [0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6])
def test_properties_are_found_in_a_stored_message(sys_flag: int, magic: int | None) -> None:
    hosts = {
        "born_host": ("::1" if sys_flag & BORN_HOST_V6 else "10.0.0.1", 1),
        "store_host": ("::1" if sys_flag & STORE_HOST_V6 else "10.0.0.1", 2),
    }
    more = {} if magic is None else {"magic": magic}
    for properties in ({"a": "5", "b": "x"}, {"aa": "5", "b": "xa"}, {}):
        message = Message(topic="t" * 60, body=b"\x02a\x015\x02b\x01x", sys_flag=sys_flag, **hosts, **more)
        message.properties = properties
        stored = memoryview(encode_message(message))
        assert compile_sql("a > 4 AND b = 'x'").selector.matches(stored) is (properties.get("a") == "5")


def test_the_last_of_a_name_counts_and_empty_ones_do_not() -> None:
    matches = compile_sql("a = '2'").matches
    assert matches(b"a\x011\x02a\x012")
    assert matches(b"a\x012\x02a\x01\x02")
    assert not matches(b"a\x012\x02a\x011\x02")
    assert compile_sql("a IS NULL").matches(b"a\x01\x02b\x01x")


@pytest.mark.parametrize("nested", ["({})", "NOT {}", "+{}"])
def test_nesting_ends_somewhere(nested: str) -> None:
    def wrapped(levels: int) -> str:
        text = "a = 5"
        for _ in range(levels):
            text = nested.format(f"({text})" if text == "a = 5" else text)
        return text

    assert compile_sql(wrapped(MAX_DEPTH - 3)).evaluate(b"a\x015") is not None
    assert refusal(wrapped(5_000)) == "java.lang.StackOverflowError"


def test_long_chains_are_no_nesting() -> None:
    assert compile_sql(" AND ".join(["a = '5'"] * 250)).matches(b"a\x015")
    assert not compile_sql(" OR ".join(["a = 6"] * 250)).matches(b"a\x015")


def test_java_text_of_no_number() -> None:
    assert [java_text(float(text)) for text in ("inf", "-inf", "nan")] == ["Infinity", "-Infinity", "NaN"]


def test_java_text_of_doubles() -> None:
    values = [1.0, 0.001, 1e-3 / 10, 1e7, 12345678.9, 1234567.0, 5e-324, 1.7976931348623157e308, 0.5, 100.0]
    assert [java_text(value) for value in values] == [
        "1.0", "0.001", "1.0E-4", "1.0E7", "1.23456789E7", "1234567.0", "4.9E-324", "1.7976931348623157E308",
        "0.5", "100.0",
    ]  # fmt: skip


@given(st.sampled_from([text for text, _ in ACCEPTED]), st.binary(max_size=60))
def test_evaluation_never_raises_on_any_bytes(text: str, properties: bytes) -> None:
    assert compile_sql(text).matches(properties) in (True, False)


VALUES = st.one_of(
    st.text(max_size=12),
    st.floats().map(str),
    st.integers().map(str),
    st.from_regex(r"[+-]?0x[0-9a-f.]*p?\d*"),
)


@given(st.sampled_from([text for text, _ in ACCEPTED]), st.dictionaries(st.sampled_from("abcA"), VALUES))
def test_evaluation_never_raises_on_any_values(text: str, properties: dict[str, str]) -> None:
    assert compile_sql(text).matches(encode_properties(properties)) in (True, False)


@given(st.text(st.characters() | st.sampled_from("ab05.'()<>=-+/* \n"), max_size=40))
def test_any_text_is_compiled_or_refused(text: str) -> None:
    try:
        compiled = compile_sql(text)
    except SqlError:
        return
    assert compiled.matches(b"a\x015\x02") in (True, False)


def test_answers_are_right_though_each_message_has_values_of_its_own() -> None:
    """Compile more expressions than the cache holds, twice, and some often before and after."""
    matches = compile_sql("a > 1500 AND b IS NOT NULL").selector.matches
    numbers = [*range(3000), *[1499, 1501] * 1000, *range(3000)]
    for number in numbers:
        stored = encode_message(Message(topic="t", properties={"a": str(number), "b": "x"}))
        assert matches(memoryview(stored)) is (number > 1500)
