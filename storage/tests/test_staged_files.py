"""Files of staged messages are written whole or not at all, and deleted when they are old."""

import random
from contextlib import nullcontext

import pytest

from storage.crash_files import CrashFiles, ProcessKilled
from storage.files import DiskFiles, MemoryFiles
from storage.staged_files import PublishedMark, PublishIntent, StagedFiles, StagedPart

PIECE = StagedPart("t", 3, 1, 99, b"\x7f\0\0\1\0\0\0\1", b"\x7f\0\0\1\0\0\0\2", b"some\nbody")


@pytest.fixture(params=[True, False])
def staged(request, tmp_path):
    return StagedFiles(MemoryFiles() if request.param else DiskFiles(), str(tmp_path))


def test_a_part_is_read_as_it_was_written(staged):
    staged.write_part("w", 1, "s", 0, PIECE.encode())
    staged.write_part("w", 1, "s", 0, PIECE.encode())
    assert StagedPart.decode(staged.read_part("w", 1, "s", 0)) == PIECE
    assert staged.total_bytes() == staged.part_bytes("w", 1, "s", 0) == len(PIECE.encode())
    assert staged.read_part("w", 1, "s", 1) is None
    assert staged.part_bytes("w", 2, "s", 0) is None
    assert staged.list_writers() == ["w"]


def test_finishing_a_batch_writes_its_mark(staged):
    assert staged.read_mark("w") is None
    assert staged.read_intent("w") is None
    for batch in (1, 2, 3):
        staged.write_part("w", batch, "s", 0, b"12345")
    intent = PublishIntent(2, [("s", 1)], True, {"t": {"0": 7}})
    staged.write_intent("w", intent)
    assert staged.read_intent("w") == intent
    assert staged.finish_batch("w", PublishedMark(2, True)) == 10
    assert staged.read_intent("w") is None
    assert staged.read_mark("w") == PublishedMark(2, True)
    assert staged.read_part("w", 3, "s", 0) == b"12345"


class OldFiles(MemoryFiles):
    def modified_ms(self, path):
        return 1_000


def test_old_parts_and_marks_are_deleted_except_marks_of_streams():
    staged = StagedFiles(OldFiles(), "/s")
    staged.write_part("never-published", 0, "s", 0, b"123")
    for writer, stream in (("job", False), ("stream", True)):
        staged.finish_batch(writer, PublishedMark(0, stream))
    staged.write_part("busy", 0, "s", 0, b"1")
    staged.write_intent("busy", PublishIntent(0, [("s", 1)], False))
    assert staged.delete_abandoned(1_000) == 0
    assert staged.delete_abandoned(1_001) == 3
    assert staged.list_writers() == ["busy", "stream"]
    assert staged.delete_abandoned(1_001) == 0


def test_a_process_killed_while_a_batch_is_finished_leaves_its_intent_or_its_mark():
    intent, mark = PublishIntent(1, [("s", 1)], False), PublishedMark(1, False)
    for steps in range(4):
        files = CrashFiles()
        staged = StagedFiles(files, "/s")
        staged.write_part("w", 1, "s", 0, b"12345")
        staged.write_intent("w", intent)
        files.operations_left = steps
        with pytest.raises(ProcessKilled) if steps < 3 else nullcontext():
            staged.finish_batch("w", mark)
        files = files.crash(random.Random(0), lose_unflushed=False)
        reopened = StagedFiles(files, "/s")
        assert reopened.read_mark("w") == mark or reopened.read_intent("w") == intent
        assert reopened.read_part("w", 1, "s", 0) == (b"12345" if steps < 3 else None)


@pytest.mark.parametrize("seed", range(20))
def test_power_lost_while_a_batch_is_finished_leaves_all_that_publishing_needs(seed):
    """Deleted files may be there again. Without the mark, the intent and all parts are."""
    intent, mark = PublishIntent(1, [("s", 2)], False), PublishedMark(1, False)
    for steps in range(5):
        files = CrashFiles()
        staged = StagedFiles(files, "/s")
        for number in range(2):
            staged.write_part("w", 1, "s", number, b"12345")
        staged.write_intent("w", intent)
        files.operations_left = steps
        with pytest.raises(ProcessKilled) if steps < 4 else nullcontext():
            staged.finish_batch("w", mark)
        reopened = StagedFiles(files.crash(random.Random(seed)), "/s")
        if reopened.read_mark("w") != mark:
            assert reopened.read_intent("w") == intent
            assert [reopened.read_part("w", 1, "s", number) for number in range(2)] == [b"12345"] * 2
