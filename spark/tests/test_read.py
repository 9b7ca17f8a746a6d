"""Reading ranges from a slow, terse, faulty or absent broker gives each message once, or an error."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec.message import Message
from spark.errors import CorruptMessageError, DataLossError, EndpointError
from spark.pull import pull_pipeline
from spark.pull.range_reader import read_ranges
from spark.pull.read_spec import OffsetRange, ReadSpec
from spark.tests.fake_broker import FakeBroker
from spark.tests.stored_messages import compressed, inner_batch, stored_message

COUNT = 600
FEW = 120


def numbered(count: int = COUNT, first: int = 0) -> dict[int, bytes]:
    return {
        offset: stored_message(Message("t", b"%d" % offset, queue_offset=offset))
        for offset in range(first, first + count)
    }


def read(broker: FakeBroker, *ranges: OffsetRange, **how: Any) -> pa.Table:
    spec = ReadSpec(**{"endpoint": broker.endpoint(), "arrow_batch_bytes": 4096, **how})
    return pa.Table.from_batches(read_ranges(spec, ranges), spec.arrow_schema())


def offsets(table: pa.Table) -> list[int]:
    found: list[int] = table["queueOffset"].to_pylist()
    assert table["body"].to_pylist() == [b"%d" % offset for offset in found]
    return found


@settings(max_examples=30)
@given(
    most=st.sampled_from([1, 8, 1000]),
    depth=st.integers(1, 9),
    batch=st.sampled_from([1, 7, 32, 1024]),
    shuffle=st.booleans(),
    leaves_after=st.sampled_from([0, 0, 1, 20]),
    cuts=st.lists(st.integers(0, FEW), max_size=5),
    every=st.sampled_from([0, 0, 1, 3, 50, 2000]),
    looks_at=st.sampled_from([1, 40, 800]),
)
def test_each_message_comes_once_and_in_order(
    most: int,
    depth: int,
    batch: int,
    shuffle: bool,
    leaves_after: int,
    cuts: list[int],
    every: int,
    looks_at: int,
) -> None:
    matches = (lambda offset: offset % every == 0) if every else None
    fake = FakeBroker(
        numbered(FEW), most, looks_at if every else 800, matches, shuffle=shuffle, leaves_after=leaves_after
    )
    places = [0, *sorted(cuts), FEW]
    with fake.serving() as broker:
        ranges = [broker.range(start, end) for start, end in pairwise(places)]
        table = read(
            broker,
            *ranges,
            pull_batch_size=batch,
            pipeline_depth=depth,
            expression="some" if every else "*",
        )
    assert offsets(table) == [offset for offset in range(FEW) if matches is None or matches(offset)]


def test_ranges_are_read_in_the_order_given() -> None:
    with FakeBroker(numbered()).serving() as broker:
        table = read(broker, broker.range(500, 510), broker.range(3, 3), broker.range(0, 40))
    assert offsets(table) == [*range(500, 510), *range(40)]


def test_pulls_are_under_way_together_and_bounded() -> None:
    with FakeBroker(numbered()).serving() as broker:
        read(broker, broker.range(0, COUNT), pull_batch_size=10)
    assert len(broker.asked) == 60
    assert {pull.max_msg_nums for pull in broker.asked} == {10}


def test_large_messages_come_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_pipeline, "MAX_HELD_BYTES", 10_000)
    held = {offset: stored_message(Message("t", bytes(4000), queue_offset=offset)) for offset in range(40)}
    with FakeBroker(held, most=1).serving() as broker:
        table = read(broker, broker.range(0, 40))
    assert table["queueOffset"].to_pylist() == list(range(40))


@pytest.mark.parametrize("fail", [True, False])
def test_expired_messages(fail: bool) -> None:
    with FakeBroker(numbered(first=100)).serving() as broker:
        if fail:
            with pytest.raises(
                DataLossError, match=r"topic t, broker broker-a, queue 0: offsets 0 to .*holds 100 to"
            ):
                read(broker, broker.range(0, 200))
        else:
            table = read(broker, broker.range(0, 200), fail_on_data_loss=False)
            assert offsets(table) == list(range(100, 200))


@pytest.mark.parametrize("held", [50, 0])
def test_messages_the_broker_lost_at_the_end(held: int) -> None:
    with FakeBroker(numbered(held)).serving() as broker:
        with pytest.raises(DataLossError, match="cannot be read"):
            read(broker, broker.range(0, COUNT))
        began = len(broker.asked)
        assert offsets(read(broker, broker.range(0, COUNT), fail_on_data_loss=False)) == list(range(held))
        assert len(broker.asked) - began < 40


@pytest.mark.parametrize("fail", [True, False])
def test_holes_are_losses_unless_a_filter_makes_them(fail: bool) -> None:
    held = numbered()
    for offset in (5, 6, 500):
        del held[offset]
    with FakeBroker(held).serving() as broker:
        assert len(read(broker, broker.range(0, COUNT), expression="x")) == COUNT - 3
        if fail:
            with pytest.raises(DataLossError, match="offsets 5 to 6 cannot"):
                read(broker, broker.range(0, COUNT))
        else:
            assert len(read(broker, broker.range(0, COUNT), fail_on_data_loss=False)) == COUNT - 3


def test_a_broker_that_has_not_caught_up_is_asked_again() -> None:
    tries = iter(range(100))

    def not_yet(_: FakeBroker, pull: Any) -> Any:
        return (19, {"nextBeginOffset": pull.queue_offset}, b"", "OFFSET") if next(tries) < 2 else None

    with FakeBroker(numbered(), mischief=not_yet).serving() as broker:
        assert offsets(read(broker, broker.range(0, COUNT))) == list(range(COUNT))


@pytest.mark.parametrize(
    ("code", "remark"), [(2, "busy"), (21, "OFFSET_RESET"), (20, "MESSAGE_WAS_REMOVING")]
)
def test_answers_that_pass(code: int, remark: str) -> None:
    tries = iter(range(100))

    def refuse(_: FakeBroker, pull: Any) -> Any:
        return (code, {"nextBeginOffset": 5}, b"", remark) if next(tries) % 3 == 0 else None

    with FakeBroker(numbered(100), mischief=refuse).serving() as broker:
        assert offsets(read(broker, broker.range(0, 100), pull_batch_size=8)) == list(range(100))


def test_refusals_for_good_fail_at_once() -> None:
    with FakeBroker(numbered(), mischief=lambda *_: (17, {}, b"", "no such topic")).serving() as broker:
        with pytest.raises(EndpointError, match="no such topic"):
            read(broker, broker.range(0, 10))
        assert broker.connections == 1


def test_busy_for_ever_fails_after_some_tries() -> None:
    fake = FakeBroker(numbered(), mischief=lambda *_: (2, {}, b"", "too busy"))
    with fake.serving() as broker, pytest.raises(EndpointError, match=r"too busy \(after 4 attempts\)"):
        read(broker, broker.range(0, 10))


def test_a_broker_that_does_not_move_on_is_refused() -> None:
    def stuck(broker: FakeBroker, pull: Any) -> Any:
        code, _, body, remark = broker.read(pull)
        return code, {"nextBeginOffset": pull.queue_offset}, body, remark

    fake = FakeBroker(numbered(), mischief=stuck)
    with (
        fake.serving() as broker,
        pytest.raises(EndpointError, match="did not advance from offset 0: its next offset is 0"),
    ):
        read(broker, broker.range(0, 10))


def test_a_broker_that_is_gone_fails_after_some_tries() -> None:
    with FakeBroker(numbered(1)).serving() as broker:
        where, spec = broker.range(0, 1), ReadSpec(broker.endpoint())
    with pytest.raises(EndpointError, match=rf"broker-a at 127.0.0.1:{where.address[1]}.*after 4 attempts"):
        list(read_ranges(spec, [where]))


def test_a_broker_that_moved_is_found_by_its_name() -> None:
    with FakeBroker({}).serving() as gone:
        old = gone.range(0, COUNT)
    with FakeBroker(numbered()).serving() as broker:
        assert offsets(read(broker, old)) == list(range(COUNT))


def test_no_progress_is_needed_but_some() -> None:
    """A broker that disconnects after each answer is tolerated, since every answer makes progress."""
    with FakeBroker(numbered(200), leaves_after=1).serving() as broker:
        assert offsets(read(broker, broker.range(0, 200), pull_batch_size=32)) == list(range(200))
        assert broker.connections >= 6


# -- contents ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("damage", ["crc", "compressed", "properties"])
def test_damaged_messages_are_named_or_passed_over(fail: bool, damage: str) -> None:
    held = numbered(100)
    if damage == "crc":
        held[42] = held[42][:8] + b"\0\0\0\0" + held[42][12:]
    elif damage == "compressed":
        broken = compressed(b"x", queue_offset=42)
        broken.body = broken.body[:-3]
        held[42] = stored_message(broken)
    else:
        held[42] = held[42][:-1] + b"\x07"
    with FakeBroker(held).serving() as broker:
        if fail:
            with pytest.raises(CorruptMessageError, match="queue 0: the message at offset 42 is damaged"):
                read(broker, broker.range(0, 100))
        else:
            table = read(broker, broker.range(0, 100), fail_on_data_loss=False)
            assert offsets(table) == [offset for offset in range(100) if offset != 42]


def test_bytes_that_are_no_messages_always_fail() -> None:
    held = numbered(100)
    held[42] = b"nonsense" * 20
    with (
        FakeBroker(held).serving() as broker,
        pytest.raises(CorruptMessageError, match="no message at offset 42"),
    ):
        read(broker, broker.range(0, 100), fail_on_data_loss=False)


def test_messages_of_other_offsets_do_not_come_through() -> None:
    held = numbered(100)
    held[42] = held[41]
    with (
        FakeBroker(held).serving() as broker,
        pytest.raises(CorruptMessageError, match="offset 41 came after 41"),
    ):
        read(broker, broker.range(0, 100))


def test_stored_batches_are_taken_apart_and_cut_to_the_range() -> None:
    held = {}
    for base in range(0, 100, 10):
        entries = [(7, b"%d" % (base + at), b"TAGS\x01x\x02" if at % 2 else b"") for at in range(10)]
        raw = stored_message(inner_batch(entries, queue_offset=base))
        held.update(dict.fromkeys(range(base, base + 10), raw))
    held |= {offset: raw for offset, raw in numbered(200).items() if offset >= 100}

    def whole_batches(broker: FakeBroker, pull: Any) -> Any:
        if pull.queue_offset >= 100:
            return None
        return 0, {"nextBeginOffset": pull.queue_offset // 10 * 10 + 10}, held[pull.queue_offset], "FOUND"

    with FakeBroker(held, mischief=whole_batches).serving() as broker:
        table = read(broker, broker.range(5, 150), pull_batch_size=4)
    assert offsets(table) == list(range(5, 150))
    assert table["tags"].to_pylist()[:4] == ["x", None, "x", None]


def test_huge_bodies_come_in_small_batches() -> None:
    held = {at: stored_message(compressed(bytes(100_000), queue_offset=at)) for at in range(100)}
    held[99] = held[99][:8] + b"\0\0\0\0" + held[99][12:]
    with FakeBroker(held).serving() as broker:
        spec = ReadSpec(broker.endpoint(), arrow_batch_bytes=300_000, fail_on_data_loss=False)
        batches = list(read_ranges(spec, [broker.range(0, 100)]))
    assert [batch.num_rows for batch in batches] == [3] * 33
    assert all(batch.nbytes < 500_000 for batch in batches)


# -- rate limit -------------------------------------------------------------------------------------------------


def test_a_limit_of_messages_makes_small_batches() -> None:
    with FakeBroker(numbered(100)).serving() as broker:
        spec = replace(ReadSpec(broker.endpoint()), max_messages_per_second=50, pull_batch_size=25)
        batches = list(read_ranges(spec, [broker.range(0, 100)]))
    assert [batch.num_rows for batch in batches] == [50, 50]
