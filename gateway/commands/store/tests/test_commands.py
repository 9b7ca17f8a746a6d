"""The store commands as a user runs them: what they print, and their exit codes."""

import json
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.commands import cli
from storage.tools.repair import RepairPlan
from storage.tools.tests.stores import (
    COUNT,
    flip_bit,
    kill_store,
    log_file,
    make_store,
    open_elsewhere,
    open_store,
    queue_file,
    snapshot,
)
from toolkit.exit_codes import ExitCode

SIZES = ("--set", "maxHashSlotNum=64")
MAX_START_S = 0.3


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Undo what commands do to the loggers of the process, in which other tests run."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store")


def run(*arguments: object, answer: str = "") -> Result:
    words = ["store", *map(str, arguments)]
    return CliRunner().invoke(cli.main, words, input=answer, catch_exceptions=False)


def json_lines(*arguments: object) -> list[dict[str, object]]:
    return [json.loads(line) for line in run(*arguments).stdout.splitlines()]


def test_inspect(root: Path) -> None:
    before = snapshot(root)
    result = run("inspect", root)
    assert result.exit_code == ExitCode.DONE
    for text in (
        "closed cleanly",
        "2 topics, 3 queues",
        "00000000000000008192",
        "checkpoint: log 2023-11-14T22:",
    ):
        assert text in result.output
    assert ["t", "1", "0", "67", "67"] in [line.split() for line in result.output.splitlines()]
    lines = json_lines("inspect", root, "--json", "--topic", "oth*")
    assert [line["topic"] for line in lines if line["kind"] == "queue"] == ["other"]
    assert lines[0]["state"] == "closed"
    assert snapshot(root) == before


def test_inspect_says_who_has_the_store_open(root: Path) -> None:
    with open_elsewhere(root) as process:
        assert f"open, a broker may be writing: process {process.pid}, " in run("inspect", root).output


def test_inspect_shows_groups_and_problems(root: Path) -> None:
    (root / "config").mkdir()
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"t@readers":{"0":60}}}')
    os.truncate(log_file(root, 1), 5000)
    output = run("inspect", root).output
    assert ["readers", "t", "0", "60", "7"] in [line.split() for line in output.splitlines()]
    assert "Problem: it has 5000 bytes, not 8192" in output


def test_verify(root: Path) -> None:
    result = run("verify", root, *SIZES)
    assert result.exit_code == ExitCode.DONE
    assert "200 messages, 200 entries of 3 queues and 600 index entries read: no damage" in result.output
    flip_bit(queue_file(root), 23)
    result = run("verify", root, *SIZES)
    assert result.exit_code == ExitCode.REFUSED
    assert f"damage: {queue_file(root)} at byte 20 (topic t queue 0 offset 1): it points to" in result.output
    finding, summary = json_lines("verify", root, *SIZES, "--json")
    assert (finding["kind"], finding["file"], finding["offset"]) == ("finding", str(queue_file(root)), 20)
    assert (summary["kind"], summary["damage"], summary["messages"]) == ("summary", 1, COUNT)


def test_dump(root: Path) -> None:
    result = run("dump", root, "-t", "t", "-q", "1", "--from-offset", "3", "-n", "2")
    assert result.exit_code == ExitCode.DONE
    assert [json.loads(line)["body"] for line in result.stdout.splitlines()] == ["body 10", "body 13"]
    stored = json_lines("dump", root, "--key", "k7", "--body", "base64")
    assert [(line["body"], line["properties"]["TAGS"]) for line in stored] == [("Ym9keSA3", "tag3")]  # type: ignore[index]
    assert json_lines("dump", root, "--until", "2023-11-14T22:13:20.1Z") == json_lines(
        "dump", root, "-n", "1"
    )
    flip_bit(log_file(root), 90)
    result = run("dump", root, "--body", "none")
    assert result.exit_code == ExitCode.REFUSED
    assert f"{log_file(root)} at byte 0: the body does not match its CRC" in result.stderr
    assert len(result.stdout.splitlines()) == COUNT - 1


def test_repair_asks_before_it_writes(root: Path) -> None:
    assert run("repair", root, *SIZES).output == "Nothing to repair.\n"
    flip_bit(log_file(root), 90)
    before = snapshot(root)
    dry = run("repair", root, *SIZES, "--dry-run")
    assert dry.exit_code == ExitCode.REFUSED
    assert "  1. log, " in dry.output
    assert "build all consume queues again from the log" in dry.output
    declined = run("repair", root, *SIZES, answer="n\n")
    assert (declined.exit_code, "Write to the store? [y/N]" in declined.output) == (ExitCode.FAILED, True)
    assert snapshot(root) == before
    done = run("repair", root, *SIZES, answer="y\n")
    assert done.exit_code == ExitCode.DONE
    assert done.output.splitlines()[-1].endswith("read: no damage")
    assert snapshot(root) != before
    assert [path.name for path in (root / "damaged").glob("0*")] == [
        "00000000000000000000-00000000000000000158"
    ]
    assert run("repair", root, *SIZES, "--yes").output.splitlines()[-1] == "Nothing to repair."


def test_repair_names_fillers_that_the_replica_cannot_replace(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip_bit(log_file(root), 90)
    assert run("repair", root, *SIZES, "--yes").exit_code == ExitCode.DONE

    def plan_fetch(plan: RepairPlan, *replica: object) -> RepairPlan:
        return replace(plan, skipped=((plan.filled[0], "too old"),))

    monkeypatch.setattr("gateway.commands.store.commands._plan_fetch", plan_fetch)
    result = run("repair", root, *SIZES, "--from", "127.0.0.1:1")
    assert result.exit_code == ExitCode.DONE
    assert result.output.splitlines()[-2:] == [
        "Fillers stay: 158 bytes from physical offset 0: too old",
        "Nothing to repair.",
    ]


def test_repair_of_a_killed_store(root: Path) -> None:
    kill_store(open_store(root))
    result = run("repair", root, *SIZES, "--yes")
    assert result.exit_code == ExitCode.DONE
    assert "recover, as the next start would" in result.output
    assert run("inspect", root).output.splitlines()[1] == "closed cleanly"


def test_repair_refuses_an_open_store(root: Path) -> None:
    with open_elsewhere(root) as process:
        result = run("repair", root, *SIZES, "--yes")
    assert result.exit_code == ExitCode.FAILED
    assert f"Error: {root} is open: process {process.pid} (" in result.output


@pytest.mark.parametrize("command", ["inspect", "verify", "dump", "repair"])
def test_folders_that_are_no_store(tmp_path: Path, command: str) -> None:
    result = run(command, tmp_path)
    assert (result.exit_code, "is not a store" in result.output) == (ExitCode.FAILED, True)
    assert run(command, tmp_path / "missing").exit_code == ExitCode.USAGE
    assert run(command).exit_code == ExitCode.USAGE
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "consumequeue").mkdir()
    (tmp_path / "consumequeue" / "CURRENT").write_text("MANIFEST-000005\n")
    result = run(command, tmp_path)
    assert (result.exit_code, "mqadmin rocksDBConfigToJson" in result.output) == (ExitCode.FAILED, True)


def test_wrong_options(root: Path) -> None:
    assert run("dump", root, "--from", "yesterday").exit_code == ExitCode.USAGE
    assert run("verify", root, "--set", "maxHashSlotNum=many").exit_code == ExitCode.USAGE
    assert run("verify", root, "-c", root / "missing.conf").exit_code == ExitCode.USAGE


def test_the_commit_log_may_be_elsewhere(root: Path, tmp_path: Path) -> None:
    (root / "commitlog").rename(tmp_path / "elsewhere")
    assert run("verify", root, *SIZES).exit_code == ExitCode.FAILED
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathCommitLog={tmp_path}/elsewhere\nmaxHashSlotNum=64\n")
    assert run("verify", root, "-c", conf).exit_code == ExitCode.DONE


def test_commands_start_quickly(root: Path) -> None:
    """In processor time: others may use the machine."""
    before = processor_time_of_children_s()
    subprocess.run([sys.executable, "-m", "gateway.commands.cli", "store", "inspect", str(root)], check=True)
    assert processor_time_of_children_s() - before < MAX_START_S


def processor_time_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_no_store_command_imports_the_servers(root: Path) -> None:
    program = (
        "import sys\nfrom gateway.commands.cli import main\n"
        f"try: main(['store', 'verify', {str(root)!r}, *{SIZES!r}])\nexcept SystemExit: pass\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('trio', 'rich', 'construct')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_backup(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    with open_elsewhere(root):
        result = run("backup", root, target, *SIZES)
    assert result.exit_code == ExitCode.DONE
    assert result.output.startswith(f"{target}: log from 0 to ")
    assert run("verify", target, *SIZES).exit_code == ExitCode.DONE
    again = run("backup", root, target, *SIZES)
    assert (again.exit_code, f"Error: {target} exists already" in again.output) == (ExitCode.FAILED, True)
    (line,) = json_lines("backup", root, tmp_path / "second", *SIZES, "--json")
    assert (line["kind"], line["target"], line["first_offset"]) == ("backup", str(tmp_path / "second"), 0)
    assert run("backup", root).exit_code == ExitCode.USAGE


def test_a_backup_is_restored_by_a_plain_copy(root: Path, tmp_path: Path) -> None:
    run("backup", root, tmp_path / "backup", *SIZES)
    command = ["cp", "-r", "--sparse=always", str(tmp_path / "backup"), str(tmp_path / "restored")]
    subprocess.run(command, check=True)
    store = open_store(tmp_path / "restored")
    assert [store.max_offset(*key) for key in (("t", 0), ("t", 1), ("other", 0))] == [67, 67, 66]
    store.close()


def test_a_progress_bar_on_a_terminal_only(root: Path) -> None:
    command = [sys.executable, "-m", "gateway.commands.cli", "store", "verify", str(root), *SIZES]
    assert subprocess.run(command, capture_output=True, check=True).stderr == b""
    screen, terminal = os.openpty()
    try:
        subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal, check=True)
        shown = os.read(screen, 1 << 16).decode()
    finally:
        os.close(screen)
        os.close(terminal)
    assert "verifying" in shown
    assert "%" in shown
