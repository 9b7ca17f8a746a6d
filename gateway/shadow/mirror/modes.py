"""Modes of topics that were set while running, in a file that is replaced at each change: they outlive the gateway.

They go before the rules' modes until they are reset. Not responsible for what a mode does, nor for moves, which keep a
file of their own.
"""

import json
import os
from collections.abc import Mapping
from typing import Final

from gateway.shadow.cutover.book import SmallFiles
from gateway.shadow.mirror.settings import MODES
from gateway.shadow.settings import SettingsError

FORMAT: Final = 1


class KeptModes:
    """`modes` by topic. Without a path they are in memory only. Raises SettingsError for a file that cannot be read."""

    def __init__(self, files: SmallFiles, path: str) -> None:
        self._files = files
        self._path = path
        self.modes: Mapping[str, str] = self._read()

    def _read(self) -> dict[str, str]:
        data = self._files.read_small(self._path) if self._path else None
        if not data:
            return {}
        try:
            value = json.loads(data)
            if value["format"] != FORMAT:
                raise ValueError(f"format {value['format']} is not {FORMAT}")
            modes = {str(topic): str(mode) for topic, mode in value["modes"].items()}
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            raise SettingsError(f"{os.path.basename(self._path)} cannot be read: {problem}") from problem
        unknown = [mode for mode in modes.values() if mode not in MODES]
        if unknown:
            raise SettingsError(f"{os.path.basename(self._path)}: {unknown[0]!r} is no mode")
        return modes

    def put(self, topic: str, mode: str) -> None:
        """Writes a topic's mode down, or with "" that it has none. Raises OSError, StoreFull; then nothing changed."""
        after = {**self.modes, topic: mode}
        if not mode:
            del after[topic]
        if self._path:
            value = {"format": FORMAT, "modes": after}
            self._files.write_small(self._path, json.dumps(value, indent=1).encode())
        self.modes = after
