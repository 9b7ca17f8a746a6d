"""Ingests in their own processes, killed at random moments while a producer keeps sending."""

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from compat_tests.clients.typed import connect, create_topic, send_many
from compat_tests.endpoints.process import ChildProcess, descendants
from compat_tests.server import ServerUnderTest, eventually
from spark.tables import Table
from spark.tests.cases.lake import Place, by_arrow, by_duckdb
from spark.tests.cases.sessions import PYTHON_PATH, ROOT

START_S = 900.0
"""Maximum time until an ingest's first batch, and for one batch, on a busy machine."""


RESTARTS = 8
IMPATIENT = ("Python worker failed to connect back", "CANNOT_OPEN_SOCKET")
"""Spark's errors when a process of its own takes longer to start than the ten or fifteen seconds allowed."""


class Producer:
    """Sends messages to every queue of some topics until stopped. A context manager."""

    def __init__(
        self, server: ServerUnderTest, topics: Mapping[str, int], each: int = 20, pause_s: float = 0.1
    ) -> None:
        self.server, self.topics, self.each, self.pause_s = server, topics, each, pause_s
        self.acknowledged: dict[Place, bytes] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._random = random.Random(7)

    def __enter__(self) -> Self:
        for topic, queues in self.topics.items():
            create_topic(self.server, topic, queues)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop sending; repeated calls do nothing."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            # A broker that was killed is back after a while; what it did not acknowledge may be there or not.
            with suppress(Exception), connect(self.server.broker) as broker:
                while not self._stop.wait(self.pause_s):
                    self._send(broker)
            self._stop.wait(self.pause_s)

    def _send(self, broker: Any) -> None:
        for topic, queues in self.topics.items():
            for queue in range(queues):
                bodies = [self._random.randbytes(self._random.randrange(1, 800)) for _ in range(self.each)]
                replies = send_many(broker, topic, bodies, queue_id=queue)
                for body, reply in zip(bodies, replies, strict=True):
                    self.acknowledged[(topic, queue, reply.queue_offset)] = body


class Ingesting:
    """An ingest in its own process, restarted in the same way after each kill."""

    def __init__(self, file: Path, *arguments: str, python: str = sys.executable, **env: str) -> None:
        self.file, self.arguments, self.python = file, arguments, python
        self.log = file.with_suffix(".log")
        self.env = {
            "PYTHONPATH": PYTHON_PATH,
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "SPARK_LOCAL_IP": "127.0.0.1",
            **env,
        }
        self.child: ChildProcess | None = None
        self.restarts = 0
        self._more: tuple[str, ...] = ()

    def start(self, *arguments: str) -> "Ingesting":
        """Starts it."""
        self._more = arguments
        script = ROOT / "spark" / "pipelines" / "submit.py"
        command = [self.python, str(script), "ingest", "-c", str(self.file), "--json"]
        self.child = ChildProcess("ingest", [*command, *self.arguments, *arguments], self.log, self.env)
        return self

    def alive(self) -> bool:
        """Tell whether it runs; restart it if it ended because Spark did not wait long enough for a process."""
        assert self.child is not None
        if self.child.exit_code() is None:
            return True
        self.restarts += 1
        said = self.log.read_text(errors="replace")[-8000:]
        if self.restarts > RESTARTS or not any(words in said for words in IMPATIENT):
            return False
        self.start(*self._more)
        return True

    def summary(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the end, and require success."""
        assert self.child is not None
        code = self.child.wait(timeout_s)
        if code != 0 and self.alive():
            return self.summary(timeout_s)
        said = self.log.read_text(errors="replace")
        assert code == 0, f"exit code {code}\n{said[-6000:]}"
        lines = [line for line in said.splitlines() if line.startswith('{"title"')]
        found: dict[str, Any] = json.loads(lines[-1])
        return found

    def jvm(self) -> int:
        """Return the process id of the driver's JVM."""
        assert self.child is not None
        found = [pid for pid in descendants(self.child.pid) if _is_java(pid)]
        assert found, f"no JVM\n{self.log.read_text(errors='replace')[-6000:]}"
        return found[0]

    def kill(self, what: str) -> None:
        """Send SIGKILL to `jvm`, `python` or `both`; the other one then exits by itself."""
        assert self.child is not None
        jvm, python = self.jvm(), self.child.pid
        for pid in {"jvm": [jvm], "python": [python], "both": [python, jvm]}[what]:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: self.child is not None and self.child.exit_code() is not None, START_S)
        assert self.child.exit_code() != 0
        eventually(lambda: not _is_java(jvm), START_S)
        self.child.kill()


class Checkpoint:
    """Return a query's progress according to its checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def planned(self) -> int:
        """Return the newest planned batch, -1 without any."""
        return _newest(self.path / "offsets")

    def done(self) -> int:
        """Return the newest committed batch, -1 without any."""
        return _newest(self.path / "commits")

    def wait_planned(self, after: int, alive: Callable[[], bool]) -> int:
        """Wait until a later batch is planned, and return it."""
        return _wait(self.planned, after, alive)

    def wait_done(self, after: int, alive: Callable[[], bool]) -> int:
        """Wait until a later batch is committed, and return it."""
        return _wait(self.done, after, alive)


def _wait(read: Callable[[], int], after: int, alive: Callable[[], bool]) -> int:
    def look() -> bool:
        assert alive(), "the ingest has ended by itself"
        return read() > after

    eventually(look, START_S, 0.01)
    return read()


def _newest(directory: Path) -> int:
    if not directory.is_dir():
        return -1
    return max((int(path.name) for path in directory.iterdir() if path.name.isdigit()), default=-1)


def _is_java(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").resolve().name == "java" and _state(pid) != "Z"
    except OSError:
        return False


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def random_moment(chance: random.Random, checkpoint: Checkpoint, ingesting: Ingesting) -> None:
    """Wait until batches are running again, then for a random part of a batch."""
    began_s = time.monotonic()
    first = checkpoint.wait_done(checkpoint.done(), ingesting.alive)
    lasted_s = min(2.0, time.monotonic() - began_s)
    if chance.random() < 0.7:
        checkpoint.wait_planned(first, ingesting.alive)
    time.sleep(chance.random() * lasted_s)  # the random moment itself
    assert ingesting.alive()


def assert_prefix(table: Table, rows: Iterable[tuple[Any, ...]], reader: str) -> int:
    """Check that no message is duplicated or missing before the last of its queue; return the number."""
    times = Counter(row[:3] for row in rows)
    assert set(times.values()) <= {1}, f"{reader} of {table.path}: twice: {times.most_common(3)}"
    for topic, queue in {place[:2] for place in times}:
        offsets = sorted(place[2] for place in times if place[:2] == (topic, queue))
        assert offsets == list(range(len(offsets))), f"{reader}: holes in {topic} {queue}"
    return len(times)


def look(table: Table) -> int:
    """Check what readers see at any moment: no duplicates, gaps or unreadable files. Return the number of rows."""
    if not table.exists():
        return 0
    return min(
        assert_prefix(table, by_arrow(table), "pyarrow"), assert_prefix(table, by_duckdb(table), "DuckDB")
    )
