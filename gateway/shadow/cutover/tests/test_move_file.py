import threading

import pytest
import trio
import trio.lowlevel

from gateway.http_server.errors import OperationRefused
from gateway.shadow.cutover.move_file import MoveFile
from gateway.shadow.cutover.moves import Move, MoveState, QueueEnds
from storage.files import DiskFiles, MemoryFiles
from toolkit.settings import SettingsError

PATH = "/shadow/moves.json"


def put(book, *moves):
    async def main():
        for move in moves:
            await book.save_move(move)

    trio.run(main)


@pytest.mark.parametrize("files", ["disk", "memory"])
def test_moves_survive_a_restart(files, tmp_path):
    files = DiskFiles() if files == "disk" else MemoryFiles()
    path = str(tmp_path / "cutover" / "moves.json")
    book = MoveFile(files, path)
    move = Move("t", MoveState.PRODUCERS_SWITCHED, {"g": MoveState.DRAINED})
    put(book, move)
    assert list(MoveFile(files, path)) == [move]
    assert MoveFile(files, path).get_move("t") == move
    assert MoveFile(files, path).get_move("other") == Move("other")


def test_rolled_back_topic_without_ends_is_removed():
    files = MemoryFiles()
    book = MoveFile(files, PATH)
    put(book, Move("t", MoveState.CAUGHT_UP), Move("t", MoveState.MIRRORING))
    assert list(book) == list(MoveFile(files, PATH)) == []
    back = Move("t", MoveState.MIRRORING, ends={"b/0": QueueEnds(1, 1)}, since_ms=7)
    put(book, back)
    assert list(MoveFile(files, PATH)) == [back]


def test_failed_write_changes_nothing():
    class Full(MemoryFiles):
        def write_small(self, path, data, backup=None):
            raise OSError("no room")

    book = MoveFile(Full(), PATH)
    with pytest.raises(OSError, match="no room"):
        put(book, Move("t", MoveState.CAUGHT_UP))
    assert book.get_move("t").state is MoveState.MIRRORING


MOVE = '{"topic": %s, "state": "MIRRORING", "groups": {}, "ends": %s, "since_ms": %s}'


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b'{"format": 2, "moves": []}',
        b'{"format": 1, "moves": [{}]}',
        # These three forgot all moves, or ended in a traceback.
        b"",
        b" \n",
        b"[" * 100_000,
        b'{"format": 1, "moves": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"format": 1, "moves": [%s]}' % (MOVE % ("[]", "{}", 1)).encode(),
        b'{"format": 1, "moves": [%s]}' % (MOVE % ('"t"', "{}", '"x"')).encode(),
        b'{"format": 1, "moves": [%s]}'
        % (MOVE % ('"t"', '{"a/0": {"primary": "1", "target": 2}}', 1)).encode(),
        b"\xff\xfe",
    ],
)
def test_unreadable_file_is_an_error(data):
    """The error names the file and what to do."""
    files = MemoryFiles()
    files.write_small(PATH, data)
    with pytest.raises(
        SettingsError, match=r"/shadow/moves\.json: the state of moves cannot be read"
    ) as error:
        MoveFile(files, PATH)
    assert "Restore the file from a copy, or delete it; then every topic counts as not moved" in str(
        error.value
    )


def test_moves_require_a_file():
    book = MoveFile(MemoryFiles(), "")
    with pytest.raises(OperationRefused, match="state_file is not set"):
        put(book, Move("t", MoveState.CAUGHT_UP))


class StallingFiles(MemoryFiles):
    """A disk that completes a write only when `go_on` is set."""

    __slots__ = ("go_on", "writing")

    def __init__(self):
        super().__init__()
        self.writing, self.go_on = threading.Event(), threading.Event()

    def write_small(self, path, data, backup=None):
        self.writing.set()
        assert self.go_on.wait(10)
        super().write_small(path, data)


async def begin_write(nursery, book, files, move):
    """Start to save a move, and return while the disk stalls."""
    nursery.start_soon(book.save_move, move)
    while not files.writing.is_set():
        await trio.lowlevel.checkpoint()


def test_step_counts_once_a_slow_disk_has_written_it():
    files = StallingFiles()
    book, move = MoveFile(files, PATH), Move("t", MoveState.CAUGHT_UP)

    async def main():
        async with trio.open_nursery() as nursery:
            await begin_write(nursery, book, files, move)
            assert not list(book)
            files.go_on.set()
        assert list(book) == [move]

    trio.run(main)


def test_cancelled_write_still_counts():
    files = StallingFiles()
    book, move = MoveFile(files, PATH), Move("t", MoveState.CAUGHT_UP)

    async def main():
        async with trio.open_nursery() as nursery:
            await begin_write(nursery, book, files, move)
            nursery.cancel_scope.cancel()
            files.go_on.set()

    trio.run(main)
    assert list(book) == list(MoveFile(files, PATH)) == [move]
