"""Damage is fetched from another replica: only what is damaged changes, and only into the replica's bytes."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.layout import mapped_file_offsets
from storage.tools import repair
from storage.tools.repair import RepairPlan, carry_out, plan_fetch
from storage.tools.replica_fetch import write_fetched
from storage.tools.tests.stores import (
    COUNT,
    LOG_FILE_BYTES,
    damage_of,
    flip_bit,
    log_file,
    make_store,
    open_store,
)
from storage.tools.tests.test_repair import ENDS, QUEUES, place_of, plan, read_all


class FolderSource:
    """The log of a replica in a folder; ``script`` changes what it sends."""

    def __init__(self, root: Path, piece_bytes: int = 700, end: int | None = None) -> None:
        paths = sorted((root / "commitlog").iterdir())
        self.begin = mapped_file_offsets([path.name for path in paths])[0]
        self.data = bytearray(b"".join(path.read_bytes() for path in paths))
        store = open_store(root)
        self.end = store.max_physical_offset if end is None else end
        store.close()
        self.piece_bytes = piece_bytes

    def read(self, start: int) -> Iterator[bytes]:
        for position in range(start - self.begin, self.end - self.begin, self.piece_bytes):
            yield bytes(self.data[position : min(position + self.piece_bytes, self.end - self.begin)])


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    whole = make_store(tmp_path / "replica")
    shutil.copytree(whole, tmp_path / "store")
    return tmp_path / "store", whole


def logs(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}


def fetch_plan(root: Path, source: FolderSource) -> RepairPlan:
    return plan_fetch(plan(root), source)


def repair_and_check(root: Path, whole: Path, source: FolderSource) -> None:
    before = logs(whole)
    repair_plan = fetch_plan(root, source)
    assert not repair_plan.is_empty
    assert list(repair_plan.describe())
    carry_out(repair_plan)
    assert damage_of(root) == []
    assert logs(root) == before
    check_all_is_readable(root)


def check_all_is_readable(root: Path) -> None:
    """Assert that queues and index name every message, and that no copy is left over."""
    store = open_store(root)
    assert read_all(store) == list(range(COUNT))
    assert {key: store.max_offset(*key) for key in QUEUES} == ENDS
    for number in range(0, COUNT, 7):
        assert len(store.query_by_key(QUEUES[number % 3][0], f"k{number}", 9, 0, 1 << 60)) == 1
    store.close()
    assert not list((root / "damaged").glob("fetched-*"))


def spoil(root: Path, number: int, position: int) -> None:
    physical_offset = place_of(root, number)
    base = physical_offset - physical_offset % LOG_FILE_BYTES
    flip_bit(root / "commitlog" / f"{base:020d}", physical_offset - base + position)


@pytest.mark.parametrize("position", [90, 2, 5, 30], ids=["body", "size", "magic", "offset"])
@pytest.mark.parametrize("numbers", [{0}, {50}, {50, 51, 52}, {COUNT - 1}, {COUNT - 2, COUNT - 1}, {3, 150}])
def test_damaged_messages(roots: tuple[Path, Path], numbers: set[int], position: int) -> None:
    root, whole = roots
    places = {number: place_of(root, number) for number in numbers}
    for physical_offset in places.values():
        base = physical_offset - physical_offset % LOG_FILE_BYTES
        flip_bit(root / "commitlog" / f"{base:020d}", physical_offset - base + position)
    repair_and_check(root, whole, FolderSource(whole))


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("deletes", [True, False])
def test_a_missing_or_short_file(roots: tuple[Path, Path], number: int, deletes: bool) -> None:
    root, whole = roots
    path = log_file(root, number)
    if deletes:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:3000])
    repair_and_check(root, whole, FolderSource(whole))


def test_what_fillers_have_replaced(roots: tuple[Path, Path]) -> None:
    root, whole = roots
    for number in (20, 21, 90):
        spoil(root, number, 90)
    carry_out(plan(root))
    assert damage_of(root) == []
    assert logs(root) != logs(whole)
    repair_and_check(root, whole, FolderSource(whole))
    assert fetch_plan(root, FolderSource(whole)).is_empty


def test_fillers_of_both_replicas_stay(roots: tuple[Path, Path]) -> None:
    root, whole = roots
    spoil(whole, 20, 90)
    carry_out(plan(whole))
    shutil.rmtree(root)
    shutil.copytree(whole, root)
    repair_plan = fetch_plan(root, FolderSource(whole))
    assert repair_plan.is_empty
    assert repair_plan.skipped == ()


def check_nothing_is_written(root: Path, source: FolderSource, reason: str) -> None:
    before = logs(root)
    repair_plan = fetch_plan(root, source)
    (_, text), *_ = repair_plan.unfetched
    assert reason in text
    assert repair_plan.fetched == ()
    carry_out(repair_plan)
    assert logs(root) == before


def test_damage_that_the_replica_has_as_well(roots: tuple[Path, Path]) -> None:
    root, whole = roots
    source = FolderSource(whole)
    source.data[place_of(root, 50) + 90] ^= 1
    spoil(root, 50, 90)
    check_nothing_is_written(root, source, "damaged as well: the body does not match its CRC")


@pytest.mark.parametrize("number", [49, 51])
def test_a_replica_with_another_message_beside_the_damage(roots: tuple[Path, Path], number: int) -> None:
    root, whole = roots
    source = FolderSource(whole)
    source.data[place_of(root, number) + 20] ^= 1  # its queue offset, which no CRC covers
    spoil(root, 50, 90)
    check_nothing_is_written(root, source, "another message")


def test_a_replica_that_ends_before_the_damage(roots: tuple[Path, Path]) -> None:
    root, whole = roots
    source = FolderSource(whole, end=place_of(root, 40))
    spoil(root, 50, 90)
    check_nothing_is_written(root, source, "ends at")


def test_what_cannot_be_fetched_stays_as_it_is(roots: tuple[Path, Path]) -> None:
    """The store is not opened then, because recovery would replace the rest by fillers."""
    root, whole = roots
    source = FolderSource(whole, end=place_of(root, 100))
    spoil(root, 50, 90)
    spoil(root, 150, 90)
    repair_plan = fetch_plan(root, source)
    assert len(repair_plan.fetched) == len(repair_plan.unfetched) == 1
    carry_out(repair_plan)
    assert [damaged.start for damaged in plan(root).ranges] == [place_of(whole, 150)]
    carry_out(fetch_plan(root, FolderSource(whole)))
    assert logs(root) == logs(whole)
    assert damage_of(root) == []


def test_a_replica_that_fails_half_way_changes_nothing(roots: tuple[Path, Path]) -> None:
    root, whole = roots
    log_file(root, 1).unlink()
    source = FolderSource(whole)
    repair_plan = fetch_plan(root, source)
    source.data[LOG_FILE_BYTES + 4000 : LOG_FILE_BYTES + 4100] = bytes(100)
    with pytest.raises(Exception, match="replica"):
        carry_out(repair_plan)
    assert [damaged.start for damaged in plan(root).ranges] == [LOG_FILE_BYTES]
    repair_and_check(root, whole, FolderSource(whole))


def test_a_whole_store_needs_nothing(roots: tuple[Path, Path]) -> None:
    root, whole = roots
    assert fetch_plan(root, FolderSource(whole)).is_empty


def fill_and_index_again(root: Path, number: int) -> None:
    """Replace a message by a filler, with an index that was built afterwards."""
    spoil(root, number, 90)
    shutil.rmtree(root / "index")
    carry_out(plan(root))


def test_messages_that_came_before_the_replica_failed_are_readable_in_the_end(
    roots: tuple[Path, Path],
) -> None:
    root, whole = roots
    fill_and_index_again(root, 21)
    spoil(root, 150, 90)
    source = FolderSource(whole)
    repair_plan = fetch_plan(root, source)
    source.data[place_of(whole, 150) + 90] ^= 1
    with pytest.raises(Exception, match="damaged as well"):
        carry_out(repair_plan)
    repair_and_check(root, whole, FolderSource(whole))


def test_messages_in_place_of_fillers_are_readable_after_a_power_cut(
    roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, whole = roots
    fill_and_index_again(root, 21)

    def write_and_die(*arguments: object) -> None:
        write_fetched(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(repair, "write_fetched", write_and_die)
        with pytest.raises(KeyboardInterrupt):
            carry_out(fetch_plan(root, FolderSource(whole)))
    assert logs(root) == logs(whole)
    assert not list((root / "index").iterdir())
    rerun = fetch_plan(root, FolderSource(whole))
    if not rerun.is_empty:
        carry_out(rerun)
    check_all_is_readable(root)


def test_fillers_stay_while_damage_cannot_be_fetched(roots: tuple[Path, Path]) -> None:
    root, whole = roots
    fill_and_index_again(root, 21)
    spoil(root, 150, 90)
    check_nothing_is_written(root, FolderSource(whole, end=place_of(whole, 100)), "ends at")
    repair_and_check(root, whole, FolderSource(whole))


@pytest.mark.parametrize(("filled", "damaged"), [(20, 21), (21, 20), (0, 1), (1, 0), (COUNT - 2, COUNT - 1)])
def test_fillers_beside_damage(roots: tuple[Path, Path], filled: int, damaged: int) -> None:
    root, whole = roots
    spoil(root, filled, 90)
    carry_out(plan(root))
    physical_offset = place_of(whole, damaged)
    flip_bit(log_file(root, physical_offset // LOG_FILE_BYTES), physical_offset % LOG_FILE_BYTES + 90)
    repair_plan = fetch_plan(root, FolderSource(whole))
    assert len(repair_plan.fetched) == 2
    repair_and_check(root, whole, FolderSource(whole))


def test_two_missing_files_in_a_row(roots: tuple[Path, Path]) -> None:
    root, whole = roots
    log_file(root, 1).unlink()
    log_file(root, 2).unlink()
    repair_and_check(root, whole, FolderSource(whole))


def test_fillers_that_the_replica_cannot_replace_are_reported(roots: tuple[Path, Path]) -> None:
    root, whole = roots
    spoil(root, 20, 90)
    carry_out(plan(root))
    source = FolderSource(whole)
    source.data[place_of(whole, 20) + 90] ^= 1
    repair_plan = fetch_plan(root, source)
    assert repair_plan.is_empty
    ((damaged, reason),) = repair_plan.skipped
    assert damaged.start == place_of(whole, 20)
    assert "damaged as well" in reason


def test_a_replica_that_cannot_be_compared(tmp_path: Path) -> None:
    """Without one whole message here, the log of any other store would pass."""
    root = make_store(tmp_path / "store", count=1)
    other = make_store(tmp_path / "other", count=3)
    spoil(root, 0, 90)
    check_nothing_is_written(root, FolderSource(other), "no whole message")
