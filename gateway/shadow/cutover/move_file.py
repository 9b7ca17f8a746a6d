"""All moves, kept in one file that is replaced at each step, so that nothing is lost with the process.

Not responsible for what a step takes (mover) nor for who is told of it (director).
"""

from collections.abc import Iterator
from typing import Any

import trio

from gateway.runtime.config_file import SmallFiles
from gateway.runtime.run_blocking import RunBlocking
from gateway.runtime.state_file import StateFile
from gateway.shadow.console.errors import OperationRefused
from gateway.shadow.cutover.moves import Move


class MoveFile:
    """Moves by topic, and topics that went back, with when they did. A step counts when `put` has returned, of which
    one runs at a time.

    Without a path there are none.
    """

    def __init__(
        self, files: SmallFiles, path: str, run_blocking: RunBlocking = trio.to_thread.run_sync
    ) -> None:
        self._file = StateFile(files, path, "the state of moves", run_blocking)
        self._moves = self._file.read(_parse_moves) or {}

    def __iter__(self) -> Iterator[Move]:
        return iter(self._moves.values())

    def get_move(self, topic: str) -> Move:
        """The move of a topic; MIRRORING when nothing is written about it."""
        return self._moves.get(topic) or Move(topic)

    async def save_move(self, move: Move) -> None:
        """Write a move to the file.

        Raises OSError or StoreFull, and then nothing has changed; OperationRefused when there is no file.
        """
        if not self._file.path:
            raise OperationRefused(
                "[cutover] state_file is not set: where a topic is must outlive the gateway"
            )
        after = {**self._moves, move.topic: move}
        if not move.is_under_way and not move.ends:
            del after[move.topic]
        await self._file.write(moves=[each.to_dict() for each in after.values()])
        self._moves = after


def _parse_moves(value: Any) -> dict[str, Move]:
    moves = [Move.from_dict(each) for each in value["moves"]]
    return {move.topic: move for move in moves}
