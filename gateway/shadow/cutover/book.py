"""All moves, kept in one file that is replaced at each step, so that nothing is lost with the process.

Not responsible for what a step takes (mover) nor for who is told of it (director).
"""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from gateway.shadow.cutover.machine import Move, Refused
from gateway.shadow.settings import SettingsError

FORMAT: Final = 1


class SmallFiles(Protocol):
    """What the book needs of a file system."""

    def read_small(self, path: str) -> bytes | None:
        """The whole file, None when there is none."""

    def write_small(self, path: str, data: bytes) -> None:
        """Replaces the file: after a crash it holds the old content or the new. Raises OSError, StoreFull."""


class Book:
    """Moves by topic, and topics that went back, with when they did. A step counts when `put` has returned.

    Without a path there are none.
    """

    def __init__(self, files: SmallFiles, path: str) -> None:
        self._files = files
        self._path = path
        self._moves = self._read()

    def _read(self) -> dict[str, Move]:
        data = self._files.read_small(self._path) if self._path else None
        if not data:
            return {}
        try:
            value = json.loads(data)
            if value["format"] != FORMAT:
                raise ValueError(f"format {value['format']} is not {FORMAT}")
            moves = [Move.from_dict(each) for each in value["moves"]]
        except (KeyError, TypeError, ValueError) as problem:
            raise SettingsError(
                f"{os.path.basename(self._path)}: the state of moves cannot be read: {problem}"
            ) from problem
        return {move.topic: move for move in moves}

    def __iter__(self) -> Iterator[Move]:
        return iter(self._moves.values())

    def get(self, topic: str) -> Move:
        """The move of a topic; MIRRORING when nothing is written about it."""
        return self._moves.get(topic) or Move(topic)

    def put(self, move: Move) -> None:
        """Writes a move down. Raises OSError, StoreFull, and then nothing has changed; Refused without a file."""
        if not self._path:
            raise Refused("[cutover] state_file is not set: where a topic is must outlive the gateway")
        after = {**self._moves, move.topic: move}
        if not move.under_way and not move.ends:
            del after[move.topic]
        self._write(after)
        self._moves = after

    def _write(self, moves: Mapping[str, Move]) -> None:
        value = {"format": FORMAT, "moves": [move.to_dict() for move in moves.values()]}
        self._files.write_small(self._path, json.dumps(value, indent=1).encode())
