"""Modes of topics that were set while running, in a file that is replaced at each change: they outlive the gateway.

They go before the rules' modes until they are reset. Not responsible for what a mode does, nor for moves, which keep a
file of their own.
"""

from collections.abc import Mapping
from typing import Any

import trio

from gateway.runtime.config_file import SmallFiles
from gateway.runtime.run_blocking import RunBlocking
from gateway.runtime.state_file import StateFile
from gateway.shadow.mirror.settings import MODES


class ModeOverrides:
    """`modes` by topic. Without a path they are in memory only. Raises SettingsError for a file that cannot be read."""

    def __init__(
        self, files: SmallFiles, path: str, run_blocking: RunBlocking = trio.to_thread.run_sync
    ) -> None:
        self._file = StateFile(files, path, "the modes of topics", run_blocking)
        self.modes: Mapping[str, str] = self._file.read(_parse_modes) or {}

    async def save_mode(self, topic: str, mode: str) -> None:
        """Writes a topic's mode down, or with "" that it has none; one at a time.

        Raises OSError, StoreFull; then nothing changed.
        """
        after = {**self.modes, topic: mode}
        if not mode:
            del after[topic]
        await self._file.write(modes=after)
        self.modes = after


def _parse_modes(value: Any) -> dict[str, str]:
    """Raises ValueError and others for what is no table of modes."""
    modes = {str(topic): str(mode) for topic, mode in value["modes"].items()}
    unknown = [mode for mode in modes.values() if mode not in MODES]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no mode")
    return modes
