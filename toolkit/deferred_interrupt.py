"""Ctrl-C that waits until a step of work is whole."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self


class DeferredInterrupt:
    """Within the block, Ctrl-C during a step raises KeyboardInterrupt after it; a second Ctrl-C does so at once.

    Otherwise a signal that arrives when a write returns is raised before the program can note that it wrote. The second
    one ends a step that blocks, such as a write to a full pipe. Does nothing outside of the main thread, which alone
    gets signals, or where SIGINT is ignored.
    """

    def __init__(self) -> None:
        self._is_in_step = False
        self._is_pending = False
        self._is_installed = False

    def __enter__(self) -> Self:
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            self._is_installed = True
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Do the work of the block whole, unless it fails."""
        self._is_in_step = True
        try:
            yield
        finally:
            self._is_in_step = False
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_in_step and not self._is_pending:
            self._is_pending = True
        else:
            signal.default_int_handler(number, frame)
