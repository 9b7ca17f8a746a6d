"""Test helpers: hand-made exchanges, and an in-memory folder whose disk may stall or be full."""

import errno
from collections.abc import Callable
from typing import Any

import trio

from codec.capture import Damage, read_index, scan_records
from codec.command import Command, encode_command
from codec.properties import encode_properties
from gateway.shadow.capture.files import SUFFIX
from gateway.shadow.traffic.exchange import Exchange

EPOCH_MS = 1_700_000_000_000


def send_fields(
    topic: str = "orders",
    queue_id: int = 0,
    *,
    properties: dict[str, str] | None = None,
    sys_flag: int = 0,
    group: str = "PID",
) -> dict[str, str]:
    """Return the header fields of a send."""
    text = encode_properties(properties or {}).decode()
    return {
        "a": group, "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": str(sys_flag),
        "g": str(EPOCH_MS), "h": "0", "i": text,
    }  # fmt: skip


def frame(
    code: int,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    *,
    opaque: int = 1,
    flag: int = 0,
    binary: bool = False,
) -> bytes:
    """Return the frame of a request, or of an answer with flag 1."""
    return encode_command(Command(code, opaque, flag, ext, body, binary=binary))


def exchange(
    code: int = 310,
    ext: dict[str, str] | None = None,
    body: bytes = b"hello",
    *,
    answer: tuple[Any, ...] | None = (),
    at_s: float = 0.0,
    took_s: float = 0.002,
    **more: Any,
) -> Exchange:
    """Return an exchange requested at this second; ``answer`` is (code, ext, body), or None."""
    fields = send_fields() if ext is None else ext
    answered = None if answer is None else frame(*(answer or (0, {"queueOffset": "0"})), flag=1)
    return Exchange(
        code,
        frame(code, fields, body),
        answered,
        **{
            "connection": 1, "client": "10.0.0.1:50000", "upstream": "10.0.0.9:10911", "broker": "broker-a",
            "wall_ms": EPOCH_MS + round(at_s * 1000), "asked_s": at_s, "forwarded_s": at_s + 0.0001,
            "answered_s": at_s + took_s, **more,
        },
    )  # fmt: skip


class MemoryFile:
    def __init__(self, folder: "MemoryFolder") -> None:
        self._folder = folder
        self.data = bytearray()
        self.synced = 0
        self.closed = False

    def write(self, data: bytes) -> None:
        room = self._folder.room - sum(len(each.data) for each in self._folder.files.values())
        self.data += data[: max(room, 0)]
        if len(data) > room:
            raise OSError(errno.ENOSPC, "no room")

    def truncate(self, size_bytes: int) -> None:
        if self._folder.cannot_truncate:
            raise OSError(errno.EIO, "broken")
        del self.data[size_bytes:]

    def sync(self) -> None:
        self.synced += 1

    def close(self) -> None:
        self.closed = True


class MemoryFolder:
    """A folder in memory with space for `room` bytes."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.room = room
        self.files: dict[str, MemoryFile] = {}
        self.cannot_truncate = False

    def create(self, name: str) -> MemoryFile:
        if name in self.files:
            raise FileExistsError(name)
        self.files[name] = MemoryFile(self)
        return self.files[name]

    def sizes(self) -> dict[str, int]:
        return {name: len(self.files[name].data) for name in sorted(self.files) if name.endswith(SUFFIX)}

    def delete(self, name: str) -> None:
        self.files.pop(name, None)

    def free_bytes(self) -> int:
        return self.room - sum(len(each.data) for each in self.files.values())

    # -- for tests

    def content(self) -> list[Any]:
        """Return every record and damage, oldest first."""
        return [each for name in sorted(self.files) for each in scan_records(bytes(self.files[name].data))]

    def records(self) -> list[Any]:
        found = self.content()
        assert not [each for each in found if isinstance(each, Damage)]
        return found

    def closed(self) -> list[bool]:
        """Return for each file whether it was closed with an index."""
        return [read_index(bytes(self.files[name].data)) is not None for name in sorted(self.files)]


class StallingDisk:
    """Runs blocking work, which does not return while the disk stalls."""

    def __init__(self) -> None:
        self._free = trio.Event()
        self._free.set()

    def stall(self) -> None:
        self._free = trio.Event()

    def resume(self) -> None:
        self._free.set()

    async def run_blocking(self, work: Callable[[], Any]) -> Any:
        await self._free.wait()
        await trio.lowlevel.checkpoint()
        return work()
