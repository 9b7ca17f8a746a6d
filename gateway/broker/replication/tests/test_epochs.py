"""The table of epochs: the official file, the point up to which logs are equal, and changes that survive a crash."""

import random
from collections.abc import Callable

import pytest

from gateway.broker.replication.epochs import (
    MAX_EPOCHS,
    EpochStart,
    EpochTable,
    encode_epochs,
    parse_epochs,
)
from storage.crash_files import CrashFiles
from storage.files import Files, MemoryFiles

ROOT = "/s"
PATH = f"{ROOT}/epochFileCheckpoint"
OFFICIAL = b"2\n632607672\n1-0\n5-1350\n"
"""Written by an official broker 5.4.0 that was elected twice."""


def table(*entries: tuple[int, int], files: Files | None = None) -> EpochTable:
    made = EpochTable(files or MemoryFiles(), ROOT)
    for epoch, start in entries:
        made.append(epoch, start)
    return made


def starts(*entries: tuple[int, int]) -> tuple[EpochStart, ...]:
    return tuple(EpochStart(*entry) for entry in entries)


# -- the file --


def test_the_file_is_the_official_one() -> None:
    files = MemoryFiles()
    epochs = table((1, 0), files=files)
    assert files.read_small(PATH) == b"1\n1725254278\n1-0\n"
    epochs.append(5, 1350)
    assert files.read_small(PATH) == OFFICIAL
    assert files.read_small(f"{PATH}.bak") == b"1\n1725254278\n1-0\n"
    assert EpochTable(files, ROOT).entries == starts((1, 0), (5, 1350))


def test_a_crc_of_0_is_not_checked() -> None:
    assert parse_epochs(b"1\n0\n3-700\n") == starts((3, 700))


@pytest.mark.parametrize(
    "damaged",
    [
        b"2\n632607673\n1-0\n5-1350\n", b"3\n632607672\n1-0\n5-1350\n", b"2\n632607672\n1-0\n", b"2\n", b"x\n0\n",
        b"1\n0\n1-0-0\n", b"1\n0\n1--1\n", b"1\n0\n4294967296-0\n", b"2\n0\n5-0\n1-10\n", b"2\n0\n1-10\n5-0\n",
        b"1\n0\n1-99999999999999999999\n", b"\xff\xfe\n0\n1-0\n", b"2\n0\n1-0\n1-5\n",
    ],
)  # fmt: skip
def test_a_damaged_file_is_said_and_its_backup_read(damaged: bytes, caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    files.write_small(PATH, damaged)
    assert EpochTable(files, ROOT).entries == ()
    assert "epochs cannot be read" in caplog.text
    files.write_small(f"{PATH}.bak", OFFICIAL)
    epochs = EpochTable(files, ROOT)
    assert epochs.entries == starts((1, 0), (5, 1350))
    epochs.append(6, 2000)
    assert files.read_small(f"{PATH}.bak") == OFFICIAL
    assert EpochTable(files, ROOT).entries == starts((1, 0), (5, 1350), (6, 2000))


def test_an_empty_table_leaves_no_file_that_an_official_broker_would_read() -> None:
    files = MemoryFiles()
    epochs = table((1, 0), (2, 50), files=files)
    epochs.cut(0)
    assert epochs.entries == ()
    assert epochs.newest is None
    assert (files.read_small(PATH), files.read_small(f"{PATH}.bak")) == (None, None)
    assert EpochTable(files, ROOT).entries == ()


def _append(epochs: EpochTable) -> None:
    epochs.append(9, 900)


def _cut(epochs: EpochTable) -> None:
    epochs.cut(400)


def _empty(epochs: EpochTable) -> None:
    epochs.cut(0)


@pytest.mark.parametrize("change", [_append, _cut, _empty])
def test_a_change_that_returned_survives_a_loss_of_power(change: Callable[[EpochTable], None]) -> None:
    files = CrashFiles()
    epochs = table((1, 0), (4, 400), files=files)
    change(epochs)
    assert EpochTable(files.crash(random.Random(1)), ROOT).entries == epochs.entries


class FullFiles(MemoryFiles):
    """Files on a disk that has room until ``is_full`` is set."""

    is_full = False

    def write_small(self, path: str, data: bytes, backup: str | None = None) -> None:
        if self.is_full:
            raise OSError("no space")
        super().write_small(path, data, backup)


def test_a_full_disk_changes_nothing() -> None:
    files = FullFiles()
    epochs = table((1, 0), files=files)
    files.is_full = True
    with pytest.raises(OSError, match="no space"):
        epochs.append(2, 100)
    assert epochs.entries == starts((1, 0))
    assert epochs.find(100) == EpochStart(1, 0)


# -- looking up --


def test_the_epoch_of_an_offset() -> None:
    epochs = table((1, 0), (3, 100), (4, 100), (7, 250))
    assert [epochs.find(offset) for offset in (0, 99, 100, 249, 250, 1 << 40)] == [
        (1, 0), (1, 0), (4, 100), (4, 100), (7, 250), (7, 250),
    ]  # fmt: skip
    assert [epochs.end_of_epoch(offset) for offset in (0, 99, 100, 249, 250)] == [
        100,
        100,
        250,
        250,
        2**63 - 1,
    ]


def test_bytes_that_are_older_than_the_first_epoch() -> None:
    epochs = table((1, 5000))
    assert epochs.find(0) == (1, 5000)
    assert epochs.end_of_epoch(0) == 5000
    assert table().find(0) is None


@pytest.mark.parametrize(
    ("own", "own_end", "master", "master_end", "common"),
    [
        # The same epochs: the shorter log is the common part.
        ([(1, 0)], 700, [(1, 0)], 900, 700),
        ([(1, 0)], 900, [(1, 0)], 700, 700),
        # The master began an epoch before this log's end: what is after its start was only here.
        ([(1, 0)], 900, [(1, 0), (2, 600)], 1000, 600),
        # This broker was master of an epoch that nobody followed.
        ([(1, 0), (2, 600)], 900, [(1, 0), (3, 600)], 1000, 600),
        ([(1, 0), (2, 600)], 900, [(1, 0), (3, 500)], 1000, 500),
        # The same number with another start is another history.
        ([(1, 0), (2, 600)], 900, [(1, 0), (2, 650)], 1000, 600),
        # Epochs without messages decide as well.
        ([(1, 0), (2, 600)], 900, [(1, 0), (2, 600), (3, 600)], 1000, 600),
        ([(1, 0), (2, 0)], 50, [(1, 0), (3, 0)], 80, 0),
        # Nothing in common.
        ([(2, 100)], 900, [(3, 100)], 900, None),
        ([], 900, [(3, 100)], 900, None),
        ([(2, 100)], 900, [], 900, None),
        ([], 0, [], 0, None),
    ],
)
def test_the_consistent_point(
    own: list[tuple[int, int]],
    own_end: int,
    master: list[tuple[int, int]],
    master_end: int,
    common: int | None,
) -> None:
    assert table(*own).consistent_point(own_end, starts(*master), master_end) == common


# -- changes --


def test_an_epoch_without_messages_stays() -> None:
    epochs = table((1, 0), (2, 600), (3, 600))
    assert epochs.entries == starts((1, 0), (2, 600), (3, 600))
    assert epochs.newest == (3, 600)


def test_the_same_epoch_begins_anew_and_an_older_one_never() -> None:
    epochs = table((1, 0), (2, 600))
    epochs.append(2, 900)
    assert epochs.entries == starts((1, 0), (2, 900))
    with pytest.raises(ValueError, match="epoch 1 is older than 2"):
        epochs.append(1, 900)
    epochs.append(4, 700)
    assert epochs.entries == starts((1, 0), (4, 700))


def test_what_begins_after_the_end_goes_and_at_a_cut_as_well() -> None:
    epochs = table((1, 0), (2, 600), (3, 900))
    epochs.trim(900)
    assert epochs.newest == (3, 900)
    epochs.trim(899)
    assert epochs.newest == (2, 600)
    epochs.cut(600)
    assert epochs.entries == starts((1, 0))


def test_epochs_of_deleted_messages_go_but_not_the_one_that_goes_on() -> None:
    epochs = table((1, 0), (2, 600), (3, 900))
    epochs.drop_before(600)
    assert len(epochs.entries) == 3
    epochs.drop_before(601)
    assert epochs.entries == starts((2, 600), (3, 900))
    epochs.drop_before(5000)
    assert epochs.entries == starts((3, 900))
    table().drop_before(10)


def test_epochs_at_the_beginning_of_a_new_log_stay() -> None:
    """Without the first one a former master's messages would have nothing in common with the new one's log."""
    epochs = table((1, 0), (2, 0))
    epochs.drop_before(0)
    assert epochs.consistent_point(0, starts((1, 0)), 500) == 0


def test_a_slave_adopts_the_epochs_of_its_own_part_of_the_log() -> None:
    epochs = table((1, 0), (2, 600), (4, 700))
    epochs.adopt(starts((2, 600), (3, 800), (5, 1000), (6, 2000)), 1000)
    assert epochs.entries == starts((1, 0), (2, 600), (3, 800), (5, 1000))
    epochs.adopt(starts((2, 600), (3, 800), (5, 1000), (6, 2000)), 2000)
    assert epochs.newest == (6, 2000)
    epochs.adopt((), 2000)
    assert epochs.entries == ()


def test_an_epoch_without_messages_that_the_master_does_not_have_goes() -> None:
    """Its master stored nothing, and a replica that was not in sync was elected after it."""
    epochs = table((1, 0), (2, 0))
    epochs.adopt(starts((2, 0), (3, 800)), 1000)
    assert epochs.entries == starts((2, 0), (3, 800))
    epochs = table((1, 0), (2, 600), (3, 600))
    epochs.adopt(
        starts(
            (3, 600),
        ),
        1000,
    )
    assert epochs.entries == starts((1, 0), (3, 600))


def test_the_table_is_bounded() -> None:
    entries = [(1, 0), (2, 10), (3, 10)] + [(number, number * 10) for number in range(4, MAX_EPOCHS + 3)]
    epochs = table()
    epochs.adopt(starts(*entries), 1 << 40)
    # The one without messages goes first, then the oldest.
    assert len(epochs.entries) == MAX_EPOCHS
    assert epochs.entries[:2] == starts((3, 10), (4, 40))
    assert parse_epochs(encode_epochs(epochs.entries)) == epochs.entries
