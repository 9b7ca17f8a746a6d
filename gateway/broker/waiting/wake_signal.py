"""A signal that wakes one sleeping task before its deadline."""

import trio


class WakeSignal:
    """An event that one task waits for with a timeout, and that can be used again.

    The task clears the signal before it checks for work, so a signal that is set after the check ends its sleep.
    """

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        """Wake the sleeping task, or end its next sleep at once."""
        self._event.set()

    def clear(self) -> None:
        """Forget earlier wake-ups."""
        self._event = trio.Event()

    async def wait(self, timeout_s: float) -> bool:
        """Sleep until the signal is set or the timeout has passed; return True when it was set."""
        with trio.move_on_after(timeout_s):
            await self._event.wait()
        return self._event.is_set()
