"""A time limit for which only the time counts in which the event loop runs.

A full garbage collection, a suspended machine, or a neighbour that takes the processor pauses the whole process. A
plain deadline passes meanwhile, and a peer that has answered long ago counts as silent: its answer is read after the
deadline. Here the limit is a row of short sleeps, of which a pause makes only one longer.
"""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Final, TypeVar

import trio

Result = TypeVar("Result")
SLEEPS: Final = 10
"""A pause of any length uses up this part of a limit."""


async def within_running_time(
    seconds: float,
    work: Callable[[], Awaitable[Result]],
    discard: Callable[[Result], object] = lambda result: None,
) -> Result:
    """Return what ``work`` returns. Raises its exceptions, and TooSlowError after ``seconds``, pauses left out.

    ``discard`` is called with the result if the caller is cancelled once ``work`` has returned.
    """
    results: list[Result] = []
    problems: list[Exception] = []

    async def end_in_time(scope: trio.CancelScope) -> None:
        for _ in range(SLEEPS):
            await trio.sleep(seconds / SLEEPS)
        scope.cancel()

    with ExitStack() as at_cancellation:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_in_time, nursery.cancel_scope)
            try:
                result = await work()
                results.append(result)
                at_cancellation.callback(discard, result)
            except Exception as problem:  # noqa: BLE001 - raised again below, without the nursery around it
                problems.append(problem)
            nursery.cancel_scope.cancel()
        at_cancellation.pop_all()
    if problems:
        try:
            raise problems[0]
        finally:
            problems.clear()
    if not results:
        raise trio.TooSlowError
    return results[0]
