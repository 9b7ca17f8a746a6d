"""Staged batches of a real broker, while it and what stages and commits are killed at random moments. No JVM."""

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.clients.typed import connect, create_topic, iter_queue
from compat_tests.endpoints.ours import OursEndpoint, process_environment
from compat_tests.server import ServerUnderTest, eventually

pytestmark = pytest.mark.ours_only
QUEUES, ROWS, KILLS = 4, 300, 21


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OursEndpoint]:
    with OursEndpoint({"stagedPublish": "true"}) as endpoint:
        yield endpoint


def start(directory: Path, broker: OursEndpoint, topic: str) -> subprocess.Popen[bytes]:
    given = {
        "dir": str(directory),
        "namesrv": broker.namesrv,
        "topic": topic,
        "rows": ROWS,
    }
    command = [sys.executable, "-m", "spark.tests.cases.staging_driver", json.dumps(given)]
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=process_environment())


def committed(directory: Path) -> int:
    path = directory / "committed"
    return int(path.read_text()) if path.exists() else -1


def pieces(broker: OursEndpoint) -> set[str]:
    return {path.name for path in broker.store.glob("staged/*/pieces/*")}


def wait_until_at_work(directory: Path, broker: OursEndpoint, driver: subprocess.Popen[bytes]) -> None:
    """Wait until it has staged or committed something new."""
    before, known = committed(directory), pieces(broker)

    def is_at_work() -> bool:
        assert driver.poll() is None, (directory / "log").read_text()[-3000:]
        return committed(directory) > before or bool(pieces(broker) - known)

    eventually(is_at_work, 120, every_s=0.001)


def test_every_row_is_there_once_whoever_is_killed(broker: OursEndpoint, tmp_path: Path) -> None:
    server = ServerUnderTest("ours", "ours", broker.namesrv, broker.broker)
    topic = server.topic_name()
    create_topic(server, topic, QUEUES)
    randomness = random.Random(20)
    driver = start(tmp_path, broker, topic)
    try:
        for number in range(KILLS):
            wait_until_at_work(tmp_path, broker, driver)
            time.sleep(randomness.random() * randomness.choice((0.01, 0.1, 1.0)))
            if number % 3 != 0:
                broker.crash()
            if number % 3 != 1:
                driver.send_signal(signal.SIGKILL)
                driver.wait()
            if not broker.children:
                broker.start()
            if driver.poll() is not None:
                driver = start(tmp_path, broker, topic)
        (tmp_path / "stop").touch()
        assert driver.wait(300) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        driver.kill()
        driver.wait()
    with connect(broker.broker) as client:
        found = [int(m.body) for queue in range(QUEUES) for m in iter_queue(client, topic, queue)]
    assert Counter(found) == Counter(range(ROWS * (committed(tmp_path) + 1)))
    assert not list(broker.store.glob("staged/*/intent"))
