"""The files of staged messages: whole or not there, and gone when they are old."""

import pytest

from storage.files import DiskFiles, MemoryFiles
from storage.staged import Intent, Mark, Piece, StagedFiles

PIECE = Piece("t", 3, 1, 99, b"\x7f\0\0\1\0\0\0\1", b"\x7f\0\0\1\0\0\0\2", b"some\nbody")


@pytest.fixture(params=[True, False])
def staged(request, tmp_path):
    return StagedFiles(MemoryFiles() if request.param else DiskFiles(), str(tmp_path))


def test_a_piece_comes_back_as_it_was(staged):
    staged.put("w", 1, "s", 0, PIECE.encode())
    staged.put("w", 1, "s", 0, PIECE.encode())
    assert Piece.decode(staged.piece("w", 1, "s", 0)) == PIECE
    assert staged.total_bytes() == staged.size("w", 1, "s", 0) == len(PIECE.encode())
    assert staged.piece("w", 1, "s", 1) is None
    assert staged.size("w", 2, "s", 0) is None
    assert staged.writers() == ["w"]


def test_a_batch_ends_with_its_mark(staged):
    assert staged.mark("w") is None
    assert staged.intent("w") is None
    for batch in (1, 2, 3):
        staged.put("w", batch, "s", 0, b"12345")
    intent = Intent(2, [("s", 1)], True, {"t": {"0": 7}})
    staged.begin("w", intent)
    assert staged.intent("w") == intent
    assert staged.end("w", Mark(2, True)) == 10
    assert staged.intent("w") is None
    assert staged.mark("w") == Mark(2, True)
    assert staged.piece("w", 3, "s", 0) == b"12345"


class OldFiles(MemoryFiles):
    def modified_ms(self, path):
        return 1_000


def test_old_pieces_and_marks_go_but_for_what_a_stream_needs():
    staged = StagedFiles(OldFiles(), "/s")
    staged.put("never-published", 0, "s", 0, b"123")
    for writer, stream in (("job", False), ("stream", True)):
        staged.end(writer, Mark(0, stream))
    staged.put("busy", 0, "s", 0, b"1")
    staged.begin("busy", Intent(0, [("s", 1)], False))
    assert staged.clean(1_000) == 0
    assert staged.clean(1_001) == 3
    assert staged.writers() == ["busy", "stream"]
    assert staged.clean(1_001) == 0
