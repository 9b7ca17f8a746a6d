"""Backfill of one queue from an official primary to a target of ours, with processes that are killed on the way."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from acceptance.workload import read_queue
from compat_tests.clients.typed import batch_request, connect, send_request, topic_request
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.endpoints.process import ChildProcess
from compat_tests.plugin import skip_or_fail
from compat_tests.server import ServerUnderTest, eventually
from remoting.requests.offsets import GetMaxOffset
from tools.processes import environment

pytestmark = pytest.mark.both_servers

MESSAGES = 12_000
LARGE_EACH = 4_000
LARGE_BYTES = 300_000
"""Larger than one pull answer of an official broker, so that such a message comes alone."""
SAME = ("queue_offset", "body", "properties", "born_timestamp", "store_timestamp", "flag", "sys_flag")


class Clusters:
    """An official broker, our server as the target, and the configuration file for both."""

    def __init__(self, primary: OfficialEndpoint, target: OursEndpoint, directory: Path) -> None:
        self.primary, self.target, self.directory = primary, target, directory
        self.file = directory / "shadow.toml"
        self.file.write_text(
            f'[primary]\nnamesrv = ["{primary.namesrv}"]\n'
            f'[target]\nnamesrv = ["{target.namesrv}"]\nkind = "ours"\n'
        )

    def fill(self, topic: str) -> None:
        """Fill one queue with small messages and a few large ones among them."""
        with connect(self.primary.broker) as broker:
            broker.ask(topic_request(topic, 1))
            for first in range(0, MESSAGES, 200):
                numbers = range(first, first + 200)
                messages = [(b"%d " % number * 100, {"UNIQ_KEY": f"{number:032X}"}) for number in numbers]
                broker.ask(batch_request(topic, messages, queue_id=0))
                if first % LARGE_EACH == 0:
                    broker.ask(send_request(topic, os.urandom(LARGE_BYTES), queue_id=0))
        # An official broker fills its queues after it has answered.
        eventually(lambda: self.end(self.primary, topic) == MESSAGES + MESSAGES // LARGE_EACH, 60)

    def line(self, topic: str, *words: str) -> list[str]:
        """Return the command line that copies a topic."""
        command = [
            sys.executable,
            "-m",
            "gateway.commands.cli",
            "shadow",
            "-c",
            str(self.file),
            "backfill",
            "-t",
            topic,
        ]
        return [*command, *words]

    def backfill(self, topic: str, *words: str) -> str:
        """Copy a topic with the command, which must succeed, and return its messages."""
        done = subprocess.run(
            self.line(topic, *words), env=environment(self.directory), capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stderr

    def end(self, where: OfficialEndpoint | OursEndpoint, topic: str) -> int:
        with connect(where.broker) as broker:
            return broker.ask(GetMaxOffset(topic=topic, queue_id=0)).offset


def read_messages(where: OfficialEndpoint | OursEndpoint, topic: str) -> list[tuple[object, ...]]:
    """Return the parts of a queue's messages that must be the same; asserts that its offsets have no gaps."""
    with connect(where.broker) as broker:
        return [tuple(getattr(each, name) for name in SAME) for each in read_queue(broker, topic)]


@pytest.fixture(scope="module")
def clusters(server: ServerUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    if server.kind != "ours":
        pytest.skip("starts both servers itself: run once")
    here = tmp_path_factory.mktemp("backfill")
    try:
        # Brokers limit reads from memory and from disk separately; use the disk's limit for both: 8 messages at a time.
        bounds = {"maxTransferCountOnMessageInMemory": "8", "maxTransferBytesOnMessageInMemory": "65536"}
        with (
            OfficialEndpoint(bounds, here / "primary") as primary,
            OursEndpoint({"mirrorTarget": "true"}, here / "target") as target,
        ):
            yield Clusters(primary, target, here)
    except Unavailable as missing:
        skip_or_fail(str(missing))


def test_a_queue_comes_over_whole_though_command_and_target_are_killed(
    clusters: Clusters, server: ServerUnderTest
) -> None:
    topic = server.topic_name("history")
    clusters.fill(topic)
    end = clusters.end(clusters.primary, topic)
    at = 0
    for part in (0.2, 0.5):
        at = _killed_at(clusters, topic, max(at, int(end * part)))
        assert 0 < at < end
    with _running(clusters, topic) as child:
        eventually(lambda: clusters.end(clusters.target, topic) > at, 60, every_s=0.02)
        clusters.target.crash()
        clusters.target.start()
        assert child.exit_code() is None, "the target was killed too late for this case"
        eventually(lambda: child.exit_code() is not None, 120)
        assert child.exit_code() == 0
    assert read_messages(clusters.target, topic) == read_messages(clusters.primary, topic)
    assert len(read_messages(clusters.target, topic)) == end
    assert f"0 messages copied; the target has {end} of {end}" in clusters.backfill(topic)


def test_a_limit_of_the_rate_holds_for_one_queue_read_ahead(
    clusters: Clusters, server: ServerUnderTest
) -> None:
    topic = server.topic_name("slow")
    clusters.fill(topic)
    end = clusters.end(clusters.primary, topic)
    started_s = time.monotonic()
    printed = clusters.backfill(topic, "--rate", "3000")
    assert time.monotonic() - started_s > 0.9 * end / 3_000
    assert f"{end} messages copied; the target has {end} of {end}" in printed
    assert read_messages(clusters.target, topic) == read_messages(clusters.primary, topic)


@contextlib.contextmanager
def _running(clusters: Clusters, topic: str) -> Iterator[ChildProcess]:
    line, log = clusters.line(topic, "--rate", "2000"), clusters.directory / "backfill.log"
    child = ChildProcess("backfill", line, log, environment(clusters.directory))
    try:
        yield child
    finally:
        child.kill()


def _killed_at(clusters: Clusters, topic: str, offset: int) -> int:
    """Kill the command once the target has reached an offset, and return the target's offset after that."""

    def is_there() -> bool:
        with contextlib.suppress(Exception):  # the command creates the topic
            return clusters.end(clusters.target, topic) >= offset
        return False

    with _running(clusters, topic):
        eventually(is_there, 60, every_s=0.02)
    return clusters.end(clusters.target, topic)
