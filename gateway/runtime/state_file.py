"""A small file of what must outlive the gateway: JSON with the number of its format, replaced whole at each change.

Not responsible for what is kept, nor for when it changes.
"""

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


def full_path(path: str) -> str:
    """Where a file of the settings is, whatever the working directory becomes; empty stays empty."""
    return path and os.path.abspath(os.path.expanduser(path))


class StateFile:
    """`what` is in it, as errors name it. Without a path there is no file: nothing is read, and nothing written."""

    def __init__(
        self, files: SmallFiles, path: str, what: str, run_blocking: RunBlocking = trio.to_thread.run_sync
    ) -> None:
        self._files = files
        self._run_blocking = run_blocking
        self._what = what
        self.path = path

    def read(self, parse: Callable[[Any], State]) -> State | None:
        """What `parse` makes of the file's value; None when there is none. Raises SettingsError when it cannot."""
        data = self._files.read_small(self.path) if self.path else None
        if not data:
            return None
        try:
            value = json.loads(data)
            if value["format"] != FORMAT:
                raise ValueError(f"format {value['format']} is not {FORMAT}")
            return parse(value)
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            name = os.path.basename(self.path)
            raise SettingsError(f"{name}: {self._what} cannot be read: {problem}") from problem

    async def write(self, **content: Any) -> None:
        """Replaces the file: after a crash it holds the old content or the new. Raises OSError, StoreFull.

        Who is cancelled meanwhile has written it. One call at a time: the last content has to be the last one written.
        """
        if self.path:
            data = json.dumps({"format": FORMAT, **content}, indent=1).encode()
            await self._run_blocking(partial(self._files.write_small, self.path, data))
