"""Limits of a batch: never exceeded, and never starving a queue for ever."""

from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark.cluster import Queue
from spark.source.read_limits import (
    MessageSizes,
    TriggerDelay,
    cap_bytes,
    cap_rows,
    choose_samples,
    divide_budget,
    queue_lags,
    summarize_samples,
)

QUEUES = [Queue("t", broker, number) for broker in ("a", "b") for number in range(3)]
counts = st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 10_000), min_size=1)


def ends_of(start: Mapping[Queue, int], lag: Mapping[Queue, int]) -> dict[Queue, int]:
    return {queue: start.get(queue, 0) + lag.get(queue, 0) for queue in {*start, *lag}}


@given(counts, counts, st.integers(1, 30_000))
def test_rows_are_exactly_as_many_as_allowed(
    start: dict[Queue, int], lag: dict[Queue, int], most: int
) -> None:
    end = ends_of(start, lag)
    capped = cap_rows(start, end, most)
    assert capped.keys() == end.keys()
    assert all(start.get(queue, 0) <= capped[queue] <= end[queue] for queue in end)
    assert sum(queue_lags(start, capped).values()) == min(most, sum(queue_lags(start, end).values()))


@given(st.dictionaries(st.sampled_from(QUEUES), st.integers(1, 10_000), min_size=1), st.data())
def test_shares_are_in_proportion_and_nobody_starves(lag: dict[Queue, int], data: st.DataObject) -> None:
    most = data.draw(st.integers(1, sum(lag.values())))
    parts = divide_budget(lag, most)
    assert sum(parts.values()) == most
    if most >= len(lag):
        assert all(1 <= parts[queue] <= lag[queue] for queue in lag)
        total = sum(lag.values())
        assert all(abs(parts[queue] - most * lag[queue] / total) <= len(lag) for queue in lag)
    else:
        served = {
            queue
            for turn in range(len(lag))
            for queue, part in divide_budget(lag, most, turn).items()
            if part
        }
        assert served == set(lag)


@given(counts, st.data(), st.integers(1, 1 << 20))
def test_bytes_are_no_more_than_allowed_unless_one_message_is(
    lag: dict[Queue, int], data: st.DataObject, most: int
) -> None:
    lag = {queue: min(count, 300) for queue, count in lag.items()}
    real = {
        queue: data.draw(st.lists(st.integers(100, 5000), min_size=1, max_size=5)) for queue in lag
    }  # repeated, so that what is seen is what is there
    sizes = {
        queue: MessageSizes([real[queue][index % len(real[queue])] for index in range(count)], 0)
        for queue, count in lag.items()
    }
    capped = cap_bytes({}, lag, sizes, most)
    used = sum(sizes[queue].estimate_bytes(count) for queue, count in capped.items())
    assert all(0 <= capped[queue] <= lag[queue] for queue in lag)
    if sum(lag.values()):
        assert sum(capped.values()) >= 1
    assert used <= most or sum(capped.values()) == 1
    if sum(sizes[queue].estimate_bytes(count) for queue, count in lag.items()) <= most:
        assert capped == lag


def test_large_messages_of_several_queues_take_turns() -> None:
    lag = dict.fromkeys(QUEUES, 5)
    sizes = {queue: MessageSizes([4 << 20] * 5, 0) for queue in QUEUES}
    start = dict.fromkeys(QUEUES, 0)
    for _ in range(len(QUEUES)):
        start = cap_bytes(start, lag, sizes, 1 << 20)
    assert sum(start.values()) == len(QUEUES)
    assert set(start.values()) == {1}


@given(st.integers(0, 1000), st.integers(1, 100_000))
def test_spots_are_in_the_stretch_apart_from_each_other_and_few(start: int, count: int) -> None:
    spots = choose_samples(start, start + count)
    assert spots[0][0] == start
    for (first, many), (later, _) in pairwise(spots):
        assert first + many <= later
    assert spots[-1][0] + spots[-1][1] <= start + count
    assert sum(many for _, many in spots) == min(count, 192)


def test_sizes_beyond_the_head_are_the_mean_of_those_elsewhere() -> None:
    sizes = summarize_samples([[100] * 128, [200] * 16, [400] * 16])
    assert sizes.estimate_bytes(128) == 12_800
    assert sizes.estimate_bytes(138) == 12_800 + 10 * 300
    assert sizes.count_fitting(12_800 + 900, 1000) == 131
    assert sizes.count_fitting(250, 1000) == 2
    assert sizes.count_fitting(1e9, 1000) == 1000


def test_a_batch_waits_for_enough_rows_but_not_for_ever() -> None:
    now = [100.0]
    gate = TriggerDelay(10, 60.0, lambda: now[0])
    assert gate.should_start(1)  # the first may start at once
    assert not gate.should_start(9)
    assert gate.should_start(10)
    now[0] += 59
    assert not gate.should_start(9)
    now[0] += 1
    assert gate.should_start(9)
    assert not gate.should_start(9)


def test_without_a_least_number_every_row_is_enough() -> None:
    gate = TriggerDelay(None, 900.0, lambda: 0.0)
    assert gate.should_start(1)
    assert gate.should_start(1)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_queue_that_is_new_starts_at_nothing(most: int) -> None:
    assert cap_rows({}, {QUEUES[0]: 5}, most) == {QUEUES[0]: most}
