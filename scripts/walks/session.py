"""Types the steps of a walk: commands into shells, Python into a session, files into the folder.

Processes run in groups of their own, and all that a session started is stopped when it ends.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from walks.guide import Guide, Step

DEFAULT_WITHIN_S: Final = 60.0
STOP_GRACE_S: Final = 20.0
POLL_S: Final = 0.05
MAX_SHOWN_CHARS: Final = 6_000
END_OF_BLOCK: Final = "-- end of block --"
PYTHON_SESSION: Final = f"""
import sys, traceback
names = globals()
names["__name__"] = "__main__"
while length := sys.stdin.readline():
    code = sys.stdin.read(int(length))
    try:
        exec(compile(code, "<guide>", "exec"), names)
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    print({END_OF_BLOCK!r}, flush=True)
"""


class WalkFailed(Exception):
    """A reader could not go on. The text has the line of the guide and the output."""


@dataclass
class BackgroundProcess:
    """A process that runs on while the reader types in another terminal."""

    command: str
    process: subprocess.Popen[str]
    output: Path


class WalkSession:
    """One walk in ``folder``, with ``environment``. ``scale`` multiplies all times, for slow machines."""

    def __init__(
        self, guide: Guide, folder: Path, logs: Path, environment: Mapping[str, str], scale: float = 1.0
    ) -> None:
        self._guide = guide
        self._folder = folder
        self._logs = logs
        self._environment = dict(environment)
        self._scale = scale
        self._processes: list[BackgroundProcess] = []
        self._python: BackgroundProcess | None = None
        self._actions: dict[str, Callable[[Step], None]] = {
            "run": self._run,
            "type": self._run,
            "start": self._start,
            "file": self._write_file,
            "python": self._type_python,
            "stop": self._stop,
            "afresh": self._begin_afresh,
        }

    def walk(self, report: Callable[[str], None]) -> None:
        """Take all steps. Raises WalkFailed at the first step that a reader could not take."""
        try:
            for step in self._guide.steps:
                action = self._actions.get(step.verb)
                if action is None:
                    continue
                begun_s = time.monotonic()
                action(step)
                first = step.text.strip().partition("\n")[0] if step.verb != "file" else step.argument
                report(f"{time.monotonic() - begun_s:6.1f} s  {step.verb} {first[:90]}")
        finally:
            self._stop_all()

    # -- steps ----------------------------------------------------------------------------------------------------

    def _run(self, step: Step) -> None:
        with self._log("command") as (path, log), _terminal(step.types) as terminal:
            process = self._spawn(step.text, log, terminal)
            try:
                process.wait(self._limit_s(step))
            except subprocess.TimeoutExpired:
                _press_ctrl_c(process)
                raise self._failed(step, path, f"not done within {self._limit_s(step):.0f} s") from None
            finally:
                _stop_group(process)
        if process.returncode != step.exit_code:
            raise self._failed(step, path, f"exit code {process.returncode}, not {step.exit_code}")
        self._check_shown(step, path)

    def _start(self, step: Step) -> None:
        lines = [line for line in step.text.splitlines() if line.strip() and not line.startswith("#")]
        for line in lines:
            with self._log("process") as (path, log):
                self._processes.append(BackgroundProcess(line.strip(), self._spawn(line, log), path))
        for background in self._processes[-len(lines) :]:
            self._wait_for(step, background, step.until)
            self._check_shown(step, background.output)

    def _write_file(self, step: Step) -> None:
        name = step.argument
        home = Path(self._environment["HOME"])
        path = home / name.removeprefix("~/") if name.startswith("~/") else self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(step.text + "\n")

    def _type_python(self, step: Step) -> None:
        if self._python is None:
            with self._log("python") as (path, log):
                process = subprocess.Popen(
                    ["python", "-u", "-c", PYTHON_SESSION],
                    cwd=self._folder,
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
            self._python = BackgroundProcess("python", process, path)
            self._processes.append(self._python)
        python = self._python
        before = len(python.output.read_text())
        assert python.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            python.process.stdin.write(f"{len(step.text)}\n{step.text}")
            python.process.stdin.flush()
        self._wait_for(step, python, (END_OF_BLOCK,), before)
        self._check_shown(step, python.output, before)

    def _stop(self, step: Step) -> None:
        matches = [
            background for background in self._processes if background.command.startswith(step.argument)
        ]
        if not matches:
            raise self._failed(step, None, "no such process was started")
        background = matches[0]
        self._processes.remove(background)
        _press_ctrl_c(background.process)
        try:
            code = background.process.wait(self._limit_s(step))
        except subprocess.TimeoutExpired:
            raise self._failed(step, background.output, "Ctrl-C does not stop it") from None
        finally:
            _stop_group(background.process)
        if code != step.exit_code:
            raise self._failed(step, background.output, f"exit code {code}, not {step.exit_code}")
        self._check_shown(step, background.output)

    def _begin_afresh(self, step: Step) -> None:
        self._stop_all()
        self._python = None
        self._folder = Path(tempfile.mkdtemp(prefix="afresh-", dir=self._folder.parent))

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _spawn(self, command: str, log: TextIO, terminal: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self._folder,
            env=self._environment,
            stdin=terminal,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _limit_s(self, step: Step) -> float:
        return (step.within_s or DEFAULT_WITHIN_S) * self._scale

    def _wait_for(
        self, step: Step, background: BackgroundProcess, texts: tuple[str, ...], after: int = 0
    ) -> None:
        """Wait until a process has shown all texts after the first ``after`` characters of its output."""
        end_s = time.monotonic() + self._limit_s(step)
        while not all(text in background.output.read_text()[after:] for text in texts):
            if background.process.poll() is not None:
                raise self._failed(step, background.output, f"it ended with {background.process.returncode}")
            if time.monotonic() > end_s:
                raise self._failed(step, background.output, f"{' and '.join(texts)} was not shown")
            time.sleep(POLL_S)

    def _check_shown(self, step: Step, output: Path, after: int = 0) -> None:
        # Programs break lines at the width of the terminal, so white space does not count.
        output_text = " ".join(output.read_text()[after:].split())
        for text in step.shows:
            if " ".join(text.split()) not in output_text:
                raise self._failed(step, output, f"{text!r} was not shown")
        for text in step.lacks:
            if " ".join(text.split()) in output_text:
                raise self._failed(step, output, f"{text!r} was shown")

    @contextlib.contextmanager
    def _log(self, name: str) -> Iterator[tuple[Path, TextIO]]:
        path = self._logs / f"{len(list(self._logs.iterdir())):03} {name}.log"
        with path.open("w") as file:
            yield path, file

    def _failed(self, step: Step, output: Path | None, problem: str) -> WalkFailed:
        output_end = output.read_text()[-MAX_SHOWN_CHARS:] if output is not None else ""
        other_outputs = "".join(
            f"\n--- {background.command}\n{background.output.read_text()[-MAX_SHOWN_CHARS // 3 :]}"
            for background in self._processes
            if background.output != output
        )
        return WalkFailed(
            f"{self._guide.path}:{step.line}: {problem}\n$ {step.text}\n{output_end}{other_outputs}"
        )

    def _stop_all(self) -> None:
        for background in reversed(self._processes):
            if background is self._python and background.process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    background.process.stdin.close()
            else:
                _press_ctrl_c(background.process)
        for background in self._processes:
            _stop_group(background.process)
        self._processes.clear()


@contextlib.contextmanager
def _terminal(answer: str) -> Iterator[int]:
    """Yield the standard input of a command: a terminal in which ``answer`` was typed, or nothing."""
    if not answer:
        yield subprocess.DEVNULL
        return
    controller, terminal = os.openpty()
    try:
        os.write(controller, answer.encode() + b"\n")
        yield terminal
    finally:
        os.close(terminal)
        os.close(controller)


def _press_ctrl_c(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)


def _stop_group(process: subprocess.Popen[str]) -> None:
    """Wait for the end of a process that was interrupted, and kill the remaining processes of its group."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_GRACE_S if process.poll() is None else 0)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
