import os
import signal
import sys
from pathlib import Path

import pytest

from walks.guide import Guide, Step
from walks.session import WalkFailed, WalkSession

SLEEPER = f"{sys.executable} -c 'import time; print(\"ready\", flush=True); time.sleep(600)'"


@pytest.fixture
def walk(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/nowhere")  # that of the environment below counts

    def walk(*steps, scale=1.0):
        for name in ("work", "logs"):
            (tmp_path / name).mkdir(exist_ok=True)
        guide = Guide(Path("guide.md"), list(steps))
        folder = str(Path(sys.executable).parent)
        environment = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}
        lines = []
        WalkSession(guide, tmp_path / "work", tmp_path / "logs", environment, scale).walk(lines.append)
        return lines

    return walk


def test_commands_files_and_their_output(walk, tmp_path):
    walk(
        Step(1, "file", "a.txt", "one"),
        Step(1, "file", "~/b/c.txt", "home"),
        Step(1, "run", "", "cat ~/b/c.txt", shows=("home",)),
        Step(2, "run", "", "cat a.txt\necho two >> a.txt", shows=("one",), lacks=("two",)),
        Step(3, "type", "cat a.txt; exit 3", "cat a.txt; exit 3", exit_code=3, shows=("one two",)),
    )
    assert (tmp_path / "work" / "a.txt").read_text() == "one\ntwo\n"


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (Step(7, "run", "", "true\nfalse\ntrue"), "guide.md:7: exit code 1, not 0"),
        (Step(7, "run", "", "true", exit_code=3), "exit code 0, not 3"),
        (Step(7, "run", "", "echo no", shows=("yes",)), "'yes' was not shown"),
        (Step(7, "run", "", "echo no", lacks=("no",)), "'no' was shown"),
        (Step(7, "run", "", "false | true"), "exit code 1, not 0"),
        (Step(7, "start", "", "echo over", until=("ready",)), "it ended with 0"),
        (Step(7, "stop", "serve"), "no such process was started"),
        (Step(7, "python", "", "1 / 0"), "it ended with 1"),
        (Step(7, "run", "", "sleep 600", within_s=0.1), "not done within"),
    ],
)
def test_a_reader_stops(walk, step, problem):
    with pytest.raises(WalkFailed, match=problem):
        walk(step)


def test_an_answer_is_typed(walk):
    walk(Step(1, "run", "", "test -t 0; read answer; echo got $answer", types="y", shows=("got y",)))


def test_processes_go_on_and_are_stopped_like_by_ctrl_c(walk):
    walk(
        Step(1, "start", "", f"{SLEEPER}\n# a comment\n{SLEEPER}", until=("ready",)),
        Step(2, "stop", sys.executable, exit_code=-signal.SIGINT),
    )


def test_a_reader_begins_afresh(walk):
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    walk(
        Step(1, "start", "", f"{sys.executable} -c '{program}' | tee ~/pid", until=("\n",)),
        Step(2, "python", "", "number = 7"),
        Step(3, "run", "", "touch file"),
        Step(4, "afresh", ""),
        Step(5, "run", "", "echo files: $(ls).; kill -0 $(cat ~/pid)", exit_code=1, shows=("files: .",)),
        Step(6, "python", "", "assert 'number' not in globals()"),
    )


def test_nothing_is_left_when_a_walk_fails(walk, tmp_path):
    program = "import os, time; open('pid', 'w').write(str(os.getpid())); print('ready', flush=True); time.sleep(600)"
    begin = Step(1, "start", "", f'{sys.executable} -c "{program}"', until=("ready",))
    with pytest.raises(WalkFailed):
        walk(begin, Step(2, "run", "", "false"))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "work" / "pid").read_text()), 0)


def test_the_python_session_keeps_its_names(walk):
    walk(
        Step(1, "python", "", "def double(x):\n    return 2 * x\nnumber = 21"),
        Step(2, "python", "", "print(double(number))", shows=("42",)),
    )
