"""Runs a coroutine at once, without a task, until it has to wait: a task costs more than most calls.

A function that has to wait awaits `enter_task` first. Until then it must not touch trio's cancel scopes, events or
locks, because these belong to a task.
"""

import types
from collections.abc import Coroutine, Generator
from typing import Any, Final, Generic, TypeVar

Result = TypeVar("Result")

_NEEDS_TASK: Final = object()
_running: list["EagerCall[Any]"] = []
"""The calls that run without a task now: one, or those that it began."""


class EagerCall(Generic[Result]):
    """A coroutine that runs without a task, and in the caller's task once it has to wait.

    ``is_done`` is True once it has returned, and ``result`` is what it returned.
    """

    __slots__ = ("_coroutine", "is_done", "result")

    def __init__(self, coroutine: Coroutine[Any, Any, Result]) -> None:
        self._coroutine = coroutine
        self.is_done = False
        self.result: Result

    def run(self) -> bool:
        """Run the coroutine until it has to wait; return True if it has returned. Raises what it raises."""
        _running.append(self)
        try:
            request = self._coroutine.send(None)
        except StopIteration as end:
            self.is_done, self.result = True, end.value
            return True
        finally:
            _running.pop()
        if request is not _NEEDS_TASK:
            self._coroutine.close()
            raise RuntimeError("a call without a task has to wait, and did not enter one")
        return False

    async def finish(self) -> Result:
        """Run the rest of the coroutine in the task of the caller, and return its result."""
        return await self._rest()

    @types.coroutine
    def _rest(self) -> Generator[Any, Any, Result]:
        # By hand: `await` refuses a coroutine that has begun.
        resume, argument = self._coroutine.send, None
        while True:
            try:
                trap = resume(argument)
            except StopIteration as end:
                result: Result = end.value
                return result
            try:
                resume, argument = self._coroutine.send, (yield trap)
            except BaseException as error:  # noqa: BLE001 - the coroutine's to handle
                resume, argument = self._coroutine.throw, error

    def close(self) -> None:
        """Give up a coroutine that has not returned."""
        self._coroutine.close()


@types.coroutine
def _ask_for_task() -> Generator[Any, Any, None]:
    yield _NEEDS_TASK


async def enter_task() -> None:
    """Make sure that the caller runs in a task: before anything that waits."""
    if _running:
        await _ask_for_task()
