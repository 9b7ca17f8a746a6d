"""Full disks: sparse files on ext4, and tmpfs, where even reading a page that was never written takes room.

The system ends a process that touches such a page with SIGBUS, without a word. Each step is therefore a process of its
own, whose exit code is looked at.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.append import NewMessage
from storage.config import StoreConfig
from storage.errors import StoreFull
from storage.store import MessageStore
from storage.timer_store import TimerStore, TimerStoreConfig

DISK_MIB = 64
CONFIG = {"index_slots": 100_000, "index_entries": 400_000, "commit_log_file_bytes": 32 << 20}
QUEUES = 40


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    try_command("mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder))
    yield folder
    subprocess.run(["umount", "-l", str(folder)], timeout=30, check=True)


@pytest.fixture
def ext4_disk(tmp_path: Path) -> Iterator[Path]:
    image, folder = tmp_path / "image", tmp_path / "disk"
    image.write_bytes(b"")
    os.truncate(image, DISK_MIB << 20)
    folder.mkdir()
    try_command("mkfs.ext4", "-q", "-m", "0", str(image))
    try_command("mount", "-o", "loop", str(image), str(folder))
    yield folder
    subprocess.run(["umount", "-l", str(folder)], timeout=30, check=True)


def try_command(*command: str) -> None:
    """Run a command that makes a small disk; skip the test where that is not possible."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError as error:
        pytest.skip(f"cannot make a small disk: {error}")
    if done.returncode:
        pytest.skip(f"cannot make a small disk: {done.stderr.strip()}")


def run(step: str, disk: Path) -> subprocess.CompletedProcess[str]:
    """Run one of the steps below in a process of its own."""
    script = f"from storage.tests.test_disk_mapping import {step}; {step}({str(disk)!r})"
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def open_store(disk: str) -> tuple[MessageStore, TimerStore]:
    store = MessageStore.open(StoreConfig(root=f"{disk}/store", **CONFIG))
    timers = TimerStore(TimerStoreConfig(f"{disk}/store", f"{disk}/store/config"), store, "timers")
    return store, timers


def write_and_die(disk: str) -> None:
    """Store messages in many queues and a timer, and end without closing anything."""
    store, timers = open_store(disk)
    for number in range(QUEUES * 5):
        store.append(NewMessage("t", number % QUEUES, b"%d" % number, b"KEYS\x01k%d\x02" % number))
    store.build_index()
    now_ms = int(time.time() * 1000)
    due_ms = timers.slot_start_ms(now_ms + 3_600_000)
    size = len(store.message_at(0) or b"")
    timers.chain_message(
        due_ms, magic=1, write_ms=now_ms, physical_offset=0, size=size, topic_hash=0, due_ms=due_ms
    )
    timers.save_progress()
    os._exit(0)


def read_all(disk: str) -> None:
    """Open the store on the full disk, and print all that is in it."""
    store, timers = open_store(disk)
    messages = [
        store.read("t", queue, offset, 1).chunks[0]
        for queue in range(QUEUES)
        for offset in range(store.max_offset("t", queue))
    ]
    keys = [len(store.query_by_key("t", f"k{number}", 10, 0, 1 << 62)) for number in (0, 7, QUEUES * 5 - 1)]
    due_ms = timers.next_slot_ms() or 0
    for slot_ms in range(due_ms - 10_000_000, due_ms + 10_000_000, 100_000):
        timers.pending_records(slot_ms)
    print(
        json.dumps({"messages": len(messages), "keys": keys, "timers": timers.waiting_messages}), flush=True
    )
    os._exit(0)


def append_until_full(disk: str) -> None:
    """Append to all queues and to new ones until the store has no room for any, and read them again."""
    store, timers = open_store(disk)
    stored = 0
    for number in range(1_000_000):
        try:
            store.append(NewMessage("full", number % 500, bytes(3000), b""))
        except StoreFull:
            break
        stored += 1
    for number in range(60):
        try:
            store.append(NewMessage(f"t{number % 7}", number, bytes(10), b""))
        except StoreFull:
            continue
        stored += 1
    try:
        while store.build_index(10_000):
            pass
    except StoreFull:
        pass
    messages = sum(store.max_offset(*key) - store.min_offset(*key) for key in store.queue_keys())
    print(json.dumps(messages - QUEUES * 5 == stored), flush=True)
    os._exit(0)


def fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        while True:
            try:
                if not ballast.write(bytes(4096)):
                    return
            except OSError:
                return


def drop_reserved_space(disk: Path) -> None:
    """Leave the files as a broker does that reserves nothing ahead."""
    for path in [path for path in (disk / "store").rglob("*") if path.is_file()]:
        content = path.read_bytes()
        os.truncate(path, len(content.rstrip(b"\0")))
        os.truncate(path, len(content))


@pytest.mark.parametrize("reserved", [True, False])
def test_a_killed_store_is_opened_on_a_full_disk_and_everything_is_read(disk: Path, reserved: bool) -> None:
    written = run("write_and_die", disk)
    assert written.returncode == 0, written.stderr
    if not reserved:
        drop_reserved_space(disk)
    fill(disk)
    for _ in range(2):
        read = run("read_all", disk)
        if not reserved and "StoreFull" in read.stderr:
            assert "no room on disk for" in read.stderr
            continue
        assert read.returncode == 0, (read.returncode, read.stderr)
        assert json.loads(read.stdout) == {"messages": QUEUES * 5, "keys": [1, 1, 1], "timers": 1}


@pytest.mark.parametrize("reserved", [True, False])
def test_a_store_that_fills_the_disk_ends_no_process(disk: Path, reserved: bool) -> None:
    fill_and_read(disk, reserved)


@pytest.mark.parametrize("reserved", [True, False])
def test_a_store_that_fills_a_disk_of_sparse_files_ends_no_process(ext4_disk: Path, reserved: bool) -> None:
    fill_and_read(ext4_disk, reserved)


def fill_and_read(disk: Path, reserved: bool) -> None:
    assert run("write_and_die", disk).returncode == 0
    if not reserved:
        drop_reserved_space(disk)
    filled = run("append_until_full", disk)
    assert filled.returncode == 0, (filled.returncode, filled.stderr)
    assert json.loads(filled.stdout)
    fill(disk)
    read = run("read_all", disk)
    assert read.returncode == 0, (read.returncode, read.stderr)
    assert json.loads(read.stdout)["messages"] == QUEUES * 5
