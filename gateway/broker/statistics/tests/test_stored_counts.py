"""Counts of stored messages, by type and size."""

import math

import pytest

from gateway.broker.statistics.stored_counts import MessageType, StoredCount, message_type_of


def shown(count):
    """Return messages, bytes, and the filled buckets, number and sum of the sizes, by type."""
    found = {}
    for kind, stored in count.by_type():
        buckets = list(stored.sizes.shown_buckets())
        assert buckets[-1] == (math.inf, stored.sizes.count)
        before = [0, *(number for _, number in buckets)]
        filled = {bound: number - less for (bound, number), less in zip(buckets, before, strict=False)}
        filled = {bound: number for bound, number in filled.items() if number}
        found[kind.value] = (stored.messages, stored.bytes, filled, stored.sizes.total)
    return found


def test_sizes_are_counted_in_the_official_buckets_whose_bounds_they_may_reach():
    count = StoredCount()
    for size in (1, 1024, 1025, 4096, 524_288, 524_289, 2_097_152, 4_194_304, 4_194_305):
        count.count_message(size)
    (buckets,) = (filled for _, _, filled, _ in shown(count).values())
    assert buckets == {
        1024: 2, 4096: 2, 512 << 10: 1, 1 << 20: 1, 2 << 20: 1, 4 << 20: 1, math.inf: 1,
    }  # fmt: skip


def test_types_are_counted_apart_and_together():
    count = StoredCount()
    count.count_message(100)
    count.count_fifo(2000)
    count.count_request(MessageType.DELAY, 300)
    count.count_request(MessageType.TRANSACTION, 5000)
    count.count_request(MessageType.FIFO, 10)
    assert (count.messages, count.bytes, count.requests) == (5, 7410, 5)
    assert shown(count) == {
        "normal": (1, 100, {1024: 1}, 100),
        "fifo": (2, 2010, {1024: 1, 4096: 1}, 2010),
        "delay": (1, 300, {1024: 1}, 300),
        "transaction": (1, 5000, {512 << 10: 1}, 5000),
    }


def test_a_batch_is_one_entry_of_its_mean_size():
    """The official broker divides the bytes it wrote by the number of messages, as integers."""
    count = StoredCount()
    count.count_message(100)
    count.count_request(MessageType.NORMAL, 3500, 3)
    count.count_request(MessageType.FIFO, 301, 2)
    assert shown(count) == {
        "normal": (4, 3600, {1024: 1, 4096: 1}, 100 + 1166),
        "fifo": (2, 301, {1024: 1}, 150),
    }
    assert count.requests == 3


def test_counts_of_several_topics_add_up():
    total, other = StoredCount(), StoredCount()
    total.count_request(MessageType.NORMAL, 100, 2)
    other.count_request(MessageType.NORMAL, 60, 3)
    other.count_fifo(7)
    total.add(other)
    assert shown(total) == {"normal": (5, 160, {1024: 2}, 70), "fifo": (1, 7, {1024: 1}, 7)}


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, "normal"),
        ({"TRAN_MSG": "false"}, "normal"),
        ({"__SHARDINGKEY": ""}, "fifo"),
        ({"DELAY": "0"}, "delay"),
        ({"__STARTDELIVERTIME": "1"}, "delay"),
        ({"TIMER_DELIVER_MS": "1"}, "delay"),
        ({"TIMER_DELAY_SEC": "1"}, "delay"),
        ({"TIMER_DELAY_MS": "1"}, "delay"),
        ({"__SHARDINGKEY": "k", "DELAY": "1"}, "fifo"),
        ({"TRAN_MSG": "TRUE", "__SHARDINGKEY": "k", "DELAY": "1"}, "transaction"),
    ],
)
def test_the_properties_decide_the_type(properties, kind):
    assert message_type_of(properties).value == kind
