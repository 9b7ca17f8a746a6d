"""Tables without Spark whose writer is killed dozens of times at random moments, also during compactions.

Everything is done in forks: delta-rs's threads would not survive a fork of the process that had them.
"""

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from spark.tables import Table, open_table
from spark.tests.frames import Frame, rows
from spark.tests.test_tables import ODD, counts, once

KILLS = 10
BATCH = 30
"""Rows of each of three queues in a batch."""


def fork(action: Callable[[], None]) -> int:
    """Run in the process to be killed; exit with code 1 on failure."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except BaseException:  # noqa: BLE001 - whatever it is, this process ends here
            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    return pid


def ended_well(pid: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def batch_of(number: int) -> Frame:
    fresh = range(number * BATCH, (number + 1) * BATCH)
    return Frame(rows("a", 0, fresh), rows("a", 1, fresh), rows(ODD, 0, fresh))


def write(table: Table, done: Path, until: int | None = None) -> None:
    """Append batches as Spark does, repeating those not marked as done, with occasional compactions."""
    while until is None or int(done.read_text()) < until:
        number = int(done.read_text()) + 1
        table.append("app", number, batch_of(number))
        fresh = done.with_suffix(".new")
        fresh.write_text(str(number))
        fresh.rename(done)
        if number % 5 == 4:
            table.compact(target_bytes=100_000, keep_hours=0 if table.format == "directory" else 1)


def check(table: Table, done: Path) -> None:
    """Check for complete batches, once each: all marked as done, and perhaps the next one."""
    found = counts(table) if table.exists() else {}
    seen = len(found) // (3 * BATCH)
    assert int(done.read_text()) + 1 <= seen <= int(done.read_text()) + 2 or not found
    everything = range(seen * BATCH)
    assert dict(found) == dict(once("a", 0, everything) | once("a", 1, everything) | once(ODD, 0, everything))


@pytest.mark.parametrize("format", ["directory", "delta"])
def test_batches_are_there_once_whenever_the_writer_is_killed(tmp_path: Path, format: str) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    chance = random.Random(seed)
    done = tmp_path / "done"
    done.write_text("-1")
    table = open_table(str(tmp_path / "lake"), "messages", format)
    for _ in range(KILLS):
        before = done.read_text()
        writer = fork(lambda: write(table, done))
        while done.read_text() == before:
            assert os.waitpid(writer, os.WNOHANG) == (0, 0)
            time.sleep(0.001)
        time.sleep(chance.random() * 0.2)  # the random moment itself
        os.kill(writer, signal.SIGKILL)
        assert not ended_well(writer)
        assert ended_well(fork(lambda: check(table, done)))
    last = int(done.read_text()) + 3
    assert ended_well(fork(lambda: write(table, done, last)))
    assert ended_well(fork(lambda: check(table, done)))
    print(f"{KILLS} kills, {last + 1} batches")
