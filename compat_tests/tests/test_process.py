"""Child processes, none of which may be left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from compat_tests.endpoints.process import ChildProcess

# Prints the id of a grandchild; both run for 10 minutes.
FAMILY = (
    "import subprocess, time; print(subprocess.Popen(['/bin/sleep', '600']).pid, flush=True); time.sleep(600)"
)
# Sleeps a little at a time, because a signal just before a call begins to block does not end it.
ON_TERM = """
import signal, time
signal.signal(signal.SIGTERM, {})
print(1, flush=True)
while True:
    time.sleep(0.01)
"""


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def eventually(true: Callable[[], object]) -> None:
    end = time.monotonic() + 60  # A busy machine takes more than 10 s to start pytest with a worker.
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_kill_ends_the_whole_family(tmp_path: Path) -> None:
    child = ChildProcess("family", [sys.executable, "-c", FAMILY], tmp_path / "log")
    eventually(lambda: (tmp_path / "log").read_text().endswith("\n"))
    grandchild = int((tmp_path / "log").read_text())
    assert set(child.pids()) == {child.pid, grandchild}
    child.kill()
    assert child.exit_code() == -signal.SIGKILL
    assert child.pids() == []
    eventually(lambda: not alive(grandchild))


def test_terminate_kills_what_ignores_it(tmp_path: Path) -> None:
    child = ChildProcess(
        "stubborn", [sys.executable, "-c", ON_TERM.format("signal.SIG_IGN")], tmp_path / "log"
    )
    eventually(lambda: (tmp_path / "log").read_text())
    child.terminate(0.01)
    assert child.exit_code() == -signal.SIGKILL


def test_terminate_lets_a_program_end_itself(tmp_path: Path) -> None:
    child = ChildProcess(
        "polite", [sys.executable, "-c", ON_TERM.format("lambda *_: exit(7)")], tmp_path / "log"
    )
    eventually(lambda: (tmp_path / "log").read_text())
    child.terminate(60)
    assert child.exit_code() == 7


def test_output_and_environment(tmp_path: Path) -> None:
    child = ChildProcess(
        "speaker", ["/bin/sh", "-c", "echo out $WORD; echo err >&2"], tmp_path / "log", {"WORD": "x"}
    )
    assert child.wait(60) == 0
    assert (tmp_path / "log").read_text() == "out x\nerr\n"


@pytest.mark.parametrize("ending", ["raise ValueError", "os.kill(os.getpid(), 15); time.sleep(600)"])
def test_no_child_outlives_a_program_that_ends_badly(tmp_path: Path, ending: str) -> None:
    script = (
        "import os, sys, time; from pathlib import Path; "
        "from compat_tests.endpoints.process import ChildProcess, exit_on_sigterm; exit_on_sigterm(); "
        f"child = ChildProcess('c', ['/bin/sleep', '600'], Path({str(tmp_path / 'log')!r})); "
        f"print(child.pid, flush=True); {ending}"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
        check=False,
    )
    assert done.returncode != 0
    eventually(lambda: not alive(int(done.stdout)))


# A signal that arrives after the interpreter last looked for one, and before `sleep` blocks. No bytecode runs between
# the two calls, so Python's handler cannot.
LOST_SIGNAL = """
import ctypes, operator, signal, time
from functools import partial
from compat_tests.endpoints import process

process.INTERRUPT_AGAIN_S = 0.01
process.interrupt_on_sigterm()
send = partial(getattr(ctypes.CDLL(None), "raise"), signal.SIGTERM)
try:
    list(map(operator.call, [send, partial(time.sleep, 600)]))
except KeyboardInterrupt:
    process.ignore_sigterm()
    time.sleep(0.1)  # several signals would have come
    print("interrupted")
"""


SIGTERM_TO_A_FORK = """
import os, signal, time
from compat_tests.endpoints import process

process.INTERRUPT_AGAIN_S = 0.01
process.interrupt_on_sigterm()
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.write(writing, b"x")
    time.sleep(600)
os.read(reading, 1)
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
time.sleep(0.1)  # a signal of this process would have come
"""


def run_script(script: str) -> tuple[int, str, str]:
    """Return a program's exit code, output and errors."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_signal_just_before_a_blocking_call_still_interrupts() -> None:
    assert run_script(LOST_SIGNAL) == (0, "interrupted\n", "")


def test_a_signal_of_a_forked_child_ends_the_child_only() -> None:
    assert run_script(SIGTERM_TO_A_FORK) == (0, f"-{int(signal.SIGTERM)}\n", "")
