"""No expression and no message makes compiling, evaluating or remembering expensive."""

import gc
import itertools
import random
import sys
import time
import tracemalloc

import pytest

from codec.message import Message, encode_message
from gateway.broker.filters.sql92 import SqlError, candidates, compile_sql
from gateway.broker.filters.sql92.compiler import MAX_EXPRESSION_CHARS, MAX_LEVELS
from gateway.broker.filters.sql92.errors import MAX_REMARK_CHARS
from gateway.broker.filters.sql92.lexer import MAX_TOKENS
from gateway.broker.filters.sql92.lookahead import MAX_DEPTH, Lookahead
from gateway.broker.filters.sql92.selector import MAX_SELECTOR_BYTES

STACK_OVERFLOW = "java.lang.StackOverflowError"
LONGEST_CHAIN = MAX_TOKENS // 4


def refusal(text: str) -> str:
    with pytest.raises(SqlError) as caught:
        compile_sql(text)
    return str(caught.value)


def test_expressions_have_a_greatest_length() -> None:
    assert compile_sql("a = 5" + " " * (MAX_EXPRESSION_CHARS - 5)).matches(b"a\x015")
    assert "65536" in refusal("a = 5" + " " * (MAX_EXPRESSION_CHARS - 4))


@pytest.mark.parametrize("text", ["a = 5 OR ", "a IN ('x') AND ", "NOT a OR ", "a BETWEEN 1 AND 2 OR "])
def test_expressions_have_a_greatest_number_of_tokens(text: str) -> None:
    remark = "java.lang.IllegalArgumentException: more than 1024 words, numbers, texts and signs"
    assert refusal(text * 2000 + "a") == remark


def test_the_texts_of_lists_do_not_count() -> None:
    texts = ", ".join(f"'{number}'" for number in range(3000))
    compiled = compile_sql(f"a NOT IN ({texts}) AND b IN ({texts}, 'it''s') /* ')' */")
    assert compiled.matches(b"a\x01x\x02b\x01it's")
    assert not compiled.matches(b"a\x012999\x02b\x01it's")


def test_the_greatest_number_of_tokens_is_compiled() -> None:
    text = " OR ".join(["a = 5"] * LONGEST_CHAIN)
    assert compile_sql(text).matches(b"a\x015")
    assert refusal(text + " OR a").startswith("java.lang.IllegalArgumentException")


@pytest.mark.parametrize(
    ("chained", "levels"),
    [(" = a", 1), (" IS NULL", 1), (" IS NOT NULL", 2), (" CONTAINS 'x'", 1), (" <> a", 2)],
)
def test_comparisons_of_comparisons_end_somewhere(chained: str, levels: int) -> None:
    """Each evaluates the one to its left, so that a long chain would meet the recursion limit in evaluation."""
    assert compile_sql("a" + chained * (MAX_LEVELS // levels - 2)).matches(b"") in (True, False)
    assert refusal("a" + chained * (MAX_LEVELS // levels)) == STACK_OVERFLOW


def test_evaluation_of_the_deepest_expressions_stays_below_the_recursion_limit() -> None:
    texts = {
        "NOT " * (MAX_DEPTH - 1) + "a",
        "-" * (MAX_DEPTH - 1) + "a IS NULL",
        "(a = 1 AND b = 2 OR " * (MAX_DEPTH // 2 - 1) + "a" + ")" * (MAX_DEPTH // 2 - 1),
        "(NOT " * (MAX_DEPTH // 2 - 1) + "a" + ")" * (MAX_DEPTH // 2 - 1),
        "a" + " = a" * (MAX_LEVELS - 2),
    }

    def nested(calls: int, test: object, properties: bytes) -> object:
        return nested(calls - 1, test, properties) if calls else test(properties)  # type: ignore[operator]

    for text in texts:
        matches = compile_sql(text).matches
        for properties in (b"", b"a\x015", b"a\x011\x02b\x013"):
            assert nested(400, matches, properties) in (True, False)


def test_an_operand_that_counts_twice_at_each_level_is_refused() -> None:
    """BETWEEN evaluates its left operand twice: nested thirty times that is a thousand million evaluations."""
    text = "a"
    for _ in range(30):
        text = f"-({text} BETWEEN 1 AND 2)"
    assert refusal(f"{text} BETWEEN 1 AND 2") == (
        "java.lang.IllegalArgumentException: more than 4096 operands and operators"
    )


def test_nested_plus_signs_look_at_each_token_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = itertools.count()
    match_token = Lookahead._match_token

    def counted(self: Lookahead, kind: int) -> bool:
        next(looked_at)
        return match_token(self, kind)

    monkeypatch.setattr(Lookahead, "_match_token", counted)
    levels = MAX_DEPTH // 2 - 2
    compile_sql("+(" * levels + " OR ".join(["a = 1"] * 150) + ")" * levels)
    assert next(looked_at) < 100_000


@pytest.mark.parametrize("wrong", ["({}) > 5", "'x' = 1 AND ({}) < 2", "({}) IN ('x')", "-({}) AND a"])
def test_remarks_quote_no_more_than_a_part_of_a_long_expression(wrong: str) -> None:
    remark = refusal(wrong.format(" OR ".join(["a = 'text number x'"] * 250)))
    assert MAX_REMARK_CHARS <= len(remark) <= MAX_REMARK_CHARS + 1


def test_only_chosen_searches_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    search_number = candidates._search_number

    def counted(name: str, sign: str, number: int) -> candidates.Candidates:
        compiled.append(number)
        return search_number(name, sign, number)

    monkeypatch.setattr(candidates, "_search_number", counted)
    compile_sql(" AND ".join(f"a > {number}" for number in range(250)))
    compile_sql(" OR ".join(f"a > {number}" for number in range(250)))
    assert len(compiled) == 1


DIGITS = "1" * 30_000


@pytest.mark.parametrize("value", [DIGITS, DIGITS + "x", f"{DIGITS}.{DIGITS[:2000]}x", "0x" + DIGITS + "p"])
@pytest.mark.parametrize("test", ["a > 1.5", "a > 1", "a > 3000000000", "a = 5", "a > b"])
def test_values_of_many_digits_are_no_numbers_and_are_not_tried_in_every_way(value: str, test: str) -> None:
    """Dividing 30,000 digits in every way takes seconds, and converting them milliseconds for each comparison."""
    properties = f"a\x01{value}\x02b\x011".encode()
    compiled = compile_sql(" OR ".join([test] * 200))
    before = time.process_time()
    assert not compiled.matches(properties)
    assert time.process_time() - before < 2


def test_many_properties_are_split_once_with_the_same_answers() -> None:
    rng = random.Random(5)
    terms = ["a > 5", "b = 'x'", "c IS NULL", "d IN ('x', 'y')", "a CONTAINS '1'", "NOT b", "a = b"]
    names = ["a", "b", "c", "d", "e"]
    for _ in range(300):
        few = " OR ".join(rng.choice(terms) for _ in range(4))
        many = f"({few}) AND ({' OR '.join(f'p{number} IS NULL' for number in range(20))})"
        pairs = [f"{rng.choice(names)}\x01{rng.choice(['', 'x', '15', '1'])}" for _ in range(6)]
        properties = "\x02".join(pairs).encode()
        assert compile_sql(many).matches(properties) == compile_sql(few).matches(properties)


@pytest.mark.parametrize(
    "text",
    [
        "a = 5",
        "a IN (" + ", ".join(f"'value {number}'" for number in range(1500)) + ")",
        " OR ".join(f"p{number} > {number}" for number in range(250)),
        " OR ".join(["a = b"] * 250),
        " OR ".join(["NOT " * 150 + "a"] * 6),
        " OR ".join(["a BETWEEN 1 AND 2"] * 150),
        " OR ".join(f"a CONTAINS 'text {number}'" for number in range(250)),
        "a = '" + "x" * 30_000 + "'",
    ],
)
def test_the_size_of_a_filter_is_not_understated(text: str) -> None:
    compile_sql(text)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        compiled = compile_sql(text)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    estimated = compiled.size_bytes - MAX_SELECTOR_BYTES
    assert taken - sys.getsizeof(text) <= estimated <= 6 * taken + 16_384


def test_remembered_answers_stay_within_their_bytes() -> None:
    for text in ("a > 1 AND b > 1", "a > 1"):
        selector = compile_sql(text).selector
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for number in itertools.chain(range(2000), [7] * 4000, range(2000, 4000)):
                properties = {"b": f"{number % 50:0200}", "a": f"{number:0200}"}
                stored = encode_message(Message(topic="t", properties=properties))
                selector.select(stored, [len(stored)], 1)
                selector.matches(memoryview(stored))
            taken = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert taken <= MAX_SELECTOR_BYTES


def test_a_dropped_filter_needs_no_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        compile_sql("a > 5 AND (b = 'x' OR c NOT IN ('1', '2')) AND -d < 5")
        assert gc.collect() == 0
    finally:
        gc.enable()
