"""All moves of a gateway in one file, which is replaced at each step so that no move is lost with the process.

`mover` decides about steps; `director` sends requests where the moves say.
"""

from collections.abc import Iterator
from typing import Any

import trio

from gateway.http_server.errors import OperationRefused
from gateway.runtime.config_file import SmallFiles
from gateway.runtime.run_blocking import RunBlocking
from gateway.runtime.state_file import StateFile
from gateway.shadow.cutover.moves import Move


class MoveFile:
    """The moves by topic, and the topics that were rolled back, with the queue ends of that moment.

    A step counts once `save_move` has returned; callers run one `save_move` at a time. Without a path there are no
    moves.
    """

    def __init__(
        self, files: SmallFiles, path: str, run_blocking: RunBlocking = trio.to_thread.run_sync
    ) -> None:
        loss = "every topic counts as not moved, and all requests go to the primary"
        self._file = StateFile(files, path, "the state of moves", run_blocking, loss=loss)
        self._moves = self._file.read(_parse_moves) or {}

    def __iter__(self) -> Iterator[Move]:
        return iter(self._moves.values())

    def get_move(self, topic: str) -> Move:
        """Return the move of a topic; one in state MIRRORING if none is stored."""
        return self._moves.get(topic) or Move(topic)

    async def save_move(self, move: Move) -> None:
        """Write a move to the file.

        Raises OSError or StoreFull, and then nothing has changed; OperationRefused when there is no file.
        """
        if not self._file.path:
            raise OperationRefused(
                "[cutover] state_file is not set: the states of moves must survive a restart of the gateway"
            )
        after = {**self._moves, move.topic: move}
        if not move.is_under_way and not move.ends and not move.is_read_only:
            del after[move.topic]
        await self._file.write(moves=[stored_move.to_dict() for stored_move in after.values()])
        self._moves = after


def _parse_moves(value: Any) -> dict[str, Move]:
    moves = [Move.from_dict(stored_move) for stored_move in value["moves"]]
    return {move.topic: move for move in moves}
