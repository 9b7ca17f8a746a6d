"""A filtered read that looks only at candidates answers as one that tests every message."""

import json
import random
from pathlib import Path

import pytest

from codec.properties import encode_properties
from gateway.broker.filters.sql92 import compile_sql
from gateway.broker.filters.sql92.candidates import compile_candidates
from gateway.broker.filters.sql92.compiler import SqlFilter
from gateway.broker.filters.sql92.parser import parse
from gateway.broker.filters.sql92.selector import Selector
from gateway.tests.broker_fakes import FakeClock
from storage.append import NewMessage
from storage.config import memory_config
from storage.files import MemoryFiles
from storage.queue_read import ReadResult
from storage.store import MessageStore

VECTORS = json.loads((Path(__file__).parent / "sql92.json").read_text("utf-8"))
COUNT = 1500


def read_all(store: MessageStore, topic: str, text: str, *, together: bool, most: int = 32) -> list[bytes]:
    compiled = compile_sql(text)
    bodies, offset = [], 0
    while offset < store.max_offset(topic, 0):
        many = compiled.selector if together else None
        result: ReadResult = store.read(
            topic, 0, offset, most, 1 << 20, None, compiled.selector.matches, many
        )
        bodies += [bytes(chunk) for chunk in result.chunks]
        assert result.next_offset > offset
        offset = result.next_offset
    return [b"".join(bodies)]


@pytest.fixture(scope="module")
def store() -> MessageStore:
    """Three queues whose messages lie between each other's, with properties of many kinds."""
    rng = random.Random(7)
    store = MessageStore.open(memory_config(), MemoryFiles(), FakeClock())
    for number in range(COUNT):
        properties = {"UNIQ_KEY": f"{number:032X}"}
        if rng.random() < 0.9:
            properties["n"] = rng.choice(["7", "007", "-3", "3000000000", "", "x", str(number % 100)])
        if rng.random() < 0.9:
            properties["color"] = rng.choice(["red", "redder", "blue", "é", ""])
        encoded = encode_properties(properties)
        topic = "alone" if number % 2 else rng.choice(["t", "u"])
        # what looks like a property in a body is none
        store.append(
            NewMessage(
                topic, 0, b"n\x0199\x02color\x01red\x02" * rng.randrange(2) or b"x", encoded.rstrip(b"\x02")
            )
        )
    return store


@pytest.mark.parametrize(
    "text",
    [
        "color = 'red'",
        "color = 'none'",
        "n > 95",
        "n >= 99 AND color = 'blue'",
        "n < 0",
        "n BETWEEN 98 AND 99",
        "color IN ('red', 'none')",
        "color STARTSWITH 'redd'",
        "color = 'redder' OR n = '7'",
        "n > 98 OR color IS NULL",
        "NOT color = 'red'",
    ],
)
@pytest.mark.parametrize("topic", ["t", "alone"])
def test_the_same_messages_are_found(store: MessageStore, topic: str, text: str) -> None:
    for most in (1, 32, 4000):
        expected = read_all(store, topic, text, together=False, most=most)
        assert read_all(store, topic, text, together=True, most=most) == expected


def test_whatever_matches_officially_has_a_candidate() -> None:
    looked_at = 0
    for text, outcomes in VECTORS:
        if isinstance(outcomes, str) or (candidates := compile_candidates(parse(text))) is None:
            continue
        for properties, expected in outcomes:
            looked_at += 1
            assert expected != "T" or candidates(encode_properties(properties))
    assert looked_at > 100


def test_few_of_many_are_looked_at() -> None:
    store = MessageStore.open(memory_config(), MemoryFiles(), FakeClock())
    for number in range(4000):
        store.append(
            NewMessage(
                "t",
                0,
                b"x",
                encode_properties({"n": str(number), "color": "red" if number == 3000 else "blue"}),
            )
        )
    for text in ("color = 'red'", "n > 2999 AND n < 3001"):
        node, seen = parse(text), []
        whole = SqlFilter(text, node)

        def test(properties: bytes, whole=whole, seen=seen) -> bool:
            seen.append(properties)
            return whole.matches(properties)

        selector = Selector(test, ["n", "color"], compile_candidates(node), 3)
        result = store.read("t", 0, 0, 32, 1 << 20, None, selector.matches, selector)
        # a search looks at four times the messages that maxFilterMessageSize says
        assert (result.count, result.next_offset) == (1, 3200)
        assert len(seen) < 250


def test_the_limit_holds_for_what_cannot_be_searched() -> None:
    store = MessageStore.open(memory_config(), MemoryFiles(), FakeClock())
    for _ in range(1000):
        store.append(NewMessage("t", 0, b"x", encode_properties({"n": "1"})))
    selector = compile_sql("n IS NULL").selector
    result = store.read("t", 0, 0, 32, 1 << 20, None, selector.matches, selector)
    assert (result.count, result.next_offset) == (0, 800)


def test_large_messages_are_not_copied_to_be_searched() -> None:
    store = MessageStore.open(memory_config(), MemoryFiles(), FakeClock())
    for number in range(8):
        store.append(NewMessage("t", 0, bytes(100_000), encode_properties({"n": str(number)})))
    selector, sizes = SqlFilter("n = '7'", parse("n = '7'")).selector, []  # not the one that others get
    select = selector.select

    def record(stored, *more):
        sizes.append(len(stored))
        return select(stored, *more)

    selector.select = record
    result = store.read("t", 0, 0, 32, 1 << 20, None, selector.matches, selector)
    assert (result.count, result.next_offset) == (1, 8)
    assert max(sizes, default=0) < 300_000
