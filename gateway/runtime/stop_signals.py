"""SIGTERM and SIGINT as events of the event loop."""

import logging
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import FrameType
from typing import Final

import trio

log = logging.getLogger(__name__)

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """The first signal asks for an orderly stop, the second for one that does not wait for peers; more do nothing.

    The handlers stay for the rest of the process's life, so that no signal interrupts the closing of a store.
    """

    def __init__(self) -> None:
        self.first = trio.Event()
        self.second = trio.Event()
        self.names: list[str] = []
        self._token: trio.lowlevel.TrioToken | None = None

    def install(self) -> None:
        """Install the handlers. Call it inside trio.run, in the main thread."""
        self._token = trio.lowlevel.current_trio_token()
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        # The loop may have ended already.
        with suppress(trio.RunFinishedError):
            assert self._token is not None
            self._token.run_sync_soon(self.record_signal, number)

    def record_signal(self, number: int) -> None:
        """Record one signal and set the event for it."""
        self.names.append(signal.Signals(number).name)
        (self.second if self.first.is_set() else self.first).set()

    async def run_until_second_signal(self, stop: Callable[[], Awaitable[None]]) -> None:
        """Run the orderly stop after the first signal; cancel it when the second one arrives."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_at_second, nursery.cancel_scope)
            await stop()
            nursery.cancel_scope.cancel()

    async def _cancel_at_second(self, stopping: trio.CancelScope) -> None:
        await self.second.wait()
        log.info("stopping at once", extra={"signal": self.names[1]})
        stopping.cancel()
