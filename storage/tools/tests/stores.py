"""Small stores on disk for the tests of the tools, and damage done to them."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.append import NewMessage
from storage.config import StoreConfig
from storage.files import DiskFiles
from storage.store import MessageStore
from storage.tests.support import FakeClock, small_config
from storage.tools.findings import StoreFinding
from storage.tools.store_reader import StoreReader
from storage.tools.verify import Verification

COUNT = 200
LOG_FILE_BYTES = 8192


class NamedBootFiles(DiskFiles):
    """Files of a machine whose boot has a name, wherever the tests run."""

    def boot_id(self) -> str:
        return "boot"


def disk_config(root: Path, **changes: object) -> StoreConfig:
    """Build settings of a small store on disk."""
    settings: dict[str, object] = {"root": str(root), "index_slots": 64, "index_entries": 4096}
    return small_config(**(settings | changes))


def open_store(root: Path, clock: FakeClock | None = None, **changes: object) -> MessageStore:
    return MessageStore.open(disk_config(root, **changes), NamedBootFiles(), clock or FakeClock())


def fill(store: MessageStore, count: int = COUNT, start: int = 0) -> None:
    """Append messages to queues t 0, t 1 and other 0 in turn, with tags and keys."""
    for number in range(start, start + count):
        topic, queue_id = (("t", 0), ("t", 1), ("other", 0))[number % 3]
        properties = b"KEYS\x01k%d\x02TAGS\x01tag%d\x02UNIQ_KEY\x01%032X\x02" % (number, number % 4, number)
        store.append(NewMessage(topic, queue_id, b"body %d" % number, properties))


def make_store(root: Path, count: int = COUNT) -> Path:
    """Write a store of three queues and close it; return its folder."""
    clock = FakeClock()
    store = open_store(root, clock)
    for number in range(count):
        fill(store, 1, number)
        clock.advance(100)
    store.close()
    return root


def kill_store(store: MessageStore) -> None:
    """Leave a store as a killed broker does."""
    store.close(clean=False)


def flip_bit(path: Path, position: int, bit: int = 2) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def log_file(root: Path, number: int = 0) -> Path:
    return root / "commitlog" / f"{number * LOG_FILE_BYTES:020d}"


def queue_file(root: Path, topic: str = "t", queue_id: int = 0, number: int = 0) -> Path:
    return root / "consumequeue" / topic / str(queue_id) / f"{number * 100:020d}"


def index_file(root: Path) -> Path:
    return next((root / "index").iterdir())


def verify(root: Path, **changes: object) -> tuple[Verification, list[StoreFinding]]:
    """Verify a store and return the check with its findings."""
    reader = StoreReader(disk_config(root, **changes))
    try:
        verification = Verification(reader, lambda done: None)
        return verification, list(verification.run())
    finally:
        reader.close()


def damage_of(root: Path, **changes: object) -> list[StoreFinding]:
    return [finding for finding in verify(root, **changes)[1] if finding.is_damage]


def snapshot(root: Path) -> dict[str, bytes]:
    """Return the content of all files."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


_WRITER = """
import sys
from pathlib import Path
from storage.tools.tests.stores import fill, open_store
store = open_store(Path(sys.argv[1]))
fill(store, 30, 1000)
print("open", flush=True)
number = 2000
while sys.stdin.readline():
    fill(store, 30, number)
    number += 30
    print("more", flush=True)
store.close()
"""


@contextmanager
def open_elsewhere(root: Path) -> "Iterator[subprocess.Popen[str]]":
    """Keep a store open in another process: locks are not seen by the process that holds them.

    A line sent to it makes it append 30 messages; it answers with a line.
    """
    command = [sys.executable, "-c", _WRITER, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            yield process
        finally:
            process.kill()


def append_more(process: "subprocess.Popen[str]") -> None:
    """Let the process of `open_elsewhere` append 30 messages."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "more\n"
