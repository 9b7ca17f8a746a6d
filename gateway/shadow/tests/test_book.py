import pytest

from gateway.shadow.cutover.book import Book
from gateway.shadow.cutover.machine import Ends, Move, Refused, State
from gateway.shadow.settings import SettingsError
from storage.files import DiskFiles, MemoryFiles

PATH = "/shadow/moves.json"


@pytest.mark.parametrize("files", ["disk", "memory"])
def test_moves_are_there_again_after_a_start(files, tmp_path):
    files = DiskFiles() if files == "disk" else MemoryFiles()
    path = str(tmp_path / "cutover" / "moves.json")
    book = Book(files, path)
    move = Move("t", State.PRODUCERS_SWITCHED, {"g": State.DRAINED})
    book.put(move)
    assert list(Book(files, path)) == [move]
    assert Book(files, path).get("t") == move
    assert Book(files, path).get("other") == Move("other")


def test_a_topic_that_went_back_is_forgotten():
    files = MemoryFiles()
    book = Book(files, PATH)
    book.put(Move("t", State.CAUGHT_UP))
    book.put(Move("t", State.MIRRORING))
    assert list(book) == list(Book(files, PATH)) == []
    back = Move("t", State.MIRRORING, ends={"b/0": Ends(1, 1)}, since_ms=7)
    book.put(back)
    assert list(Book(files, PATH)) == [back]


def test_a_step_that_cannot_be_written_did_not_happen():
    class Full(MemoryFiles):
        def write_small(self, path, data):
            raise OSError("no room")

    book = Book(Full(), PATH)
    with pytest.raises(OSError, match="no room"):
        book.put(Move("t", State.CAUGHT_UP))
    assert book.get("t").state is State.MIRRORING


@pytest.mark.parametrize("data", [b"{", b'{"format": 2, "moves": []}', b'{"format": 1, "moves": [{}]}'])
def test_a_file_that_cannot_be_read_is_not_taken_for_an_empty_one(data):
    files = MemoryFiles()
    files.write_small(PATH, data)
    with pytest.raises(SettingsError, match=r"moves\.json: the state of moves cannot be read"):
        Book(files, PATH)


def test_without_a_file_nothing_can_be_moved():
    book = Book(MemoryFiles(), "")
    with pytest.raises(Refused, match="state_file is not set"):
        book.put(Move("t", State.CAUGHT_UP))
