"""Detects that files were changed or replaced, by comparing their times, sizes and inodes at each call."""

import os
from collections.abc import Iterable
from pathlib import Path


class FileWatch:
    """Watches files from its construction on. Construct it before the files are read."""

    def __init__(self, files: Iterable[str | Path]) -> None:
        self._files = tuple(files)
        self._states = self._present_states()

    def has_changed(self) -> bool:
        """Return True if a file has changed, appeared or disappeared since the last call."""
        before, self._states = self._states, self._present_states()
        return before != self._states

    def _present_states(self) -> list[object]:
        return [_state_of(file) for file in self._files]


def _state_of(file: str | Path) -> object:
    """Return a value that differs when a file was changed or replaced; None for one that is not there."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
