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

    A broker process does not count signals (``counts_signals`` is False), because a Ctrl-C reaches both it and its
    supervisor. The supervisor counts, and ends the waiting for peers through `request_stop`.

    The handlers stay installed until the process ends, so that no signal interrupts the closing of a store.
    """

    def __init__(self, *, counts_signals: bool = True) -> None:
        self._counts_signals = counts_signals
        self.first = trio.Event()
        self.second = trio.Event()
        self.names: list[str] = []
        self._token: trio.lowlevel.TrioToken | None = None

    def install(self) -> None:
        """Install the handlers. Call it inside trio.run, in the main thread."""
        self._token = trio.lowlevel.current_trio_token()
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)
        # A supervisor starts its broker processes with these signals blocked, until this handler exists.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def _handle(self, number: int, _: FrameType | None) -> None:
        # The loop may have ended already.
        with suppress(trio.RunFinishedError):
            assert self._token is not None
            self._token.run_sync_soon(self.record_signal, number)

    def record_signal(self, number: int) -> None:
        """Record one signal and set the event for it."""
        self.request_stop(signal.Signals(number).name, at_once=self._counts_signals and self.first.is_set())

    def request_stop(self, reason: str, *, at_once: bool) -> None:
        """Have the effect of one signal or, with ``at_once``, of two; repeating it changes nothing.

        The log shows ``reason`` in place of the signal's name.
        """
        for event in (self.first, self.second) if at_once else (self.first,):
            if not event.is_set():
                self.names.append(reason)
                event.set()

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
