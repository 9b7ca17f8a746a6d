"""Tells whether a store is open, by which process, and how its last run ended."""

import fcntl
import os
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_FLOCK: Final = struct.Struct("hhlli")  # struct flock of Linux: type, whence, start, length, pid
_MAX_COMMAND_CHARS: Final = 200


class StoreState(StrEnum):
    """OPEN: a broker has it open. CRASHED: the last run did not close it. CLOSED: it was closed in order."""

    OPEN = "open"
    CRASHED = "crashed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class OpenState:
    """``pid`` and ``command`` are those of the broker; 0 and empty if it runs in another container or on no Linux."""

    state: StoreState
    pid: int = 0
    command: str = ""

    @property
    def may_change(self) -> bool:
        """True while a broker may write to the store."""
        return self.state is StoreState.OPEN

    @property
    def is_end_settled(self) -> bool:
        """True if log and queues are known to end together: no broker writes, and none was killed."""
        return self.state is StoreState.CLOSED


def find_open_state(root: str) -> OpenState:
    """Return the state of the store in ``root``, without locking it.

    A process that has a store open itself must not call this: closing the lock file would release its lock.
    Source: DefaultMessageStore.start and isTempFileExist, 5.4.0: byte 0 of ``lock``, and the file ``abort``.
    """
    try:
        fd = os.open(f"{root}/lock", os.O_RDONLY)
    except FileNotFoundError:
        holder = None
    else:
        try:
            holder = _lock_holder(fd)
        finally:
            os.close(fd)
    if holder is not None:
        return OpenState(StoreState.OPEN, holder, _command_of(holder))
    return OpenState(StoreState.CRASHED if os.path.exists(f"{root}/abort") else StoreState.CLOSED)


def _lock_holder(fd: int) -> int | None:
    """Return the process that holds byte 0 of a lock file, 0 for one that is not visible; None without one."""
    wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, wanted))
    return None if kind == fcntl.F_UNLCK else max(0, pid)


def _command_of(pid: int) -> str:
    """Return the command line of a process; empty if it cannot be read."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()[:_MAX_COMMAND_CHARS]
    except OSError:
        return ""
