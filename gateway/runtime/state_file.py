"""A small JSON file with a format number that is replaced as a whole at each change: state that survives restarts."""

import json
import os
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import trio

from gateway.runtime.config_file import SmallFiles
from gateway.runtime.run_blocking import RunBlocking
from toolkit.settings import SettingsError

FORMAT: Final = 1

State = TypeVar("State")


def absolute_path(path: str) -> str:
    """Return the absolute path of a configured file, with ~ expanded; empty stays empty."""
    return path and os.path.abspath(os.path.expanduser(path))


class StateFile:
    """A state file. Without a path nothing is read or written.

    `content_name` names its content in error messages; ``loss`` says what happens without the file.
    """

    def __init__(
        self,
        files: SmallFiles,
        path: str,
        content_name: str,
        run_blocking: RunBlocking = trio.to_thread.run_sync,
        *,
        loss: str,
    ) -> None:
        self._files = files
        self._run_blocking = run_blocking
        self._content_name = content_name
        self._loss = loss
        self.path = path

    def read(self, parse: Callable[[Any], State]) -> State | None:
        """Return the parsed content, None without a file. Raises SettingsError if it cannot be parsed.

        An empty file is not the same as none: it was torn, and its content would be forgotten without a word.
        """
        data = self._files.read_small(self.path) if self.path else None
        if data is None:
            return None
        try:
            if not data.strip():
                raise ValueError("it is empty")
            value = json.loads(data)
            if value["format"] != FORMAT:
                raise ValueError(f"format {value['format']} is not {FORMAT}")
            return parse(value)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as problem:
            reason = "it is nested too deeply" if isinstance(problem, RecursionError) else str(problem)
            if isinstance(problem, KeyError):
                reason = f"it has no {reason}"
            raise SettingsError(
                f"{self.path}: {self._content_name} cannot be read: {reason}. Restore the file from a copy, or "
                f"delete it; then {self._loss}"
            ) from None

    async def write(self, **content: Any) -> None:
        """Replace the file: after a crash it holds the old content or the new. Raises OSError, StoreFull.

        A cancelled call may still write the file. Make only one call at a time, so that the newest content is written
        last.
        """
        if self.path:
            data = json.dumps({"format": FORMAT, **content}, indent=1).encode()
            await self._run_blocking(partial(self._files.write_small, self.path, data))
