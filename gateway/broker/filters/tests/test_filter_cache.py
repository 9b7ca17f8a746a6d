"""Compiled filters: what passes, the memory they may take, and those that waiting requests hold."""

import tracemalloc

import pytest

from codec.hashing import tags_code
from codec.message import Message, encode_message
from gateway.broker.filters import filter_cache
from gateway.broker.filters.filter_cache import ExpressionTooLong, FilterCache, subscription_refusal
from gateway.broker.filters.message_filter import EVERYTHING
from gateway.broker.filters.sql92 import SqlError, compile_sql
from gateway.config.limits import BrokerLimits
from remoting.bodies.heartbeat import SubscriptionData

KIB, MIB = 1024, 1024 * 1024
FREE_LISTS_BYTES = 256 * KIB  # Python keeps some freed tuples and dicts.


def cache_of(max_bytes=MIB, **limits):
    return FilterCache(BrokerLimits(max_filter_cache_bytes=max_bytes, **limits))


@pytest.fixture
def compiled(monkeypatch):
    """The SQL92 expressions that were compiled, in order."""
    texts = []

    def counted(text):
        texts.append(text)
        return compile_sql(text)

    monkeypatch.setattr(filter_cache, "compile_sql", counted)
    return texts


# -- tags -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_everything_passes(expression):
    assert cache_of().tag_filter(expression) is EVERYTHING
    assert EVERYTHING.tags is EVERYTHING.message is None


def test_hashes_of_the_tags_pass():
    matches = cache_of().tag_filter("TagA || TagB||  ||TagC ").tags
    assert matches is not None
    assert all(matches(tags_code(tag)) for tag in ("TagA", "TagB", "TagC"))
    assert not any(matches(code) for code in (tags_code("TagD"), tags_code("taga"), 0))


def test_tags_with_negative_hashes_pass():
    tag = next(tag for tag in map(str, range(10_000_000_000, 10_000_000_999)) if tags_code(tag) < 0)
    matches = cache_of().tag_filter(tag).tags
    assert matches is not None
    assert matches(tags_code(tag))


@pytest.mark.parametrize("expression", ["||", " ", " || || "])
def test_an_expression_without_a_tag_is_an_error(expression):
    cache = cache_of()
    for _ in range(2):
        with pytest.raises(ValueError, match="without a tag"):
            cache.tag_filter(expression)


# -- expressions ------------------------------------------------------------------------------------------


def test_an_expression_is_compiled_once_also_when_it_is_refused(compiled):
    cache = cache_of()
    assert cache.sql_filter("SQL92", "a > 5") is cache.sql_filter("SQL92", "a > 5")
    for _ in range(2):
        with pytest.raises(SqlError, match="Encountered"):
            cache.sql_filter("SQL92", "a > >")
    assert compiled == ["a > 5", "a > >"]


def test_types_that_are_not_known_and_missing_expressions_are_refused():
    with pytest.raises(SqlError, match="does not support consumer to filter message by XPATH"):
        cache_of().sql_filter("XPATH", "a")
    with pytest.raises(SqlError, match="Expression can't be null! SQL92"):
        cache_of().sql_filter("SQL92", "")


def test_a_tag_that_looks_like_an_expression_is_a_tag():
    cache = cache_of()
    assert cache.tag_filter("a > 5").tag_codes == {tags_code("a > 5")}
    assert cache.sql_filter("SQL92", "a > 5").tag_codes is None


@pytest.mark.parametrize("text", ["x" * 101, "é" * 51, "a > 5 OR " * 12])
def test_too_long_expressions_are_refused_by_the_name_of_the_limit(text, compiled):
    cache = cache_of(max_expression_bytes=100)
    for find in (cache.tag_filter, lambda text: cache.sql_filter("SQL92", text)):
        with pytest.raises(ExpressionTooLong, match=r"maxFilterExpressionBytes \(100\)") as caught:
            find(text)
    refusal = subscription_refusal(caught.value)
    assert refusal.code == 23
    assert refusal.remark.startswith("parse the consumer's subscription failed: the expression has ")
    assert (len(cache), compiled) == (0, [])


def test_bytes_are_counted_not_characters():
    cache = cache_of(max_expression_bytes=100)
    assert cache.tag_filter("x" * 100).tag_codes
    assert cache.tag_filter("é" * 50).tag_codes


def test_a_heartbeat_may_not_bring_more_tags_than_an_expression_has_room_for():
    cache = cache_of(max_expression_bytes=100)
    cache.check_subscription(SubscriptionData(topic="t", sub_string="a || b", tags_set=["a", "b"]))
    for more in ({"tags_set": ["x" * 101]}, {"tags_set": [""] * 101}, {"code_set": [1] * 101}):
        with pytest.raises(ExpressionTooLong, match="maxFilterExpressionBytes"):
            cache.check_subscription(SubscriptionData(topic="t", sub_string="a", **more))


# -- memory -----------------------------------------------------------------------------------------------


def tags_of(number, size, width=1):
    return "||".join(f"{number}-{tag:0{width}}" for tag in range(size))


def memory_of(work):
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = work()
        return kept, tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("max_bytes", [2 * MIB, 4 * MIB])
def test_any_number_of_large_filters_stays_within_the_limit(max_bytes):
    def fill():
        cache = cache_of(max_bytes)
        for number in range(150):
            cache.tag_filter(tags_of(number, 300, 70))  # The hashes of short tags are remembered elsewhere.
            if number % 10 == 0:
                cache.sql_filter("SQL92", " OR ".join(f"p{number} = '{value}'" for value in range(200)))
        return cache

    fill()
    cache, taken = memory_of(fill)
    assert len(cache) > 0
    assert cache.size_bytes <= max_bytes
    assert taken <= max_bytes + FREE_LISTS_BYTES


@pytest.mark.parametrize("size", [1, 50, 4000])
def test_the_size_of_a_list_of_tags_is_not_understated(size):
    text = tags_of(1, size)
    cache = cache_of(16 * MIB)
    cache.tag_filter(text)
    _, taken = memory_of(lambda: cache_of(16 * MIB).tag_filter("".join(list(text))))
    assert taken <= cache.size_bytes <= 4 * taken + 2048


def test_one_that_is_used_is_not_dropped_before_those_that_are_not(compiled):
    cache = cache_of(300 * KIB)
    while len(compiled) < 20:
        cache.sql_filter("SQL92", "a = 1")
        cache.sql_filter("SQL92", f"x = {len(compiled)}")
    assert compiled.count("a = 1") == 1


def test_a_filter_too_large_for_the_cache_is_compiled_each_time_and_drops_nothing_it_need_not(compiled):
    cache = cache_of(64 * KIB)
    cache.tag_filter("small")
    large = " OR ".join(f"p{number} = 'x'" for number in range(200))
    for _ in range(2):
        matches = cache.sql_filter("SQL92", large).message
        assert matches is not None
        assert matches(memoryview(encode_message(Message(topic="t", properties={"p7": "x"}))))
    assert (len(compiled), len(cache)) == (2, 1)


# -- holding ----------------------------------------------------------------------------------------------


def fill_with_others(cache, count=50):
    for number in range(count):
        cache.sql_filter("SQL92", f"other = {number}")


def test_held_filters_are_not_dropped(compiled):
    cache = cache_of(300 * KIB)
    held = cache.sql_filter("SQL92", "a = 1")
    assert cache.hold(held)
    assert cache.hold(held)
    fill_with_others(cache)
    assert cache.sql_filter("SQL92", "a = 1") is held
    cache.release(held)
    fill_with_others(cache)
    assert cache.sql_filter("SQL92", "a = 1") is held
    cache.release(held)
    fill_with_others(cache)
    assert cache.sql_filter("SQL92", "a = 1") is not held
    assert compiled.count("a = 1") == 2


def test_a_cache_full_of_held_filters_holds_no_more_and_still_compiles():
    cache = cache_of(300 * KIB)
    held = []
    for number in range(50):
        each = cache.sql_filter("SQL92", f"a = {number}")
        if not cache.hold(each):
            break
        held.append(each)
    assert 0 < len(held) < 50
    assert cache.size_bytes <= 300 * KIB
    assert not cache.hold(cache.sql_filter("SQL92", "b = 1"))
    cache.release(held.pop())
    assert cache.hold(cache.sql_filter("SQL92", "b = 1"))


def test_the_filter_of_everything_needs_no_room():
    cache = cache_of(64 * KIB)
    assert all(cache.hold(EVERYTHING) for _ in range(3))
    cache.release(EVERYTHING)
    assert cache.size_bytes == 0
