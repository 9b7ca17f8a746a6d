import pytest

from gateway.broker.pop.receipts import (
    ReceiptHandle,
    original_topic,
    pop_retry_topic,
    retry_kind,
    topic_of_kind,
)
from remoting.errors import RequestError


def test_retry_topics_of_either_naming():
    first, second = pop_retry_topic("orders", "g", v2=False), pop_retry_topic("orders", "g", v2=True)
    assert (first, second) == ("%RETRY%g_orders", "%RETRY%g+orders")
    assert [retry_kind(topic) for topic in ("orders", first, second)] == ["0", "1", "2"]
    assert [topic_of_kind("orders", "g", kind) for kind in "012"] == ["orders", first, second]
    assert {original_topic(topic, "g") for topic in ("orders", first, second)} == {"orders"}


def test_a_kind_that_does_not_exist():
    with pytest.raises(RequestError):
        topic_of_kind("orders", "g", "3")


def test_receipts():
    receipt = ReceiptHandle.parse("5 1700000000000 60000 7 1 broker-a 2 6")
    assert receipt == (5, 1_700_000_000_000, 60_000, 7, "1", "broker-a")
    assert not receipt.is_ordered
    assert ReceiptHandle.parse("5 1 2 999 0 b 0 5").is_ordered


@pytest.mark.parametrize("text", ["", "1 2 3", "a b c d e f", "1 2 3 4 0"])
def test_receipts_that_cannot_be_read(text):
    with pytest.raises(RequestError) as refused:
        ReceiptHandle.parse(text)
    assert refused.value.code == 1


@pytest.mark.parametrize("number", ["1_0", "+", "", "x", "9" * 20, "9" * 5000])
@pytest.mark.parametrize("place", range(4))
def test_numbers_that_java_would_not_read_are_refused(number: str, place: int) -> None:
    parts = ["0", "1", "2", "3", "0", "b1"]
    parts[place] = number
    with pytest.raises(RequestError, match="the extra info cannot be read, its length is 6"):
        ReceiptHandle.parse(" ".join(parts))


def test_a_revive_queue_beyond_a_java_int_is_refused() -> None:
    with pytest.raises(RequestError, match="the extra info cannot be read"):
        ReceiptHandle.parse(f"0 1 2 {1 << 31} 0 b1")
