"""Partitions hold every message once, whatever the limits."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from spark.pull.read_spec import OffsetRange
from spark.source.partition_planning import plan_partitions

few = st.one_of(st.none(), st.integers(1, 40))
lengths = st.lists(st.integers(0, 5000), max_size=12)


def ranges_of(sizes: list[int]) -> list[OffsetRange]:
    return [
        OffsetRange("t", f"broker-{index % 2}", ("127.0.0.1", 1), index, index * 10, index * 10 + size)
        for index, size in enumerate(sizes)
    ]


@given(lengths, few, few, st.one_of(st.none(), st.integers(50, 5000)), st.integers(1, 1000))
def test_every_message_is_in_one_partition_and_limits_hold(
    sizes: list[int], least: int | None, most: int | None, records: int | None, together: int
) -> None:
    if least and most and least > most:
        least = most
    ranges = ranges_of(sizes)
    partitions = plan_partitions(
        ranges, min_partitions=least, max_partitions=most, max_records=records, min_records=together
    )
    pieces = sorted(
        (piece for partition in partitions for piece in partition),
        key=lambda each: (each.queue_id, each.start),
    )
    for whole in ranges:
        mine = [piece for piece in pieces if piece.queue_id == whole.queue_id]
        if whole.start == whole.end:
            assert not mine
            continue
        assert (mine[0].start, mine[-1].end) == (whole.start, whole.end)
        assert all(before.end == after.start for before, after in pairwise(mine))
    loads = [sum(piece.end - piece.start for piece in partition) for partition in partitions]
    assert all(loads)
    if records:
        assert max(loads, default=0) <= records
    elif most:
        assert len(partitions) <= most
    assert len(partitions) >= min(least or 0, sum(sizes))
    assert partitions == plan_partitions(
        ranges, min_partitions=least, max_partitions=most, max_records=records, min_records=together
    )


@given(lengths)
def test_pieces_of_a_partition_are_in_order(sizes: list[int]) -> None:
    for partition in plan_partitions(ranges_of(sizes), min_partitions=7, max_partitions=9):
        places = [(piece.broker, piece.queue_id, piece.start) for piece in partition]
        assert places == sorted(places)


def test_small_queues_are_put_together_and_large_ones_left_alone() -> None:
    assert len(plan_partitions(ranges_of([20] * 16), min_records=500)) == 1
    assert len(plan_partitions(ranges_of([20] * 16), min_records=500, min_partitions=4)) == 4
    assert len(plan_partitions(ranges_of([25_000] * 4), min_records=500)) == 4
    assert len(plan_partitions(ranges_of([25_000] * 4), min_records=500, max_partitions=3)) == 3


def test_split_parts_are_alike() -> None:
    loads = [
        sum(piece.end - piece.start for piece in each)
        for each in plan_partitions(ranges_of([100, 900]), min_partitions=10)
    ]
    assert loads == [100] * 10
