"""A file whose content is always whole."""

import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.namesrv.text_file import RETRY_PAUSE_S, AtomicTextFile, CoalescedFile, StoreFailed


def test_the_previous_content_remains_as_a_backup(tmp_path: Path) -> None:
    path = tmp_path / "made" / "kvConfig.json"
    file = AtomicTextFile(str(path))
    assert file.read() is None
    file.write(b"one")
    file.write(b"two")
    assert file.read() == b"two"
    assert (tmp_path / "made" / "kvConfig.json.bak").read_bytes() == b"one"
    assert sorted(each.name for each in path.parent.iterdir()) == ["kvConfig.json", "kvConfig.json.bak"]


@pytest.mark.parametrize("left", [None, b""])
def test_the_backup_stands_in(tmp_path: Path, left: bytes | None) -> None:
    """A crash between the two renames leaves only the backup."""
    (tmp_path / "f.bak").write_bytes(b"old")
    if left is not None:
        (tmp_path / "f").write_bytes(left)
    assert AtomicTextFile(str(tmp_path / "f")).read() == b"old"


def test_a_full_disk_leaves_the_content_and_no_part_of_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = AtomicTextFile(str(tmp_path / "kvConfig.json"))
    file.write(b"old")

    def refuse(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="No space left"):
            file.write(b"new")
    assert file.read() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["kvConfig.json"]
    file.write(b"newer")
    assert file.read() == b"newer"


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file"):
        AtomicTextFile(str(tmp_path / "file" / "f")).write(b"x")


# -- writes that share a trip to the disk ---------------------------------------------------------------------------


class Disk:
    """A file whose writes end when they are let go, or fail."""

    path = "/somewhere/kvConfig.json"

    def __init__(self) -> None:
        self.contents: list[bytes] = []
        self.fault: Exception | None = None
        self.let_go = trio.Event()
        self.running = 0

    def read(self) -> bytes | None:
        return None

    def write(self, data: bytes) -> None:
        if self.fault is not None:
            raise self.fault
        self.contents.append(data)

    async def run_blocking(self, work: Callable[[], Any]) -> Any:
        self.running += 1
        assert self.running == 1, "one write at a time"
        await self.let_go.wait()
        self.running -= 1
        return work()


class Table:
    """A table on that disk."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.value = 0
        self.file = CoalescedFile(self.disk, self.take_content, self.disk.run_blocking)
        self.stored: list[int] = []
        self.failed: list[str] = []

    def take_content(self) -> Callable[[], bytes]:
        value = self.value
        return lambda: str(value).encode()

    async def change(self) -> None:
        self.value += 1
        value = self.value
        try:
            await self.file.request_write().wait()
        except StoreFailed as failure:
            self.failed.append(str(failure))
        else:
            assert int(self.disk.contents[-1]) >= value, "the answer comes after the change is on the disk"
            self.stored.append(value)


def with_table(
    test: Callable[[Table, trio.Nursery], Awaitable[None]], clock: MockClock | None = None
) -> Table:
    table = Table()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(table.file.run)
            await test(table, nursery)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)
    return table


def test_a_flood_of_changes_shares_writes() -> None:
    async def test(table: Table, nursery: trio.Nursery) -> None:
        async with trio.open_nursery() as changes:
            changes.start_soon(table.change)
            await wait_all_tasks_blocked()
            for _ in range(1_000):
                changes.start_soon(table.change)
            await wait_all_tasks_blocked()
            assert table.stored == []
            table.disk.let_go.set()

    table = with_table(test)
    assert table.disk.contents == [b"1", b"1001"]
    assert sorted(table.stored) == list(range(1, 1_002))


def test_a_failed_write_is_told_to_all_who_wait_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(table: Table, nursery: trio.Nursery) -> None:
        table.disk.let_go.set()
        table.disk.fault = OSError(28, "No space left on device")
        for _ in range(2):
            async with trio.open_nursery() as changes:
                for _ in range(3):
                    changes.start_soon(table.change)
        table.disk.fault = None
        await table.change()

    table = with_table(test)
    assert len(table.failed) == 6
    assert "No space left" in table.failed[0]
    assert table.disk.contents == [b"7"], "the table keeps what could not be written"
    assert [each.message for each in caplog.records] == ["file cannot be written"]


def test_a_change_whose_requester_is_gone_is_written() -> None:
    async def test(table: Table, nursery: trio.Nursery) -> None:
        async with trio.open_nursery() as changes:
            changes.start_soon(table.change)
            await wait_all_tasks_blocked()
            changes.cancel_scope.cancel()
        table.disk.let_go.set()
        await wait_all_tasks_blocked()
        assert table.disk.contents == [b"1"]

    with_table(test)


def test_the_end_writes_what_is_left() -> None:
    async def test(table: Table, nursery: trio.Nursery) -> None:
        table.disk.let_go.set()
        table.value = 5
        table.file.request_write()

    assert with_table(test).disk.contents == [b"5"]


def test_a_table_whose_change_was_undone_is_written_again_after_a_pause() -> None:
    """The write may have failed after the file got its content, so that the file has the undone change."""

    async def test(table: Table, nursery: trio.Nursery) -> None:
        table.disk.fault = OSError(errno.EIO, os.strerror(errno.EIO))
        table.disk.let_go.set()
        await table.change()
        table.disk.fault = None
        table.value = 0
        await trio.sleep(RETRY_PAUSE_S + 1)
        assert table.disk.contents == [b"0"]
        await trio.sleep(3 * RETRY_PAUSE_S)
        assert table.disk.contents == [b"0"]

    with_table(test, MockClock(autojump_threshold=0))
