"""Modes of topics that an operator set at run time, in a file, so that they survive a restart.

An override takes precedence over the mode of the topic's rule until it is cleared. Moves have their own file
(`cutover/move_file.py`).
"""

from collections.abc import Mapping
from typing import Any

import trio

from gateway.runtime.config_file import SmallFiles
from gateway.runtime.run_blocking import RunBlocking
from gateway.runtime.state_file import StateFile
from gateway.shadow.mirror.settings import MODES


class ModeOverrides:
    """The overrides by topic, in `modes`. Without a path they are in memory only.

    Raises SettingsError for a file that cannot be read.
    """

    def __init__(
        self, files: SmallFiles, path: str, run_blocking: RunBlocking = trio.to_thread.run_sync
    ) -> None:
        self._file = StateFile(files, path, "the modes of topics", run_blocking)
        self.modes: Mapping[str, str] = self._file.read(_parse_modes) or {}

    async def save_mode(self, topic: str, mode: str) -> None:
        """Save the mode of a topic; "" removes its override. One call at a time.

        Raises OSError or StoreFull, and then nothing has changed.
        """
        after = {**self.modes, topic: mode}
        if not mode:
            del after[topic]
        await self._file.write(modes=after)
        self.modes = after


def _parse_modes(value: Any) -> dict[str, str]:
    """Return the modes in a file's content. Raises ValueError, TypeError or KeyError when they are malformed."""
    modes = {str(topic): str(mode) for topic, mode in value["modes"].items()}
    unknown = [mode for mode in modes.values() if mode not in MODES]
    if unknown:
        raise ValueError(f"unknown mode {unknown[0]!r}")
    return modes
