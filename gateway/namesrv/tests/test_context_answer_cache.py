"""Answers are encoded once for each version of the table."""

from collections.abc import Callable

from gateway.namesrv.context import AnswerCache


class Encoder:
    """Counts how often a body is encoded."""

    def __init__(self) -> None:
        self.count = 0

    def body(self, size: int) -> Callable[[], bytes]:
        def encode() -> bytes:
            self.count += 1
            return bytes(size)

        return encode


def test_a_body_is_encoded_again_only_after_a_change() -> None:
    cache, encoder = AnswerCache(), Encoder()
    for _ in range(3):
        assert cache.get("a", 1, encoder.body(5)) == bytes(5)
    assert encoder.count == 1
    cache.get("b", 1, encoder.body(5))
    cache.get("a", 2, encoder.body(6))
    assert cache.get("b", 2, encoder.body(7)) == bytes(7)
    assert encoder.count == 4


def test_the_oldest_make_room() -> None:
    cache, encoder = AnswerCache(10), Encoder()
    for key in "abc":
        cache.get(key, 1, encoder.body(4))
    cache.get("c", 1, encoder.body(4))
    cache.get("b", 1, encoder.body(4))
    assert encoder.count == 3
    cache.get("a", 1, encoder.body(4))
    assert encoder.count == 4


def test_a_body_larger_than_the_cache_is_not_held() -> None:
    cache, encoder = AnswerCache(10), Encoder()
    cache.get("small", 1, encoder.body(4))
    for _ in range(2):
        assert cache.get("large", 1, encoder.body(11)) == bytes(11)
    cache.get("small", 1, encoder.body(4))
    assert encoder.count == 3
