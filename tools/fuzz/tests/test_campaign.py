"""A campaign against a real server: it passes on a good one, and notices one that ends."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from compat_tests.endpoints.process import descendants
from tools.fuzz.campaign import BUSY_MACHINE, Campaign
from tools.fuzz.findings import Recording


def kill_server() -> None:
    for pid in descendants(os.getpid()):
        if b"gateway.commands.cli" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def test_a_server_that_ends_is_found():
    def walks() -> Iterator[int]:
        yield from range(20)
        kill_server()
        yield from range(20, 100_000)

    recordings: list[Recording] = []
    result = Campaign("broker", 1, BUSY_MACHINE, recordings.append).run(walks())
    assert "process ended: server ended with -9" in [recording.title for recording in recordings]
    assert result.frames < 100_000
    assert recordings[0].walks
