"""Child processes that never outlive this program, each in a session of its own.

Exit handlers kill children that still run. `exit_on_sigterm` and `interrupt_on_sigterm` make SIGTERM end this program
in a way that runs those handlers.
"""

import atexit
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

INTERRUPT_AGAIN_S = 2.0
_running: set["ChildProcess"] = set()


class ChildProcess:
    """A started process and its descendants; its output goes to the file `log`."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        _running.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self._process.poll()

    def pids(self) -> list[int]:
        """Return the ids of the process and its live descendants."""
        return descendants(self.pid) if self.exit_code() is None else []

    def wait(self, timeout_s: float) -> int:
        """Wait for the process to end by itself and return its exit code. Raises subprocess.TimeoutExpired."""
        code = self._process.wait(timeout_s)
        self.kill()
        return code

    def send_sigterm(self) -> None:
        """Send SIGTERM and return at once."""
        self._process.terminate()

    def terminate(self, timeout_s: float) -> None:
        """Send SIGTERM, and SIGKILL if the process has not ended in time."""
        if self.exit_code() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        """Kill the process and the rest of its group with SIGKILL; does nothing after it has ended."""
        if self in _running:
            # The group, because a server may have workers. Its id cannot be reused while one of them lives.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            _running.discard(self)


def descendants(pid: int) -> list[int]:
    """Return `pid` and the ids of its descendants from /proc; only `pid` on systems without /proc."""
    pids = [pid]
    for parent in pids:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):
                text = Path(f"/proc/{parent}/task/{task}/children").read_text()
                pids.extend(int(word) for word in text.split())
    return pids


def kill_all_children() -> None:
    """Kill every child that still runs."""
    for child in list(_running):
        child.kill()


def exit_on_sigterm() -> None:
    """Make SIGTERM raise SystemExit, so that context managers and exit handlers run."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, leave)


def interrupt_on_sigterm() -> None:
    """Make SIGTERM act like Ctrl-C, so that a test run ends in order; effective in the main thread only.

    The signal repeats every `INTERRUPT_AGAIN_S` until `ignore_sigterm`, because one alone may be lost: an exception
    raised inside a finalizer or a C callback is swallowed, and a signal that arrives after the interpreter last looked
    and before a call begins to block does not wake that call. Python's handler does not run in the second case, so it
    cannot be what repeats the signal: the C handler of `faulthandler` writes to a pipe that a thread reads.
    """

    if threading.current_thread() is threading.main_thread():
        ignore_sigterm()
        signal.signal(signal.SIGTERM, _raise_interrupt)
        reading, writing = os.pipe()
        faulthandler.register(signal.SIGTERM, writing, all_threads=False, chain=True)
        threading.Thread(target=_repeat_sigterm, args=(reading,), name="repeat-sigterm", daemon=True).start()


def _raise_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _repeat_sigterm(pipe: int) -> None:
    """Send SIGTERM to the main thread some time after each one that `pipe` tells of."""
    main = threading.main_thread().ident
    assert main is not None
    while os.read(pipe, 1 << 16):
        time.sleep(INTERRUPT_AGAIN_S)
        signal.pthread_kill(main, signal.SIGTERM)


def ignore_sigterm() -> None:
    """Ignore SIGTERM from now on, because the run is ending already."""
    if threading.current_thread() is threading.main_thread():
        # Ends the repeats: the pipe gets nothing more. Unregistering restores an older handler, so it comes first.
        faulthandler.unregister(signal.SIGTERM)
        # Not SIG_IGN, which programs started later would inherit.
        signal.signal(signal.SIGTERM, lambda *_: None)


atexit.register(kill_all_children)


def _end_forked_child_by_sigterm() -> None:
    """Give a forked child the usual SIGTERM back.

    It would write to the pipe of this program, which would be interrupted; and one that only raised an exception there
    could be lost, as the repeats stay here: who waits for the child would wait for ever.
    """
    faulthandler.unregister(signal.SIGTERM)
    if signal.getsignal(signal.SIGTERM) is _raise_interrupt:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_end_forked_child_by_sigterm)
