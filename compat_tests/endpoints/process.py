"""Child processes that do not outlive us, each in a session of its own.

Not responsible for readiness: who starts a child knows when it serves.
"""

import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

INTERRUPT_AGAIN_S = 2.0
_running: set["ChildProcess"] = set()


class ChildProcess:
    """One started process with whatever it starts itself; its output goes to the file `log`."""

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
        """The exit code, or None while it runs."""
        return self._process.poll()

    def pids(self) -> list[int]:
        """The process and all its descendants that are alive."""
        return descendants(self.pid) if self.exit_code() is None else []

    def wait(self, timeout_s: float) -> int:
        """The exit code, once it ended by itself. Raises subprocess.TimeoutExpired."""
        code = self._process.wait(timeout_s)
        self.kill()
        return code

    def send_sigterm(self) -> None:
        """SIGTERM."""
        self._process.terminate()

    def terminate(self, timeout_s: float) -> None:
        """SIGTERM, and SIGKILL when that did not end it in time."""
        if self.exit_code() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        """SIGKILL for the process and what is left of its group; harmless when it has ended."""
        if self in _running:
            # the group, because a server may have workers; its id stays taken while one of them lives
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            _running.discard(self)


def descendants(pid: int) -> list[int]:
    """`pid` and the processes below it, by /proc; just `pid` on systems without."""
    found = [pid]
    for parent in found:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):
                text = Path(f"/proc/{parent}/task/{task}/children").read_text()
                found.extend(int(word) for word in text.split())
    return found


def kill_all_children() -> None:
    """Kills every child that still runs."""
    for child in list(_running):
        child.kill()


def exit_on_sigterm() -> None:
    """Lets SIGTERM end this program by SystemExit, so that context managers and exit handlers run."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, leave)


def interrupt_on_sigterm() -> None:
    """Lets SIGTERM act like Ctrl-C, so that a test run ends in order; of the main thread only.

    Again and again until `interrupted`, since an exception that meets a finalizer or a callback of C is lost there.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        again = threading.Timer(INTERRUPT_AGAIN_S, os.kill, (os.getpid(), signal.SIGTERM))
        again.daemon = True
        again.start()
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)


def ignore_sigterm() -> None:
    """The run ends: no later SIGTERM disturbs that."""
    # not SIG_IGN, which programs started later would inherit
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: None)


atexit.register(kill_all_children)
