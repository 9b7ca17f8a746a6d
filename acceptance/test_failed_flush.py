"""A disk that refuses a flush: nothing that it covered is acknowledged, sends are refused until a restart, reads go on.

The disk is an ext4 file system in a sparse file in memory (tmpfs). When that memory is full, writing to the disk fails
with an input/output error. A later flush succeeds again, although the system has dropped what it could not write.
"""

import contextlib
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from acceptance.workload import read_queue
from compat_tests.clients.typed import send_request
from compat_tests.server import eventually
from remoting.blocking import BlockingClient
from remoting.errors import RequestError
from tools.processes import Gateway

SERVICE_NOT_AVAILABLE = 14
MEMORY_MIB = 96
DISK_MIB = 512


@dataclass(frozen=True, slots=True)
class FailingDisk:
    """A disk at ``place`` that fails while its memory is full."""

    memory: Path
    place: Path

    def break_it(self) -> None:
        with (self.memory / "ballast").open("ab", buffering=0) as ballast, contextlib.suppress(OSError):
            while ballast.write(bytes(4096)):
                pass

    def repair(self) -> None:
        os.unlink(self.memory / "ballast")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FailingDisk]:
    memory, place = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    place.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={MEMORY_MIB}m", "tmpfs", str(memory))
    try:
        image = memory / "image"
        image.touch()
        os.truncate(image, DISK_MIB << 20)
        # Without a journal, only data can fail, and the file system goes on.
        run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image))
        run("mount", "-o", "loop", str(image), str(place))
        try:
            refuse_short_writes(image)
            yield FailingDisk(memory, place)
        finally:
            subprocess.run(["umount", "-l", str(place)], timeout=30, check=True)
    finally:
        subprocess.run(["umount", "-l", str(memory)], timeout=30, check=True)


def refuse_short_writes(image: Path) -> None:
    """Let the loop device write single pages: it takes a request of which only the first pages fit for done."""
    listed = ["losetup", "--noheadings", "--output", "NAME", "--associated", str(image)]
    device = subprocess.run(listed, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    limit = Path("/sys/block") / Path(device).name / "queue" / "max_sectors_kb"
    try:
        limit.write_text("4")
    except OSError as error:
        pytest.skip(f"cannot make a disk that fails honestly: {error}")


def run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError as error:
        pytest.skip(f"cannot make a disk that fails: {error}")
    if done.returncode:
        pytest.skip(f"cannot make a disk that fails: {done.stderr.strip()}")


def send_until_refused(client: BlockingClient, bodies: dict[int, bytes]) -> RequestError:
    """Send messages, add the acknowledged ones to ``bodies`` by queue offset, and return the first refusal."""
    for number in range(10_000):
        body = b"%06d" % number + os.urandom(8_000)
        try:
            bodies[client.ask(send_request("t", body)).queue_offset] = body
        except RequestError as error:
            return error
    raise AssertionError("never refused")


def readiness(gateway: Gateway) -> str:
    """Return the answer of /readyz, empty while the broker is ready."""
    host, port = gateway.ready["http"].rsplit(":", 1)
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/readyz", timeout=30):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()


@pytest.mark.parametrize("end", ["kill", "stop"])
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_disk_that_fails_and_works_again(disk: FailingDisk, tmp_path: Path, flush: str, end: str) -> None:
    arguments = ["--store", str(disk.place / "store"), "--set", f"flushDiskType={flush}"]
    acknowledged: dict[int, bytes] = {}
    with Gateway(tmp_path, *arguments, "--set", "httpPort=0") as gateway, gateway.connect() as client:
        acknowledged[client.ask(send_request("t", b"first")).queue_offset] = b"first"
        disk.break_it()
        refusal = send_until_refused(client, acknowledged)
        assert refusal.code == SERVICE_NOT_AVAILABLE
        assert "a flush to the disk failed" in (refusal.remark or "")
        assert str(disk.place) not in (refusal.remark or "")
        disk.repair()
        for _ in range(3):
            assert send_until_refused(client, {}).code == SERVICE_NOT_AVAILABLE
        eventually(lambda: "to the disk failed" in readiness(gateway))
        eventually(lambda: gateway.lines("the failed flush is noted in the store"), 30)
        assert gateway.lines("the store takes no more messages: check the disk, then restart the broker")
        assert next(iter(read_queue(client, "t"))).body == b"first"
        if end == "kill":
            gateway.kill()
        else:
            gateway.stop()
        assert "Traceback" not in gateway.output()
    with Gateway(tmp_path, *arguments) as again, again.connect() as client:
        assert again.lines("a flush failed in the last run, reading the disk")
        found = {message.queue_offset: message.body for message in read_queue(client, "t")}
        if flush == "SYNC_FLUSH":
            assert acknowledged.items() <= found.items()
        assert client.ask(send_request("t", b"next")).queue_offset == len(found)
        assert again.stop() == 0
